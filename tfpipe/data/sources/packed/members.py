"""Lists the members of tar files, tar files within tar files, and zip files: name, offset and length of each.

Headers of tar files are read in C while they are ordinary, and by Python otherwise, in a few microseconds each. tarfile
takes several times that, mostly for facts that no reader of images uses. The members of a zip file are in the directory
at its end, of which zipfile makes an object for each, in three times the time.
"""

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.sources.packed.scan import COPY_AGAIN
from tfpipe.data.sources.packed.shards import inflate
from tfpipe.data.sources.packed.tar import check_end, check_plain
from tfpipe.native import core

BLOCK = 512
ZEROS = bytes(BLOCK)
EIGHTS = 8 ** np.arange(5, -1, -1, dtype=np.int32)
# Types of a tar file's headers: files, folders, and headers that are about the next one.
FILES, HARD_LINK, SYMBOLIC_LINK, FOLDER, NO_CONTENTS = b"0\x007", b"1", b"2", b"5", b"123456"
LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL, SPARSE = b"L", b"K", b"xX", b"g", b"S"
# Headers whose checksums are compared at a time.
CHECKED = 4096
# Members that a call of C must find for the next one to follow at once: it costs as much as that many headers here.
FEWEST = 8
# Longest name, and pax header, that is read.
MOST_BYTES = 2**20
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


class TarHeader(NamedTuple):
    """A header of a tar file that is no header about another one."""

    name: str
    kind: bytes  # the header's type
    target: str  # path of the file that a link is to
    offset: int  # of the first byte after it
    length: int  # in bytes


class Ordinary(NamedTuple):
    """Files of a tar file whose headers are ordinary."""

    names: bytes  # each with a zero byte after it
    extents: np.ndarray  # int64 [n, 2]: offset of the first byte, and length, in bytes


def read_member(file: int, member: Member) -> bytes:
    """Returns the contents of a member of the archive with this file descriptor.

    Raises ValueError if the archive ends within it, or it cannot be inflated; OSError.
    """
    contents = os.pread(file, member.length, member.offset)
    if len(contents) != member.length:
        raise ValueError(f"the archive ends within {member.name}; {COPY_AGAIN}")
    return inflate(contents, member.inflated, member.checksum) if member.inflated else contents


def tar_members(path: Path, start: int, end: int, ledger: Ledger, *, follow: bool = True) -> Iterator[Member]:
    """Yields the files of a tar file that lies in bytes `start` to `end` of the file `path`; counts what is none.

    A hard link is the file that it links to, and comes last; without `follow` it is left out.

    Raises OSError, and ValueError that names the byte if the tar file is cut off or damaged.
    """
    links: list[TarHeader] = []
    with path.open("rb") as file:
        check_plain(os.pread(file.fileno(), BLOCK, start))
        for header in _headers(file.fileno(), start, end):
            if isinstance(header, Ordinary):
                yield from map(Member, _text(header.names).split("\0"), *header.extents.T.tolist())
            elif header.kind in FILES and not header.name.endswith("/"):
                yield Member(header.name, header.offset, header.length)
            elif header.kind == HARD_LINK:
                links.append(header)
            elif header.kind != FOLDER and header.kind not in FILES:
                ledger.add("links" if header.kind == SYMBOLIC_LINK else "devices and pipes", header.name)
        if links and follow:
            yield from _linked(path, start, end, links, ledger)


def _linked(path: Path, start: int, end: int, links: Sequence[TarHeader], ledger: Ledger) -> Iterator[Member]:
    """Yields the files that hard links of a tar file are, by reading it again; counts links to what is no file."""
    wanted, names = {link.target for link in links}, {link.name for link in links}
    members = tar_members(path, start, end, Ledger(), follow=False)
    files = {member.name: member for member in members if member.name in wanted - names}
    for link in links:
        if link.target in files:
            yield files[link.target]._replace(name=link.name)
        else:
            ledger.add("links", link.name)


def _headers(file: int, start: int, end: int) -> Iterator[TarHeader | Ordinary]:
    """Yields the headers of a tar file, ordinary ones together; each is checked before it is yielded."""
    library, at, blocks, headers = core(), start, list[tuple[int, bytes]](), list[TarHeader]()
    try:
        about: dict[str, str] = {}
        for_all: dict[str, str] = {}
        pause = left = 0  # headers between two calls of C, which finds none between those that are about others
        while True:
            if not about and not for_all and not left:
                _check(blocks)
                yield from headers
                blocks, headers = [], []
                names, extents, at = library.tar(file, at, end)
                yield Ordinary(names, extents)
                left = pause = 0 if len(extents) >= FEWEST else min(2 * pause + 1, CHECKED)
            left -= left > 0
            if at + BLOCK > end or (block := os.pread(file, BLOCK, at)) == ZEROS:
                break
            blocks.append((at, block))
            kind = block[156:157]
            is_about_next = kind in PAX or kind in (LONG_NAME, LONG_LINK, PAX_GLOBAL)
            length = int((not is_about_next and about.get("size")) or _number(block[124:136]))
            length = 0 if kind in NO_CONTENTS else length
            offset, at = at + BLOCK, at + BLOCK + -(-length // BLOCK) * BLOCK
            if offset + length > end or length < 0:
                raise ValueError(f"it ends at byte {end}, within the member {_name(block)!a}; {COPY_AGAIN}")
            if is_about_next:
                if length > MOST_BYTES:
                    raise ValueError(f"the header at byte {offset - BLOCK} states {length} bytes; {COPY_AGAIN}")
                contents = os.pread(file, length, offset)
                if kind in (LONG_NAME, LONG_LINK):
                    about["path" if kind == LONG_NAME else "linkpath"] = _text(contents.partition(b"\0")[0])
                elif kind == PAX_GLOBAL:
                    for_all |= _records(contents)
                else:
                    about |= _records(contents)
                continue
            facts = {**for_all, **about} if for_all else about
            if kind == SPARSE or any(key.startswith("GNU.sparse.") for key in facts):
                raise ValueError(f"{_name(block)} is stored as a sparse file, in pieces: write it without --sparse")
            target = facts.get("linkpath") or _text(block[157:257].partition(b"\0")[0])
            headers.append(TarHeader(facts.get("path") or _name(block), kind, target, offset, length))
            about = {}
            if len(headers) >= CHECKED:
                _check(blocks)
                yield from headers
                blocks, headers = [], []
    except ValueError:
        _check(blocks)  # a damaged header leads to other errors after it
        raise
    _check(blocks)
    if about:
        raise ValueError(f"it ends at byte {at}, after a header that is about the next one; {COPY_AGAIN}")
    with open(file, "rb", closefd=False) as whole:
        check_end(whole, at, end)
    yield from headers


def _number(field: bytes) -> int:
    """Returns a number in octal, or in binary if it is larger; raises ValueError."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return _text(name)


def _records(contents: bytes) -> dict[str, str]:
    """Returns the records "length key=value" of a pax header; raises ValueError if they are damaged."""
    records, at = dict[str, str](), 0
    while at < len(contents) and contents[at]:
        length = int(contents[at : contents.index(b" ", at)])
        if length < 5 or contents[at + length - 1 : at + length] != b"\n":
            raise ValueError(f"a pax header is damaged; {COPY_AGAIN}")
        key, _, value = contents[contents.index(b" ", at) + 1 : at + length - 1].partition(b"=")
        records[_text(key)] = _text(value)
        at += length
    return records


def _check(blocks: Sequence[tuple[int, bytes]]) -> None:
    """Raises ValueError for the first of a tar file's headers that does not match its checksum."""
    if not blocks:
        return
    headers = np.frombuffer(b"".join(block.ljust(BLOCK, b"\0") for _, block in blocks), np.uint8).reshape(-1, BLOCK)
    digits = headers[:, 148:154] - np.uint8(ord("0"))
    totals = headers.sum(axis=1, dtype=np.int32) - headers[:, 148:156].sum(axis=1, dtype=np.int32) + 8 * ord(" ")
    usual = (digits < 8).all(axis=1) & (digits @ EIGHTS == totals)
    for number in np.flatnonzero(~usual).tolist():
        at, block = blocks[number]
        rest = np.frombuffer(block, np.int8)
        # Some old programs add signed bytes.
        signed = int(rest.sum(dtype=np.int64) - rest[148:156].sum(dtype=np.int64)) + 8 * ord(" ")
        try:
            stated = _number(block[148:156])
        except (ValueError, IndexError):
            stated = -1
        if stated not in (int(totals[number]), signed):
            raise ValueError(
                f"the header at byte {at} does not match its checksum: it was damaged, or the file is no tar file; "
                f"{COPY_AGAIN}"
            )


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


def zip_members(path: Path, size: int, ledger: Ledger) -> Iterator[Member]:
    """Yields the files of a zip file of `size` bytes; counts links.

    Raises OSError, and ValueError that names the member or the byte if the zip file is cut off or damaged, or a member
    is encrypted or compressed by another method than deflate.
    """
    with path.open("rb") as file:
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
