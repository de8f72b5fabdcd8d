"""Blocks of large remote files in sparse local files, shared by the processes of a node.

CACHE/shards/KEY/0, 1 ...    the files, with holes for blocks that are not there
CACHE/shards/KEY/blocks      uint32 for each block of all files: its checksum, 0 while it is not there
CACHE/shards/KEY/used        locked by every process that uses the folder
"""

import fcntl
import logging
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import Stamp
from tfpipe.util.locks import waiting_lock
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.open_files import OpenFiles

logger = logging.getLogger(__name__)

# Bytes per block, which one request brings. Larger ones are faster still (profiles/sources.py), but 64 requests at once
# hold that many blocks in memory, and the first batches of shuffled records wait for all of theirs.
BLOCK = 2**22
FOLDER = "shards"
FORMAT = 1


class BlockCache:
    """A cache of blocks of certain files; keeps those that come first, as far as there is room.

    Every record is read equally often, so that nothing is gained by another choice. A block counts as there once its
    checksum is written, after the block. Each process compares it when it first reads a block, since a crash of the
    node may have lost one.
    """

    def __init__(self, folder: Path, files: Sequence[tuple[str, Stamp]], options: str, limit: int) -> None:
        """Opens the cache of files, `limit` bytes at most; raises OSError.

        URLs, stamps and `options` of the file system distinguish them from other files, and from other versions of
        them. Copies of other files that no process uses are deleted if they take the room.
        """
        made_from = MadeFrom(FORMAT, files, {"data.remote.options": options, "bytes of a block": BLOCK})
        self._folder, self._limit = folder / FOLDER / made_from.digest()[:16], limit
        self._sizes = sizes = [stamp.size or 0 for _, stamp in files]
        counts = [-(-size // BLOCK) for size in sizes]
        self._first = np.cumsum([0, *counts])
        with waiting_lock(_made(folder / FOLDER) / "lock"):
            self._folder.mkdir(exist_ok=True)
            self._used = open(self._folder / "used", "a")
            fcntl.flock(self._used, fcntl.LOCK_SH)
            self._limit -= _make_room(folder / FOLDER, self._folder, limit - sum(sizes))
            self._create(int(self._first[-1]))
        self._sums = np.memmap(self._folder / "blocks", np.uint32, "r+")
        self._checked = np.zeros(len(self._sums), bool)
        self._files = OpenFiles([str(self._folder / str(number)) for number in range(len(sizes))], os.O_RDWR)
        self._full = False

    def blocks(self, file: int, offset: int, length: int) -> range:
        """Returns the numbers of the blocks that hold bytes of a file."""
        first = int(self._first[file])
        return range(first + offset // BLOCK, first + -(-(offset + length) // BLOCK))

    def span(self, block: int) -> tuple[int, int, int]:
        """Returns the file of a block, and its first byte and its end there."""
        file = int(np.searchsorted(self._first, block, side="right")) - 1
        start = (block - int(self._first[file])) * BLOCK
        return file, start, min(start + BLOCK, self._sizes[file])

    def has(self, block: int) -> bool:
        """Returns whether a block is there and intact."""
        if not self._checked[block] and self._sums[block]:
            file, start, end = self.span(block)
            self._checked[block] = _sum(os.pread(self._files[file], end - start, start)) == self._sums[block]
            if not self._checked[block]:
                self._sums[block] = 0
        return bool(self._checked[block])

    def has_room(self, coming: int = 0) -> bool:
        """Returns whether one more block may be kept, besides `coming` ones."""
        return not self._full and (np.count_nonzero(self._sums) + coming + 1) * BLOCK <= self._limit

    def keep(self, block: int, contents: bytes) -> None:
        """Keeps a block. A write error is only logged; nothing more is kept then."""
        file, start, _ = self.span(block)
        try:
            os.pwrite(self._files[file], contents, start)
        except OSError as error:
            self._full = True
            logger.warning("data.remote.cache: cannot write to %s: %s", self._folder, error.strerror)
            return
        self._sums[block], self._checked[block] = _sum(contents), True

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Returns bytes of blocks that are there; raises OSError."""
        return os.pread(self._files[file], length, offset)

    def _create(self, blocks: int) -> None:
        """Creates the files that are missing."""
        for number, size in enumerate(self._sizes):
            path = self._folder / str(number)
            if not path.exists():
                with atomic_write(path) as partial:
                    partial.touch()
                    os.truncate(partial, size)
        path = self._folder / "blocks"
        if not path.exists():
            with atomic_write(path) as partial:
                partial.write_bytes(bytes(4 * max(1, blocks)))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _make_room(folder: Path, own: Path, others: int) -> int:
    """Deletes the least recently used caches that no process uses until all but `own` take at most `others` bytes.

    Returns the bytes that are left of them.
    """
    found = sorted((path for path in folder.iterdir() if path.is_dir() and path != own), key=_last_use)
    sizes = [sum(file.stat().st_blocks * 512 for file in path.iterdir()) for path in found]
    left = sum(sizes)
    for path, size in zip(found, sizes, strict=True):
        if left <= max(0, others):
            break
        with open(path / "used", "a") as used:
            try:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(path)
        left -= size
    return left


def _last_use(path: Path) -> float:
    return (path / "blocks").stat().st_mtime if (path / "blocks").exists() else 0.0


def _sum(contents: bytes) -> int:
    # From 1, so that zeros do not match; 0 stands for a block that is not there.
    return zlib.crc32(contents, 1) or 1
