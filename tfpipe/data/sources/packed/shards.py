"""Locates packed data for training: arrays with the location of every record.

A record is read in one call, by shard, offset and length: nothing is parsed, and random access to any record is O(1).
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.headers import START, Header, header_of, jpeg_header
from tfpipe.data.sources.remote.fetcher import FetchError
from tfpipe.data.sources.remote.ranges import Extent, RemoteFiles
from tfpipe.errors import ConfigError
from tfpipe.util.open_files import OpenFiles
from tfpipe.util.retry import retried

Kind = Literal["original", "coefficients", "crops", "raw"]
WHOLE: tuple[Kind, ...] = ("original", "coefficients")  # those of whole images
CUT = "the shard ends within it"
COPY_AGAIN = "copy it again, or write it again"
# Records that are compared with their shards at a time, so that what is made of them stays in the CPU's cache.
CHUNK = 2**16


class Records(NamedTuple):
    """Location of each record, sorted by image."""

    image: np.ndarray  # int32 [n]: number of the record's image, ascending
    label: np.ndarray  # int32 [n]: class number, or labels.BY_OBJECT
    shard: np.ndarray  # int32 [n]: number of the shard
    offset: np.ndarray  # int64 [n], in bytes: start of the image's own bytes within the shard
    length: np.ndarray  # int64 [n], in bytes


class DeflatedRecords(NamedTuple):
    """The records of zip files that are inflated when they are read."""

    sizes: np.ndarray  # int64 [n]: bytes of each record when inflated; 0 if it is not deflated
    checksums: np.ndarray  # int64 [n]: CRC-32 of these


@dataclass(frozen=True, eq=False)
class Shards:
    """Location of a split's packed images or crops."""

    kind: Kind
    """"original": unchanged image files, one record per image. "coefficients": the same, but JPEGs' coefficients
    (native/codec/stored.c). "crops": crops as JPEGs. "raw": crops as pixels."""
    paths: list[str]
    """Paths or URLs of the shards."""
    records: Records
    jpeg: dict[str, Any] | None = None
    """JPEG quality and subsampling of the crops; None for other kinds."""
    remote: RemoteFiles | None = None
    """Reads the shards if they are behind URLs."""
    deflated: DeflatedRecords | None = None
    """The records that are deflated; None if none is."""
    masks: "Shards | None" = None
    """Location of the images' masks, if they are read."""

    def whole(self, record: int, contents: bytes) -> bytes:
        """Returns a record from its bytes in the shard, inflated if it is deflated.

        Raises ValueError if bytes are missing, or cannot be inflated to what they were.
        """
        if len(contents) != self.records.length[record]:
            raise ValueError(CUT)
        if self.deflated is None or not self.deflated.sizes[record]:
            return contents
        return inflate(contents, int(self.deflated.sizes[record]), int(self.deflated.checksums[record]))

    def header(self, record: int, name: str) -> Header:
        """Returns the header of an image, of which only the start is read if that has it; errors name `name`.

        Raises OSError or ValueError.
        """
        if self.deflated is None or not self.deflated.sizes[record]:
            (place,) = self.places(np.array([record]))
            if header := jpeg_header(_read(self.paths[place[0]], place[1], min(place[2], START))):
                return header
        return header_of(self.contents(record), name)

    def contents(self, record: int) -> bytes:
        """Reads a single record; raises OSError, or ValueError if it cannot be fetched or is not whole."""
        (place,) = self.places(np.array([record]))
        if self.remote is None:
            return self.whole(record, _read(self.paths[place[0]], *place[1:]))
        (contents,) = self.remote.read([Extent(*place)])
        if isinstance(contents, FetchError):
            raise ValueError(str(contents))
        return self.whole(record, contents)

    def check_places(self, sizes: Sequence[int], images: FileList, remedy: str, length: int | None = None) -> None:
        """Compares the place of each record with its shard, of which `sizes` has the bytes.

        It takes 0.1 s for 14 million records. `length` is the one that all records have, one after the other in each
        shard, if they are pixels.

        Raises ConfigError, which names the first record beyond its shard and ends with `remedy`: every reader takes the
        places as they are, those that map the shards without another look.
        """
        ends = np.array(sizes, np.int64)
        for start in range(0, len(self.records.shard), CHUNK):
            shard, offset, lengths = (column[start : start + CHUNK] for column in self.records[2:])
            exists = (shard >= 0) & (shard < len(ends))
            room = ends[np.where(exists, shard, 0)] if len(ends) else np.zeros(len(shard), np.int64)
            # Without a sum, which could overflow.
            right = exists & (offset >= 0) & (lengths >= 0) & (offset <= room) & (lengths <= room - offset)
            if length is not None:
                right &= (lengths == length) & ((offset - self.records.offset[0]) % length == 0)
            if not right.all():
                raise ConfigError(f"{self._place(start + int(np.argmin(right)), ends, length, images)}; {remedy}")

    def _place(self, record: int, ends: np.ndarray, length: int | None, images: FileList) -> str:
        """Returns what is wrong with the place of a record."""
        image, _, shard, offset, size = (int(column[record]) for column in self.records)
        name = images[image] if 0 <= image < len(images) else f"image {image}"
        if not 0 <= shard < len(self.paths):
            return f"the record of {name} is in shard {shard}, and there are {len(self.paths)}, counted from 0"
        place = f"{self.paths[shard]}: the record of {name} is {size} bytes from byte {offset} on"
        if length is not None and 0 <= offset <= ends[shard] - length:
            return f"{place}, and pixels are {length} bytes each, height x width x channels, one after the other"
        return f"{place}, and the shard has {ends[shard]}"

    def places(self, records: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Yields the shard, offset and length of each of `records` (int64 [k])."""
        _, _, shards, offsets, lengths = (column[records] for column in self.records)
        return zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True)

    def reader(self, images: FileList) -> Callable[[np.ndarray], list[bytes]]:
        """Returns the function that reads some records (int64 [k]), those behind URLs all together.

        It raises a ValueError that names the record, of one of `images`, that fails.
        """
        files = OpenFiles(self.paths if self.remote is None else [])

        def contents_of(places: list[tuple[int, int, int]]) -> Iterable[bytes | FetchError]:
            if self.remote is not None:
                return self.remote.read([Extent(*place) for place in places])
            return (files.read(shard, length, offset) for shard, offset, length in places)

        def read(records: np.ndarray) -> list[bytes]:
            whole: list[bytes] = []
            try:
                for contents in contents_of([*self.places(records)]):
                    if isinstance(contents, FetchError):
                        raise contents
                    whole.append(self.whole(int(records[len(whole)]), contents))
            except (OSError, ValueError, FetchError) as error:
                raise ValueError(f"{self.name(int(records[len(whole)]), images)}: {error}") from None
            return whole

        return read

    def name(self, record: int, images: FileList) -> str:
        """Returns the name of `record` for a message: its number within its shard, the shard, and its image's path."""
        shard = self.records.shard[record]
        before = (self.records.shard == shard) & (self.records.offset < self.records.offset[record])
        return f"record {np.count_nonzero(before)} of {self.paths[shard]}, of {images[int(self.records.image[record])]}"


def inflate(contents: bytes, size: int, checksum: int) -> bytes:
    """Returns deflated bytes inflated; raises ValueError unless they are of this size and CRC-32."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(contents, size + 1)
    except zlib.error as error:
        raise ValueError(f"cannot inflate it: {error}; copy the archive again") from error
    if len(inflated) != size or zlib.crc32(inflated) != checksum:
        raise ValueError("it does not match its checksum when inflated: it was damaged; copy the archive again")
    return inflated


@retried
def _read(path: str, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)
