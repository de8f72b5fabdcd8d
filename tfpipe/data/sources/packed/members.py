"""Lists the members of tar files, tar files within tar files, and zip files: name, offset and length of each.

Headers of tar files are read in C while they are ordinary, and by tarfile otherwise, in ten times the time. The members
of a zip file are in the directory at its end, of which zipfile makes an object for each, in three times the time.
"""

import io
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.packed.shards import COPY_AGAIN, inflate
from tfpipe.native import core

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
# Records of zip files (PKWARE's APPNOTE.TXT, 4.3). That at the end: signature, number of the disk, entries, bytes and
# offset of the directory, and length of the comment; and its form with 64 bits, without disk and comment.
END, END64 = struct.Struct("<4sH4xHLLH"), struct.Struct("<4s28xQQQ")
LOCATOR = struct.Struct("<4s16x")
LONGEST_COMMENT = 2**16 - 1
# An entry of the directory: signature, system that made it, flags, method, checksum, sizes when compressed and not,
# lengths of name, extra field and comment, the system's attributes of the file, offset.
ENTRY = struct.Struct("<4sxB2xHH4xLLLHHH4xLL")
DOS, UNIX, MACOS = 0, 3, 19  # systems
LINK = 0o12  # type of a file, in the upper bits of the attributes of UNIX
LOCAL = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
IN_EXTRA = 2**32 - 1  # in place of a number that stands in the extra field, in 64 bits
EXTRA64 = 1  # kind of that extra field
EXTRA_NAME = 0x7075  # kind of the one with the name in UTF-8, after a version and the checksum of the other name
IN_64_BITS = 2**16 - 1  # in place of a disk's number
ENCRYPTED, UTF8 = 1, 0x800  # flags
# Of other methods, for messages (4.4.5).
NAMES = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}


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


def size_of(file: IO[bytes], image: Member) -> Sequence[int]:
    """Returns the height and the width that an image's header states; raises ValueError or OSError."""
    return header_of(read_member(file, image), image.name)[:2]


def tar_members(file: IO[bytes], start: int, end: int, ledger: Ledger, *, links: bool = True) -> Iterator[Member]:
    """Yields the files of a tar file that lies in bytes `start` to `end` of a file; counts what is none.

    A hard link is the file that it links to; without `links` it is left out. The file may be read between two members.
    Raises OSError, and ValueError that names the byte if the tar file is cut off or damaged.
    """
    files: dict[str, Member] | None = None
    for member in _listed(file, start, end):
        if isinstance(member, Member):
            yield member
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


def _listed(file: IO[bytes], start: int, end: int) -> Iterator[Member | tarfile.TarInfo]:
    """Yields the members of a tar file, as tarfile describes them if their headers are not ordinary."""
    library = core() if isinstance(getattr(file, "raw", None), io.FileIO) else None
    # An empty one, which reads the headers of another.
    tar = tarfile.TarFile(fileobj=io.BytesIO(bytes(BLOCK)), encoding="utf-8")
    tar.fileobj = file
    at, pause, left = start, 0, 0
    file.seek(start)
    _check_plain(file.read(BLOCK))
    while at + BLOCK <= end:
        if library is not None and not tar.pax_headers and not left:
            names, extents, at = library.tar(file.fileno(), at, end)
            yield from map(Member, names.decode("utf-8", "surrogateescape").split("\0"), *extents.T.tolist())
            left = pause = 0 if len(extents) >= FEWEST else min(2 * pause + 1, LONGEST_PAUSE)
        left -= left > 0
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
            raise ValueError(f"{_damaged(at, start)}: {error}; {COPY_AGAIN}") from error
        at = tar.offset
        if min(at, member.offset_data + member.size) > end:
            raise ValueError(f"it ends at byte {end}, within the member {member.name!a}; {COPY_AGAIN}")
        if member.issparse():
            raise ValueError(f"{member.name} is stored as a sparse file, in pieces: write it without --sparse")
        yield member
    _check_end(file, at, start, end)


def _check_plain(block: bytes) -> None:
    """Raises ValueError if a file that begins so is compressed, whatever its name."""
    program = next((name for name, magic in COMPRESSED.items() if block.startswith(magic)), None)
    if program:
        raise ValueError(
            f"it is compressed by {program}, so that an image in it can only be read after all bytes before it: "
            f"decompress it once, {program} -d, and name the .tar"
        )


def _damaged(at: int, start: int) -> str:
    if at == start:
        return f"it is no tar file, is compressed, or its header at byte {at} is damaged"
    return f"the header at byte {at} is damaged, and all members from there on are lost"


def _check_end(file: IO[bytes], at: int, start: int, end: int) -> None:
    """Raises ValueError unless nothing but zeros, at least a block of them, lies in bytes `at` to `end` of a file."""
    file.seek(at)
    block = file.read(max(0, min(BLOCK, end - at)))
    if len(block) < BLOCK and at == start:
        raise ValueError(f"{_damaged(at, start)}: it ends at byte {at + len(block)}; {COPY_AGAIN}")
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


class Entry(NamedTuple):
    """A member, as the directory describes it."""

    raw: bytes  # its name
    name: str
    flags: int
    method: int
    checksum: int  # CRC-32 of the contents
    length: int  # in bytes, as it is stored
    inflated: int  # in bytes
    at: int  # of its header, in the file
    is_link: bool  # whether its contents are the path of another file


def zip_members(file: IO[bytes], size: int, ledger: Ledger) -> Iterator[Member]:
    """Yields the files of a zip file of `size` bytes; counts links.

    Raises OSError, and ValueError that names the member or the byte if the zip file is cut off or damaged, or a member
    is encrypted or compressed by another method than deflate.
    """
    number = file.fileno()
    try:
        entries = list(_entries(*_directory(number, size)))
    except (ValueError, struct.error) as error:
        why = "it is no zip file, was cut off, or the list of its members at its end is damaged"
        raise ValueError(f"{why}: {error}; it has {size} bytes; {COPY_AGAIN}") from error
    for entry in entries:
        if entry.is_link:
            ledger.add("links", entry.name)
        elif not entry.name.endswith("/"):
            yield _located(number, entry, size)


def _directory(file: int, size: int) -> tuple[bytes, int]:
    """Returns the directory, and how many bytes stand before the first that offsets count, e.g. of a program.

    Raises ValueError if there is none; OSError.
    """
    start = max(size - END.size - LONGEST_COMMENT, 0)
    tail = os.pread(file, size - start, start)
    places = [
        match.start() for match in re.finditer(re.escape(b"PK\5\6"), tail) if match.start() + END.size <= len(tail)
    ]
    if not places:
        raise ValueError("it has no record of its end")
    # Its comment, which lasts to the end, may hold the signature too.
    at = next((at for at in places if at + END.size + END.unpack_from(tail, at)[-1] == len(tail)), places[-1])
    _, disk, _, length, offset, _ = END.unpack_from(tail, at)
    if disk not in (0, IN_64_BITS):
        raise ValueError(f"it is part {disk + 1} of a split zip file: join the parts, zip -s 0 a.zip --out whole.zip")
    end = start + at
    if end >= LOCATOR.size + END64.size:
        record = os.pread(file, END64.size + LOCATOR.size, end - LOCATOR.size - END64.size)
        if record.startswith(b"PK\6\6") and record.startswith(b"PK\6\7", END64.size):
            _, _, length, offset = END64.unpack_from(record)
            end -= LOCATOR.size + END64.size
    shift = end - length - offset
    if shift < 0:
        raise ValueError(f"the directory has {length} bytes from byte {offset} on, and should end at byte {end}")
    return os.pread(file, length, end - length), shift


def _entries(directory: bytes, shift: int) -> Iterator[Entry]:
    """Yields the entries of a directory; raises ValueError, or struct.error, if it is damaged."""
    at = 0
    while at < len(directory):
        signature, system, flags, method, checksum, length, inflated, *rest = ENTRY.unpack_from(directory, at)
        name_length, extra, comment, attributes, header = rest
        if signature != b"PK\1\2":
            raise ValueError(f"byte {at} of the directory does not begin an entry")
        at += ENTRY.size
        raw = directory[at : at + name_length]
        at += name_length
        extras = directory[at : at + extra]
        if IN_EXTRA in (length, inflated, header):
            inflated, length, header = _in_64_bits(extras, (inflated, length, header))
        at += extra + comment
        if at > len(directory):
            raise ValueError("it ends within an entry")
        name, is_link = _name_of(raw, system, flags, extras), system in (UNIX, MACOS) and attributes >> 28 == LINK
        yield Entry(raw, name, flags, method, checksum, length, inflated, header + shift, is_link)


def _name_of(raw: bytes, system: int, flags: int, extra: bytes) -> str:
    """Returns a member's name: in UTF-8 if the entry or an extra field says so, or as its system writes names.

    zip on Linux and macOS writes UTF-8 and does not say so; old programs of Windows write code page 437, some of them
    with backslashes between folders.
    """
    at = _extra_at(extra, EXTRA_NAME)
    if flags & UTF8:
        name = raw.decode("utf-8")
    elif at >= 0 and struct.unpack_from("<xL", extra, at)[0] == zlib.crc32(raw):
        (length,) = struct.unpack_from("<H", extra, at - 2)
        name = extra[at + 5 : at + length].decode("utf-8")
    else:
        try:
            name = raw.decode("utf-8" if system in (UNIX, MACOS) else "cp437")
        except UnicodeDecodeError:
            name = raw.decode("cp437")
    return name.replace("\\", "/") if system == DOS else name


def _extra_at(extra: bytes, wanted: int) -> int:
    """Returns where the contents of an extra field of a kind begin; -1 if there is none."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == wanted:
            return at + 4
        at += 4 + length
    return -1


def _in_64_bits(extra: bytes, numbers: tuple[int, ...]) -> Iterator[int]:
    """Yields the numbers, each that is IN_EXTRA as the extra field has it; raises ValueError if it is not there."""
    at = _extra_at(extra, EXTRA64)
    if at < 0:
        raise ValueError("an entry without its sizes")
    for number in numbers:
        if number == IN_EXTRA:
            (number,) = struct.unpack_from("<Q", extra, at)
            at += 8
        yield number


def _located(file: int, entry: Entry, size: int) -> Member:
    """Returns where a member's contents are, by its own header; raises ValueError if that does not match the entry."""
    raw, name, flags, method, checksum, length, inflated, at, _ = entry
    if flags & ENCRYPTED:
        raise ValueError(f"{name} is encrypted: unpack it with its password, and read the files")
    if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        by = NAMES.get(method, f"method {method}")
        raise ValueError(f"{name} is compressed by {by}; accepted: stored and deflated: pack it with zip -0")
    block = os.pread(file, LOCAL.size + len(raw), at) if at < size else b""
    if not block.startswith(b"PK\3\4") or not block.endswith(raw) or len(block) != LOCAL.size + len(raw):
        raise ValueError(f"the header of {name} at byte {at} is damaged; {COPY_AGAIN}")
    _, name_length, extra = LOCAL.unpack_from(block)
    if name_length != len(raw):
        raise ValueError(f"the header of {name} at byte {at} is damaged; {COPY_AGAIN}")
    offset = at + LOCAL.size + name_length + extra
    if offset + length > size:
        raise ValueError(f"it ends at byte {size}, within the member {name}; {COPY_AGAIN}")
    if method == zipfile.ZIP_DEFLATED:
        return Member(name, offset, length, inflated, checksum) if inflated else Member(name, offset, 0)
    if length != inflated:
        raise ValueError(f"the sizes of {name}, {length} and {inflated} bytes, differ; {COPY_AGAIN}")
    return Member(name, offset, length)
