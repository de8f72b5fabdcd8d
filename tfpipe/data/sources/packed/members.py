"""Lists the members of tar files, tar files within tar files, and zip files: name, offset and length of each.

Headers of tar files are read in C while they are ordinary, and by tarfile otherwise, in ten times the time.
"""

import io
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.packed.shards import COPY_AGAIN, inflate
from tfpipe.native import core
from tfpipe.util.ledger import Ledger

BLOCK = tarfile.BLOCKSIZE
# First bytes of compressed files, by the program that decompresses them.
COMPRESSED = {
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "zstd": b"\x28\xb5\x2f\xfd",
    "lz4": b"\x04\x22\x4d\x18",
}
# Members that a call of C must find for the next one to follow at once: it costs as much as one that tarfile reads. The
# longest pause between two calls, in members.
FEWEST, LONGEST_PAUSE = 8, 4096
# Bytes of zeros that are compared at a time.
ZEROS = 2**20
# In zip files (PKWARE's APPNOTE.TXT, 4.3 and 4.4): systems that made a member, and the type of a link in the upper bits
# of the attributes of UNIX; flags; in place of a part's number that stands elsewhere; a member's own header: signature,
# lengths of the name and of the extra field; and the extra field with the name in UTF-8: kind, length, version, and
# checksum of the other name.
DOS, UNIX, MACOS, LINK = 0, 3, 19, 0o12
ENCRYPTED, UTF8, IN_64_BITS = 1, 0x800, 0xFFFF
LOCAL, EXTRA_NAME, NAME_IN_UTF8 = struct.Struct("<4s22xHH"), struct.Struct("<HHBL"), 0x7075
# Of other methods, for messages (4.4.5).
NAMES = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}
# Drawn lines, which code page 437 has where other code pages have letters.
LINES = re.compile("[\u2500-\u259f]")


class Member(NamedTuple):
    """A file in an archive."""

    name: str  # path within the archive
    offset: int  # of its first byte, in the archive's file
    length: int  # in bytes, as it is stored
    inflated: int = 0  # bytes when inflated, if it is deflated; else 0
    checksum: int = 0  # CRC-32 of these


def read_member(file: IO[bytes], member: Member) -> bytes:
    """Returns the contents of a member of an open archive.

    Raises ValueError if the archive ends within it, or it cannot be inflated; OSError.
    """
    file.seek(member.offset)
    contents = file.read(member.length)
    if len(contents) != member.length:
        raise ValueError(f"the archive ends within {member.name}; {COPY_AGAIN}")
    return inflate(contents, member.inflated, member.checksum) if member.inflated else contents


def size_of(file: IO[bytes], image: Member, turn: bool) -> Sequence[int]:
    """Returns an image's height and width, with `turn` as EXIF turns it; raises ValueError or OSError."""
    return header_of(read_member(file, image), image.name).turned(turn)[:2]


def tar_members(file: IO[bytes], start: int, end: int, ledger: Ledger, *, links: bool = True) -> Iterator[Member]:
    """Yields the files of a tar file that lies in bytes `start` to `end` of a file; counts what is none.

    A hard link is the file that it links to; without `links` it is left out. The file may be read between two members.
    Raises OSError, and ValueError that names the byte if the tar file is cut off or damaged.
    """
    files: dict[str, Member] | None = None
    for member in _list_members(file, start, end):
        if isinstance(member, list):
            yield from member
        elif member.isfile() and not member.name.endswith("/"):
            yield Member(member.name, member.offset_data, member.size)
        elif member.islnk() and links:
            if files is None:
                others = tar_members(file, start, end, Ledger(), links=False)
                files = {other.name: other for other in others}
            if member.linkname in files:
                yield files[member.linkname]._replace(name=member.name)
            else:
                ledger.add("links", member.name)
        elif not member.isfile() and not member.isdir():
            ledger.add("links" if member.issym() or member.islnk() else "devices and pipes", member.name)


def _list_members(file: IO[bytes], start: int, end: int) -> Iterator[list[Member] | tarfile.TarInfo]:
    """Yields the members of a tar file: some with ordinary headers together, any other as tarfile describes it."""
    library = core() if isinstance(getattr(file, "raw", None), io.FileIO) else None
    # An empty one, which reads the headers of another.
    tar = tarfile.TarFile(fileobj=io.BytesIO(bytes(BLOCK)), encoding="utf-8")
    tar.fileobj = file
    at, pause, countdown = start, 0, 0
    file.seek(start)
    block = file.read(BLOCK)
    for program in (name for name, magic in COMPRESSED.items() if block.startswith(magic)):
        raise ValueError(
            f"it is compressed by {program}, so that an image in it can only be read after all bytes before it: "
            f"decompress it once, {program} -d, and name the .tar"
        )
    while at + BLOCK <= end:
        if library is not None and not tar.pax_headers and not countdown:
            names, extents, at = library.tar(file.fileno(), at, end)
            yield [*map(Member, names.decode("utf-8", "surrogateescape").split("\0"), *extents.T.tolist())]
            countdown = pause = 0 if len(extents) >= FEWEST else min(2 * pause + 1, LONGEST_PAUSE)
        countdown -= countdown > 0
        file.seek(at)
        block = file.read(BLOCK)
        if at + len(block) > end or len(block) < BLOCK or not any(block):
            break
        file.seek(at)
        try:
            member = tarfile.TarInfo.fromtarfile(tar)
            if tar.offset <= at:
                raise ValueError("a size below 0")
        except (tarfile.TarError, ValueError) as error:
            raise ValueError(f"{_damage_error(at, start)}: {error}; {COPY_AGAIN}") from error
        at = tar.offset
        if min(at, member.offset_data + member.size) > end:
            raise ValueError(f"it ends at byte {end}, within the member {member.name!a}; {COPY_AGAIN}")
        if member.issparse():
            raise ValueError(f"{member.name} is stored as a sparse file, in pieces: write it without --sparse")
        yield member
    _check_end(file, at, start, end)


def _damage_error(at: int, start: int) -> str:
    if at == start:
        return f"it is no tar file, is compressed, or its header at byte {at} is damaged"
    return f"the header at byte {at} is damaged, and all members from there on are lost"


def _check_end(file: IO[bytes], at: int, start: int, end: int) -> None:
    """Raises ValueError unless nothing but zeros, at least a block of them, lies in bytes `at` to `end` of a file."""
    file.seek(at)
    block = file.read(max(0, min(BLOCK, end - at)))
    if len(block) < BLOCK and at == start:
        raise ValueError(f"{_damage_error(at, start)}: it ends at byte {at + len(block)}; {COPY_AGAIN}")
    if len(block) < BLOCK:
        where = "within a header" if any(block) else "without the zeros that end a tar file"
        raise ValueError(f"it was cut off: it ends at byte {at + len(block)}, {where}; {COPY_AGAIN}")
    zeros, at = at, at + BLOCK
    while block := file.read(min(ZEROS, end - at)):
        rest = block.lstrip(b"\0")
        if rest:
            raise ValueError(
                f"zeros at byte {zeros} end it, but other bytes follow from byte {at + len(block) - len(rest)} on: a "
                f"header was overwritten, or tar files were joined by cat instead of tar --concatenate; {COPY_AGAIN}"
            )
        at += len(block)


def zip_members(file: IO[bytes], size: int, ledger: Ledger) -> Iterator[Member]:
    """Yields the files of a zip file of `size` bytes; counts links.

    Raises OSError, and ValueError that names the member or the byte if the zip file is cut off or damaged, or a member
    is encrypted or compressed by another method than deflate.
    """
    try:
        entries = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
        why = "it is no zip file, was cut off, or the list of its members at its end is damaged"
        raise ValueError(f"{why}: {error}; it has {size} bytes; {COPY_AGAIN}") from error
    part = max({entry.volume for entry in entries} - {IN_64_BITS}, default=0)
    if part:
        raise ValueError(
            f"it is part {part + 1} of a split zip file: join the parts, zip -s 0 a.zip --out whole.zip; {COPY_AGAIN}"
        )
    for entry in entries:
        raw = entry.orig_filename.encode("utf-8" if entry.flag_bits & UTF8 else "cp437")
        name = _name_of(raw, entry)
        # The contents of a link are the path of another file.
        if entry.create_system in (UNIX, MACOS) and entry.external_attr >> 28 == LINK:
            ledger.add("links", name)
        elif not name.endswith("/"):
            yield _locate_member(file, raw, name, entry, size)


def _name_of(raw: bytes, entry: zipfile.ZipInfo) -> str:
    """Returns a member's name: in UTF-8 if the entry or an extra field says so, or as its system writes names.

    zip on Linux and macOS writes UTF-8 and does not say so; old programs of Windows write code page 437, some of them
    with backslashes between folders. Raises ValueError if a name of neither has a drawn line.
    """
    name = entry.orig_filename if entry.flag_bits & UTF8 else _unstated_name(raw, entry)
    return name.replace("\\", "/") if entry.create_system == DOS else name


def _unstated_name(raw: bytes, entry: zipfile.ZipInfo) -> str:
    name, extra, at = entry.orig_filename, entry.extra, 0
    while at + 9 <= len(extra):
        kind, length, _, checksum = EXTRA_NAME.unpack_from(extra, at)
        if kind == NAME_IN_UTF8 and checksum == zlib.crc32(raw):
            return extra[at + 9 : at + 4 + length].decode("utf-8")
        at += 4 + length
    if entry.create_system in (UNIX, MACOS):
        with suppress(UnicodeDecodeError):
            return raw.decode("utf-8")
    if lines := LINES.search(name):
        raise ValueError(
            f"the name {name} has {lines[0]}, a drawn line of code page 437: it is in another code page, "
            "which the archive does not state; unpack it, e.g. with unzip -O GBK, or write it again with names in UTF-8"
        )
    return name


def _locate_member(file: IO[bytes], raw: bytes, name: str, entry: zipfile.ZipInfo, size: int) -> Member:
    """Returns where a member's contents are, by its own header; raises ValueError if that does not match the entry."""
    at, length, inflated = entry.header_offset, entry.compress_size, entry.file_size
    if entry.flag_bits & ENCRYPTED:
        raise ValueError(f"{name} is encrypted: unpack it with its password, and read the files")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        by = NAMES.get(entry.compress_type, f"method {entry.compress_type}")
        raise ValueError(f"{name} is compressed by {by}; accepted: stored and deflated: pack it with zip -0")
    block = os.pread(file.fileno(), LOCAL.size + len(raw), at) if 0 <= at < size else b""
    _, name_length, extra = LOCAL.unpack(block[: LOCAL.size].ljust(LOCAL.size, b"\0"))
    if not block.startswith(b"PK\3\4") or block[LOCAL.size :] != raw or name_length != len(raw):
        raise ValueError(f"the header of {name} at byte {at} is damaged; {COPY_AGAIN}")
    offset = at + LOCAL.size + name_length + extra
    if offset + length > size:
        raise ValueError(f"it ends at byte {size}, within the member {name}; {COPY_AGAIN}")
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        return Member(name, offset, length, inflated, entry.CRC) if inflated else Member(name, offset, 0)
    if length != inflated:
        raise ValueError(f"the sizes of {name}, {length} and {inflated} bytes, differ; {COPY_AGAIN}")
    return Member(name, offset, length)
