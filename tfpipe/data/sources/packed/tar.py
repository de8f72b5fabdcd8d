"""Reads the samples of a WebDataset's tar shard, and makes sure that the shard is whole.

A sample is the members that follow each other and share a name up to its first dot: n01/7.jpg with n01/7.cls, 7.json or
7.xml. The rest of the name is the member's ending: 7.seg.png ends in "seg.png", and is no image of the sample.
"""

import sys
import tarfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import groupby
from typing import IO, NamedTuple

from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.sources.packed.scan import COPY_AGAIN

# Endings of images, the one to use first: a sample has one image.
IMAGES = tuple(suffix.removeprefix(".") for suffix in SUFFIXES)
# Endings of labels and boxes; that of a mask is in the config.
NOTES = ("cls", "json", "xml")
BLOCK = tarfile.BLOCKSIZE
# First bytes of compressed files, by the program that decompresses them.
COMPRESSED = {
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "zstd": b"\x28\xb5\x2f\xfd",
    "lz4": b"\x04\x22\x4d\x18",
}
# Bytes of zeros that are compared at a time.
SOME = 2**20


class Sample(NamedTuple):
    """An image of a tar shard, and the members next to it."""

    image: tarfile.TarInfo
    notes: dict[str, tarfile.TarInfo]  # by ending, in the order of the shard


def check_plain(start: bytes) -> None:
    """Raises ValueError if a file that begins so is compressed, whatever its name."""
    program = next((name for name, magic in COMPRESSED.items() if start.startswith(magic)), None)
    if program:
        raise ValueError(
            f"it is compressed by {program}, so that an image in it can only be read after all bytes before it: "
            f"decompress it once, {program} -d, and name the .tar"
        )


@contextmanager
def opened_tar(file: IO[bytes], size: int) -> Iterator[tarfile.TarFile]:
    """Opens a tar file of `size` bytes for reading; raises ValueError, here and within `with`, if it is damaged."""
    check_plain(file.read(BLOCK))
    file.seek(0)
    try:
        tar = tarfile.open(fileobj=file, mode="r:")
    except tarfile.TarError as error:
        why = "it is no tar file, is compressed, or its header at byte 0 is damaged"
        raise ValueError(f"{why}: {error}; {COPY_AGAIN}") from error
    with tar:
        try:
            yield tar
        except tarfile.TarError as error:
            fault = f"it ends at byte {size}, within a member" if tar.offset > size else f"damaged at byte {tar.offset}"
            raise ValueError(f"{fault}: {error}; {COPY_AGAIN}") from error


def samples(tar: tarfile.TarFile, notes: Collection[str], ledger: Ledger) -> Iterator[Sample]:
    """Yields the samples that have an image; counts in `ledger` the members that are neither it nor end in `notes`.

    Raises tarfile.TarError, or ValueError if samples that follow each other have one name and other members, or a
    file's bytes do not lie together.
    """
    for key, members_of_key in groupby(_files(tar, ledger), lambda member: split_name(member.name)[0]):
        for members in _of_one_name(key, list(members_of_key)):
            image = next((members[ending] for ending in IMAGES if ending in members), None)
            if image is None:
                ledger.add("samples without an image", key)
            for ending, member in members.items():
                if image is not None and member.sparse is not None and (member is image or ending in notes):
                    raise ValueError(f"{member.name} is stored as a sparse file, in pieces: write it without --sparse")
                if ending not in notes and member is not image:
                    ledger.add(f".{ending}" if ending else "names without an ending", member.name)
            if image is not None:
                yield Sample(image, {ending: member for ending, member in members.items() if ending in notes})


def _files(tar: tarfile.TarFile, ledger: Ledger) -> Iterator[tarfile.TarInfo]:
    """Yields the members that are files; a hard link is the file that it links to."""
    files: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        if member.name.rpartition("/")[2].startswith("."):
            if not member.isdir():
                ledger.add("names that begin with a dot", member.name)
        elif member.isfile():
            files[member.name] = member
            yield member
        elif member.islnk() and member.linkname in files:
            linked = copy(files[member.linkname])
            linked.name = member.name
            yield linked
        elif not member.isdir():
            ledger.add("links" if member.issym() or member.islnk() else "devices and pipes", member.name)


def split_name(name: str) -> tuple[str, str]:
    """Returns a member's name up to the first dot of its base name, and the rest, in lower case."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _of_one_name(key: str, members: list[tarfile.TarInfo]) -> Iterator[dict[str, tarfile.TarInfo]]:
    """Yields the members of each sample by ending; several samples of one name have the same endings in one order."""
    endings = [split_name(member.name)[1] for member in members]
    length = next((number for number, ending in enumerate(endings) if ending in endings[:number]), len(endings))
    if endings != endings[:length] * (len(endings) // length):
        raise ValueError(
            f"several samples in a row are named {key}, and it is not clear which of the members "
            f"{', '.join(f'.{ending}' for ending in endings[:6])} belong together: give each sample a name of its own"
        )
    for start in range(0, len(members), length):
        yield dict(zip(endings[:length], members[start : start + length], strict=True))


def check_end(file: IO[bytes], end: int, stop: int = sys.maxsize) -> None:
    """Raises ValueError unless nothing but zeros, at least a block of them, lies in bytes `end` to `stop` of a file.

    tarfile ends without an error there if the shard was cut off, or the next header is damaged. Raises OSError.
    """
    file.seek(end)
    block = file.read(min(tarfile.BLOCKSIZE, stop - end))
    if len(block) < tarfile.BLOCKSIZE:
        where = "within a header" if any(block) else "without the zeros that end a tar file"
        raise ValueError(f"it was cut off: it ends at byte {end + len(block)}, {where}; {COPY_AGAIN}")
    if any(block):
        raise ValueError(f"the header at byte {end} is damaged, and all members from there on are lost; {COPY_AGAIN}")
    at = end + len(block)
    while block := file.read(min(SOME, stop - at)):
        rest = block.lstrip(b"\0")
        if rest:
            raise ValueError(
                f"zeros at byte {end} end it, but other bytes follow from byte {at + len(block) - len(rest)} on: a "
                f"header was overwritten, or tar files were joined by cat instead of tar --concatenate; {COPY_AGAIN}"
            )
        at += len(block)
