"""Packed data as training reads it: which record is where, in a few arrays, and the shards that hold them.

A record is read in one call, by shard, offset and length: nothing is parsed, and any record is as near as any other.
"""

import os
import resource
import threading
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from tfpipe.errors import ConfigError

Kind = Literal["original", "crops", "raw"]
# Descriptors that a process needs besides those of the shards.
SPARE_FILES = 256


class Records(NamedTuple):
    """Where each record is, in the order of the images."""

    image: np.ndarray  # int32 [n]: number of the record's image, ascending
    label: np.ndarray  # int32 [n]: class number, or labels.BY_OBJECT
    shard: np.ndarray  # int32 [n]
    offset: np.ndarray  # int64 [n], in bytes: of the image itself, whatever is around it
    length: np.ndarray  # int64 [n], in bytes

    def offsets(self, images: int) -> np.ndarray:
        """int64 [images + 1]: where each image's records start, and where the last one's end."""
        return np.searchsorted(self.image, np.arange(images + 1))


@dataclass(frozen=True, eq=False)
class Packed:
    """Where a split's images or crops are."""

    kind: Kind
    """"original": files as they were, one record an image. "crops": crops as JPEGs. "raw": crops as pixels."""
    shards: list[str]
    """Paths."""
    records: Records
    jpeg: dict[str, Any] | None = None
    """How crops were encoded; None where they were not."""

    @property
    def has_crops(self) -> bool:
        """Whether records are crops, not files."""
        return self.kind != "original"

    def contents(self, record: int) -> bytes:
        """A record, read alone; shorter where its shard ends within it."""
        with open(self.shards[self.records.shard[record]], "rb") as file:
            file.seek(int(self.records.offset[record]))
            return file.read(int(self.records.length[record]))

    def name(self, record: int) -> str:
        """`record`, for a message: where it is."""
        shard = self.records.shard[record]
        before = (self.records.shard == shard) & (self.records.offset < self.records.offset[record])
        return f"record {np.count_nonzero(before)} of {self.shards[shard]}"


class Files:
    """The shards of a split, each opened when first asked for."""

    def __init__(self, paths: list[str]) -> None:
        allow_open(len(paths))
        self._paths, self._lock = paths, threading.Lock()
        self._opened: list[int | None] = [None] * len(paths)

    def __getitem__(self, shard: int) -> int:
        """The descriptor of a shard.

        Raises:
            OSError: it cannot be opened; names it.
        """
        found = self._opened[shard]
        if found is None:
            with self._lock:
                found = self._opened[shard]
                if found is None:
                    found = self._opened[shard] = os.open(self._paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        return found

    def __del__(self) -> None:
        for file in filter(None, getattr(self, "_opened", ())):
            os.close(file)


def allow_open(files: int) -> None:
    """Raises the number of files that this process may have open, where `files` more need it.

    Raises:
        ConfigError: so many are not allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(f"{files} shards are to be open at once, but this process may open {hard} files: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
