"""A tar shard that is not whole is refused, wherever it was cut or damaged; every form of a whole one is read.

Headers of tar files give the same members, or the same error, whether C reads the ordinary ones or tarfile all.
"""

import gzip
import io
import random
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.routes import tar_bytes
from tfpipe.config import Columns
from tfpipe.data.sources.packed import members
from tfpipe.data.sources.packed.members import Member, tar_members
from tfpipe.data.sources.packed.shards import COPY_AGAIN
from tfpipe.data.sources.packed.webdataset import scan_tar
from tfpipe.util.ledger import Ledger

NAMES = [f"{number:03}.jpg" for number in range(6)]
BLOCK = tarfile.BLOCKSIZE


def as_tar(names: list[str], form: int = tarfile.GNU_FORMAT) -> bytes:
    """Returns a tar file of these names, each of 700 other bytes."""
    return tar_bytes([(name, bytes([number]) * 700) for number, name in enumerate(names)], form)


WHOLE = as_tar(NAMES)
# A header and two blocks of contents a member.
MEMBER, END = 3 * BLOCK, 3 * BLOCK * len(NAMES)


def scan(folder: Path, contents: bytes) -> list[str]:
    """Returns the names of the images of a shard; makes sure that each is where it is said to be."""
    (folder / "s.tar").write_bytes(contents)
    rows = scan_tar(folder / "s.tar", len(contents), Columns(), Ledger())
    for number, start in enumerate(rows.more["offset"].tolist()):
        assert contents[start : start + 700] == bytes([number]) * 700 and rows.more["length"][number] == 700
    return list(rows.names)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_format_and_long_names_are_read(tmp_path: Path, form: int) -> None:
    names = [*NAMES, f"{'folder/' * 15}{'x' * 90}.jpg"]
    assert scan(tmp_path, as_tar(names, form)) == names


@pytest.mark.parametrize("end", [BLOCK, 2 * BLOCK, 100 * BLOCK])
def test_zeros_end_a_shard(tmp_path: Path, end: int) -> None:
    assert scan(tmp_path, WHOLE[:END] + bytes(end)) == NAMES


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (WHOLE[: 3 * MEMBER], f"it was cut off: it ends at byte {3 * MEMBER}, without the zeros that end a tar file"),
        (WHOLE[:END], f"it ends at byte {END}, without the zeros"),
        (WHOLE[: 3 * MEMBER + 100], f"it ends at byte {3 * MEMBER + 100}, within a header"),
        (WHOLE[: 3 * MEMBER + BLOCK + 9], f"it ends at byte {3 * MEMBER + BLOCK + 9}, within the member '003.jpg'"),
        (WHOLE[:700], "it ends at byte 700, within the member"),
        (WHOLE[:100], "it is no tar file, is compressed, or its header at byte 0 is damaged"),
        (b"", "it is no tar file, is compressed, or its header at byte 0 is damaged"),
        (gzip.compress(WHOLE), "it is compressed by gzip, so that .* decompress it once, gzip -d"),
        (WHOLE[: 2 * MEMBER] + b"?" + WHOLE[2 * MEMBER + 1 :], f"the header at byte {2 * MEMBER} is damaged, and all"),
        (
            WHOLE[: 2 * MEMBER] + bytes(BLOCK) + WHOLE[2 * MEMBER + BLOCK :],
            f"zeros at byte {2 * MEMBER} end it, but other bytes follow from byte {2 * MEMBER + BLOCK} on",
        ),
        (WHOLE + WHOLE, f"zeros at byte {END} end it, but other bytes follow from byte {len(WHOLE)} on: .* joined by"),
    ],
    ids=[
        "at a member",
        "at the end",
        "in a header",
        "in an image",
        "in the first",
        "in the first header",
        "empty",
        "compressed",
        "damaged",
        "zeroed",
        "joined",
    ],
)
def test_a_shard_that_is_not_whole_is_refused(tmp_path: Path, contents: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"({problem}).*(; copy it again, or write|and name the \.tar)"):
        scan(tmp_path, contents)


@given(at=st.integers(0, END - 1), value=st.integers(1, 255))
def test_a_damaged_byte_never_hides_a_sample(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    """Only the contents of images have no checksum in a tar."""
    in_header = at % MEMBER < BLOCK
    contents = bytearray(WHOLE)
    contents[at] ^= value
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    path.write_bytes(contents)
    try:
        rows = scan_tar(path, len(contents), Columns(), Ledger())
    except ValueError:
        assert in_header
    else:
        assert list(rows.names) == NAMES


@given(size=st.integers(0, END))
def test_a_shard_that_is_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.tar"
    path.write_bytes(WHOLE[:size])
    with pytest.raises(ValueError, match=COPY_AGAIN):
        scan_tar(path, size, Columns(), Ledger())


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_image_is_refused_and_a_sparse_note_is_read(tmp_path: Path, form: str) -> None:
    """Its bytes do not lie together, so no single read returns them."""
    for name, contents in (("a.jpg", b"x" * 700), ("a.json", b'{"label": "cat"}'), ("b.jpg", b"")):
        (tmp_path / name).write_bytes(contents)
    with (tmp_path / "a.json").open("ab") as file:
        file.write(b" " * 2**16)
    with (tmp_path / "b.jpg").open("r+b") as file:
        file.truncate(2**20)

    def packed(*names: str) -> bytes:
        tar = ["tar", "--create", "--sparse", f"--format={form}", "--directory", str(tmp_path), *names]
        return subprocess.run(tar, check=True, capture_output=True).stdout

    (tmp_path / "s.tar").write_bytes(packed("a.jpg", "a.json"))
    rows = scan_tar(tmp_path / "s.tar", (tmp_path / "s.tar").stat().st_size, Columns(), Ledger())
    assert (list(rows.names), rows.labels.text(0)) == (["a.jpg"], "cat")
    (tmp_path / "s.tar").write_bytes(packed("a.jpg", "b.jpg"))
    with pytest.raises(ValueError, match=r"b\.jpg is stored as a sparse file, in pieces: write it without --sparse"):
        scan_tar(tmp_path / "s.tar", 10**9, Columns(), Ledger())


FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KINDS = (*[tarfile.REGTYPE] * 12, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
FOLDERS = ("", "a/", "./", "n01440764/", f"{'long/' * 25}", "ä/")


def random_tar(draw: random.Random) -> bytes:
    """Returns a tar file of up to 40 members of all kinds, whose names are sometimes too long for a header."""
    form, file = draw.choice(FORMATS), io.BytesIO()
    common = {"comment": "all"} if form == tarfile.PAX_FORMAT and draw.random() < 0.2 else None
    with tarfile.open(fileobj=file, mode="w", format=form, pax_headers=common) as tar:
        for number in range(draw.randrange(40)):
            long = "x" * (90 if form == tarfile.USTAR_FORMAT else 150)
            member = tarfile.TarInfo(f"{draw.choice(FOLDERS)}{number}{draw.choice(('', '', '', long))}.jpg")
            member.type, member.linkname, member.mtime = draw.choice(KINDS), "0.jpg", draw.choice((0, 2**31, 1.5))
            contents = bytes([number]) * draw.choice((0, 1, 511, 512, 513, 3000)) if member.isfile() else b""
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return file.getvalue()


class NothingOrdinary:
    """Leaves every header to Python."""

    @staticmethod
    def tar(file: int, at: int, end: int) -> tuple[bytes, np.ndarray, int]:
        return b"", np.empty((0, 2), np.int64), at


def outcome(path: Path) -> tuple[list[Member], dict[str, tuple[int, str]]] | str:
    left_out = Ledger()
    try:
        with path.open("rb") as file:
            return list(tar_members(file, 0, path.stat().st_size, left_out)), left_out.counts
    except ValueError as error:
        return str(error)


def test_members_are_those_that_python_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole files, and of those with some bytes changed or cut off."""
    draw, path, errors, count = random.Random(1), tmp_path / "some.tar", 0, examples(1000)
    for _ in range(count):
        contents = bytearray(random_tar(draw))
        for _ in range(draw.choice((0, 0, 1, 3))):
            at = draw.randrange(len(contents))
            contents[at - at % 512 + draw.choice((at % 512, 124, 148, 156, 345))] = draw.randrange(256)
        del contents[len(contents) - draw.choice((0, 0, 0, 1, 512, len(contents) // 2)) :]
        path.write_bytes(contents)
        by_c = outcome(path)
        with monkeypatch.context() as patch:
            patch.setattr(members, "core", lambda: NothingOrdinary)
            assert by_c == outcome(path)
        errors += isinstance(by_c, str)
    assert 0.1 * count < errors < 0.9 * count


def test_a_call_of_c_lists_as_many_members_as_it_has_room_for(tmp_path: Path) -> None:
    """And goes on after them; ordinary headers after others are read in C again."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("n01/" + "y" * 120))
        for number in range(9000):
            tar.addfile(tarfile.TarInfo(f"n01440764/{number:08}.JPEG"))
    path = tmp_path / "many.tar"
    path.write_bytes(file.getvalue())
    found, _ = outcome(path)
    assert [member.name for member in found[1:]] == [f"n01440764/{number:08}.JPEG" for number in range(9000)]
    assert [member.offset for member in found] == [512 * (3 + number) for number in range(9001)]
