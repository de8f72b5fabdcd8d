"""Headers of tar files give the same members, or the same error, whether C reads the ordinary ones or Python all."""

import io
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.support.examples import examples
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.sources.packed import members
from tfpipe.data.sources.packed.members import Member, tar_members

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
        return list(tar_members(path, 0, path.stat().st_size, left_out)), left_out.counts
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
