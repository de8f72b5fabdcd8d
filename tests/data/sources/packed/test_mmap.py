"""Files mapped one after the other: their bytes, where they begin, and that nothing is left of them."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfpipe.data.sources.packed.mmap import map_files

SIZES = (1, 4096, 5_000_000, 2**21)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    generator = np.random.default_rng(0)
    for number, size in enumerate(SIZES):
        (tmp_path / f"shard{number}").write_bytes(generator.bytes(size))
    return [str(tmp_path / f"shard{number}") for number in range(len(SIZES))]


def mappings(files: list[str]) -> int:
    return sum(any(file in line for file in files) for line in Path("/proc/self/maps").read_text().splitlines())


def test_files_are_bytes_of_one_array(files: list[str]) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    mapped = map_files(files)
    assert mapped is not None and mapped.starts[0] == 0
    assert len(os.listdir("/proc/self/fd")) == opened
    for file, start, size in zip(files, mapped.starts, SIZES, strict=True):
        assert mapped.data[start : start + size].tobytes() == Path(file).read_bytes()
    with pytest.raises(ValueError, match="read-only"):
        mapped.data[0] = 0


def test_every_huge_page_of_a_file_can_be_one_of_memory(files: list[str]) -> None:
    mapped = map_files(files)
    assert not ((mapped.data.ctypes.data + mapped.starts) % 2**21).any()


def test_a_mapping_ends_with_the_last_view_of_it(files: list[str]) -> None:
    mapped = map_files(files)
    assert mappings(files) >= len(files)
    part = memoryview(mapped.data)[:1]
    del mapped
    gc.collect()
    assert mappings(files) >= len(files)
    del part
    gc.collect()
    assert mappings(files) == 0


def test_a_file_that_cannot_be_mapped_is_named(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match=f"{tmp_path}/empty"):
        map_files([*files, str(tmp_path / "empty")])
    with pytest.raises(FileNotFoundError, match="gone"):
        map_files([*files, str(tmp_path / "gone")])
    gc.collect()
    assert mappings(files) == 0


def test_too_few_addresses_are_no_error(files: list[str]) -> None:
    code = (
        "import resource, sys; from tfpipe.data.sources.packed.mmap import map_files; files = sys.argv[1:];"
        "assert map_files(100 * files) is not None; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "assert map_files(100 * files) is None; assert map_files(files) is not None"
    )
    subprocess.run([sys.executable, "-c", code, *files], check=True)
