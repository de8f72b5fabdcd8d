"""The members of zip files: those that zipfile reads, and an error for each damage."""

import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfpipe.data.sources.packed.members import read_member, zip_members

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\\"), min_size=1, max_size=20)
FILES = st.dictionaries(NAMES, st.binary(max_size=60), max_size=6)


def write(
    path: Path, files: dict[str, bytes], *, comment: bytes = b"", large: bool = False, deflated: str = ""
) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment
        for name, contents in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED if name == deflated else zipfile.ZIP_STORED
            info.comment, info.extra = b"of a member", b"\x99\x99\x02\x00ab"
            with archive.open(info, "w", force_zip64=large) as member:
                member.write(contents)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES, comment=st.binary(max_size=30), before=st.binary(max_size=30), large=st.booleans(), data=st.data())
def test_members_are_those_that_zipfile_reads(
    tmp_path: Path, files: dict[str, bytes], comment: bytes, before: bytes, large: bool, data: st.DataObject
) -> None:
    path = tmp_path / "a.zip"
    comment = comment.replace(b"PK", b"")
    write(path, files, comment=comment, large=large, deflated=data.draw(st.sampled_from([*files, ""])))
    path.write_bytes(before + path.read_bytes())
    members = list(zip_members(path, path.stat().st_size))
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        read = {member.name: read_member(file.fileno(), member) for member in members}
        assert read == {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


def test_a_name_without_the_flag_of_utf_8_is_of_the_old_code_page(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write(path, {"name.jpg": b"1"})
    path.write_bytes(path.read_bytes().replace(b"name.jpg", b"n\x84me.jpg"))
    assert [member.name for member in zip_members(path, path.stat().st_size)] == ["näme.jpg"]


def test_more_members_than_16_bits_count_and_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """A sparse file of 4.1 GB in front of the members."""
    path, count = tmp_path / "a.zip", 2**16 + 3
    with path.open("wb") as file:
        file.seek(4_100_000_000)
        file.write(b"\0")
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(count):
            archive.writestr(str(number), b"x" * (number % 3))
    members = list(zip_members(path, path.stat().st_size))
    assert [member.name for member in members] == list(map(str, range(count)))
    with path.open("rb") as file:
        assert read_member(file.fileno(), members[-1]) == b"x" * ((count - 1) % 3)


@pytest.mark.parametrize("large", [False, True])
def test_each_damage_is_an_error_or_harmless(tmp_path: Path, large: bool) -> None:
    """Any cut, and any byte that is another one: no member is read from outside the file."""
    path = tmp_path / "a.zip"
    write(path, {"a.jpg": b"1234", "b.jpg": b"5" * 40}, large=large, deflated="b.jpg")
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="cut off"):
            list(zip_members(path, end))
    for at in range(len(whole)):
        for bits in (1, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= bits
            path.write_bytes(damaged)
            try:
                members = list(zip_members(path, len(whole)))
            except ValueError as error:
                assert str(error)
                continue
            assert all(0 < member.offset and member.offset + member.length <= len(whole) for member in members)
