"""The members of zip files: those that zipfile reads, and an error for each damage."""

import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfpipe.data.sources.packed.members import Member, read_member, zip_members
from tfpipe.util.ledger import Ledger

# Also letters of code page 437, and its drawn lines, which are letters of other code pages.
ALL = st.characters(codec="utf-8", exclude_characters="\0\\")
NAMES = st.text(ALL, min_size=1, max_size=20) | st.text(st.sampled_from("aé─█/"), min_size=1)
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


def listed(path: Path, ledger: Ledger | None = None) -> list[Member]:
    with path.open("rb") as file:
        return list(zip_members(file, path.stat().st_size, Ledger() if ledger is None else ledger))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES, comment=st.binary(max_size=30), before=st.binary(max_size=30), large=st.booleans(), data=st.data())
def test_members_are_those_that_zipfile_wrote(
    tmp_path: Path, files: dict[str, bytes], comment: bytes, before: bytes, large: bool, data: st.DataObject
) -> None:
    path = tmp_path / "a.zip"
    write(path, files, comment=comment, large=large, deflated=data.draw(st.sampled_from([*files, ""])))
    path.write_bytes(before + path.read_bytes())
    members = listed(path)
    with path.open("rb") as file:
        read = {member.name: read_member(file, member) for member in members}
    assert read == {name: contents for name, contents in files.items() if not name.endswith("/")}


DOS, UNIX = 0, 3


def infos(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for info, contents in members:
            archive.writestr(info, contents)


def info(name: str, system: int = UNIX, mode: int = 0o100644) -> zipfile.ZipInfo:
    result = zipfile.ZipInfo(name)
    result.create_system, result.external_attr = system, mode << 16
    return result


@pytest.mark.parametrize(
    ("raw", "system", "name"),
    [
        (b"n\x84me.jpg", DOS, "näme.jpg"),  # code page 437
        (b"n\x84me.jpg", UNIX, "näme.jpg"),  # no UTF-8
        (b"n\xc3\xa4e.jpg", UNIX, "näe.jpg"),  # zip on Linux, without the flag
        (b"a\\n\xa4.jpg", DOS, "a/nñ.jpg"),
        (b"a\\name.jpg", UNIX, "a\\name.jpg"),
    ],
)
def test_a_name_without_the_flag_of_utf_8_is_read_as_its_system_writes_names(
    tmp_path: Path, raw: bytes, system: int, name: str
) -> None:
    path = tmp_path / "a.zip"
    infos(path, (info("x" * len(raw), system), b"1"))
    path.write_bytes(path.read_bytes().replace(b"x" * len(raw), raw))
    assert [member.name for member in listed(path)] == [name]


def test_a_name_in_utf_8_may_stand_in_an_extra_field(tmp_path: Path) -> None:
    path, old, new = tmp_path / "a.zip", b"n_me.jpg", "nåme.jpg".encode()
    member = info(old.decode(), DOS)
    contents = b"\x01" + zlib.crc32(old).to_bytes(4, "little") + new
    member.extra = b"\x75\x70" + len(contents).to_bytes(2, "little") + contents
    infos(path, (member, b"1"))
    assert [found.name for found in listed(path)] == ["nåme.jpg"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.sampled_from("aé─█中"), min_size=1), st.sampled_from([DOS, UNIX]), st.sampled_from(["flag", "extra", ""])
)
def test_a_name_is_read_as_the_archive_states_it_and_refused_if_that_may_be_wrong(
    tmp_path: Path, name: str, system: int, stated: str
) -> None:
    """A name in UTF-8, with its flag, in an extra field, or by its system; or in a code page that is not stated."""
    raw = name.encode() if stated != "extra" else bytes(range(0xC4, 0xC4 + len(name) % 8 + 1))
    member = info("x" * len(raw), system)
    if stated == "extra":
        contents = b"\x01" + zlib.crc32(raw).to_bytes(4, "little") + name.encode()
        member.extra = b"\x75\x70" + len(contents).to_bytes(2, "little") + contents
    path = tmp_path / "a.zip"
    infos(path, (member, b"1"))
    flags = (0x800 if stated == "flag" else 0).to_bytes(2, "little")
    whole = path.read_bytes().replace(b"x" * len(raw), raw)
    at = whole.index(b"PK\1\2") + 8
    path.write_bytes(whole[:6] + flags + whole[8:at] + flags + whole[at + 2 :])
    guessed = raw.decode("cp437")
    if stated or system == UNIX:
        assert [found.name for found in listed(path)] == [name]
    elif any("\u2500" <= letter <= "\u259f" for letter in guessed):
        with pytest.raises(ValueError, match="a drawn line of code page 437"):
            listed(path)
    else:
        assert [found.name for found in listed(path)] == [guessed.replace("\\", "/")]


def test_a_link_is_no_image_and_is_counted(tmp_path: Path) -> None:
    path, ledger = tmp_path / "a.zip", Ledger()
    infos(path, (info("a/1.jpg"), b"image"), (info("b/2.jpg", mode=0o120777), b"../a/1.jpg"))
    assert [found.name for found in listed(path, ledger)] == ["a/1.jpg"]
    assert ledger.texts == ["links (1, e.g. b/2.jpg)"]


def test_the_last_part_of_a_split_zip_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write(path, {"a.jpg": b"1"})
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\1\2") + 34
    whole[at : at + 2] = b"\x02\x00"
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"part 3 of a split zip file: join the parts, zip -s 0"):
        listed(path)


def test_more_members_than_16_bits_count_and_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """A sparse file of 4.1 GB in front of the members."""
    path, count = tmp_path / "a.zip", 2**16 + 3
    with path.open("wb") as file:
        file.seek(4_100_000_000)
        file.write(b"\0")
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(count):
            archive.writestr(str(number), b"x" * (number % 3))
    members = listed(path)
    assert [member.name for member in members] == list(map(str, range(count)))
    with path.open("rb") as file:
        assert read_member(file, members[-1]) == b"x" * ((count - 1) % 3)


@pytest.mark.parametrize("large", [False, True])
def test_each_damage_is_an_error_or_harmless(tmp_path: Path, large: bool) -> None:
    """Any cut, and any byte that is another one: no member is read from outside the file."""
    path = tmp_path / "a.zip"
    write(path, {"a.jpg": b"1234", "b.jpg": b"5" * 40}, large=large, deflated="b.jpg")
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="cut off"):
            listed(path)
    for at in range(len(whole)):
        for bits in (1, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= bits
            path.write_bytes(damaged)
            try:
                members = listed(path)
            except ValueError as error:
                assert str(error)
                continue
            assert all(0 < member.offset and member.offset + member.length <= len(whole) for member in members)
