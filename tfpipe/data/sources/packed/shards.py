"""Locates and opens packed data for training: arrays with the location of every record, and the shards' descriptors.

A record is read in one call, by shard, offset and length: nothing is parsed, and random access to any record is O(1).
"""

import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from tfpipe.data.catalog.paths import FileList
from tfpipe.errors import ConfigError

Kind = Literal["original", "crops", "raw"]
# File descriptors that a process needs in addition to those of the shards.
SPARE_FILES = 256
CUT = "the shard ends within it"


class Records(NamedTuple):
    """Location of each record, sorted by image."""

    image: np.ndarray  # int32 [n]: number of the record's image, ascending
    label: np.ndarray  # int32 [n]: class number, or labels.BY_OBJECT
    shard: np.ndarray  # int32 [n]: number of the shard
    offset: np.ndarray  # int64 [n], in bytes: start of the image's own bytes within the shard
    length: np.ndarray  # int64 [n], in bytes

    def offsets(self, images: int) -> np.ndarray:
        """Returns int64 [images + 1]: index of each image's first record; the last value is the number of records."""
        return np.searchsorted(self.image, np.arange(images + 1))


@dataclass(frozen=True, eq=False)
class Shards:
    """Location of a split's packed images or crops."""

    kind: Kind
    """"original": unchanged image files, one record per image. "crops": crops as JPEGs. "raw": crops as pixels."""
    paths: list[str]
    """Paths of the shards."""
    records: Records
    jpeg: dict[str, Any] | None = None
    """JPEG quality and subsampling of the crops; None for other kinds."""

    def contents(self, record: int) -> bytes:
        """Reads a single record; returns fewer bytes if its shard ends within it."""
        with open(self.paths[self.records.shard[record]], "rb") as file:
            file.seek(int(self.records.offset[record]))
            return file.read(int(self.records.length[record]))

    def places(self, records: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Yields the shard, offset and length of each of `records` (int64 [k])."""
        _, _, shards, offsets, lengths = (column[records] for column in self.records)
        return zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True)

    def name(self, record: int, images: FileList) -> str:
        """Returns the name of `record` for a message: its number within its shard, the shard, and its image's path."""
        shard = self.records.shard[record]
        before = (self.records.shard == shard) & (self.records.offset < self.records.offset[record])
        return f"record {np.count_nonzero(before)} of {self.paths[shard]}, of {images[int(self.records.image[record])]}"


class OpenShards:
    """The open files of a split's shards; each is opened on first use."""

    def __init__(self, paths: list[str]) -> None:
        allow_open(len(paths))
        self._paths, self._lock = paths, threading.Lock()
        self._opened: list[int | None] = [None] * len(paths)

    def __getitem__(self, shard: int) -> int:
        """Returns the file descriptor of a shard. Raises OSError if the shard cannot be opened; the error names it."""
        descriptor = self._opened[shard]
        if descriptor is None:
            with self._lock:
                descriptor = self._opened[shard]
                if descriptor is None:
                    descriptor = self._opened[shard] = os.open(self._paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        return descriptor

    def __del__(self) -> None:
        for file in filter(None, getattr(self, "_opened", ())):
            os.close(file)


def allow_open(files: int) -> None:
    """Increases the limit of open files of this process, if necessary, so that it can open `files` more.

    Raises ConfigError if the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(f"{files} shards are to be open at once, but this process may open {hard} files: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
