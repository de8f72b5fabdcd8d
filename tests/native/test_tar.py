"""The members of a tar file as the C lists them: those of Python's tarfile, up to a header that is not ordinary."""

import tarfile
from pathlib import Path

import pytest

from tests.support.routes import tar_bytes
from tfpipe import native

BLOCK = tarfile.BLOCKSIZE


def written(path: Path, sizes: dict[str, int]) -> bytes:
    """Writes a tar file of members of these sizes; returns its bytes."""
    path.write_bytes(tar_bytes({name: b"x" * size for name, size in sizes.items()}, tarfile.USTAR_FORMAT))
    return path.read_bytes()


def listed(path: Path, at: int, end: int) -> tuple[list[str], list[list[int]], int]:
    """Returns names, extents and the byte of the header after them."""
    core = native.core()
    with path.open("rb") as file:
        names, extents, after = core.tar(file.fileno(), at, end)
    return names.decode().split("\0")[:-1], extents.tolist(), after


@pytest.mark.parametrize("sizes", [(0, 1, 511), (512, 513), (1024, 0, 512, 5)], ids=str)
def test_contents_of_whole_blocks_have_no_padding(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    path = tmp_path / "s.tar"
    contents = written(path, {f"folder/{number}.jpg": size for number, size in enumerate(sizes)})
    with tarfile.open(path) as tar:
        members = [(member.name, member.offset_data, member.size) for member in tar]
    names, extents, after = listed(path, 0, len(contents))
    assert [(name, *extent) for name, extent in zip(names, extents, strict=True)] == members
    # The first of the zeros that end the file is no ordinary header.
    assert after == members[-1][1] + -(-members[-1][2] // BLOCK) * BLOCK
    assert listed(path, members[0][1] - BLOCK, members[0][1])[2] == (members[0][1] if sizes[0] == 0 else 0)


def test_the_list_ends_where_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    written(path, {"a": 512, "b": 512})
    assert listed(path, 0, 2 * BLOCK) == (["a"], [[BLOCK, BLOCK]], 2 * BLOCK)
    # A member whose contents go beyond the end is not listed.
    assert listed(path, 0, 4 * BLOCK - 1) == (["a"], [[BLOCK, BLOCK]], 2 * BLOCK)
    assert listed(path, 2 * BLOCK, 4 * BLOCK) == (["b"], [[3 * BLOCK, BLOCK]], 4 * BLOCK)
