"""A cache of fetched files on a local disk, shared by a node's ranks; evicts the least recently used files first."""

import hashlib
import heapq
import json
import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from tfpipe.config import Remote
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import PARTIAL, atomic_write
from tfpipe.util.locks import waiting_lock

logger = logging.getLogger(__name__)

# Share of the limit that an eviction frees, since choosing the files reads the metadata of all.
FREED = 0.1
# Seconds: a file is marked as used at most this often.
MARK_EVERY_S = 60.0
# Length of the names of its folders; block_cache has one of its own beside them.
PREFIX = 2
# Bytes of the checksum that ends a file.
SEAL = 4


class Kept(NamedTuple):
    """A file of the cache: last use in seconds since 1970, path, size in bytes."""

    used: float
    path: str
    size: int


class FetchCache:
    """Files by URL, `data.remote.cache_gb` at most in total, shared by any number of processes.

    A file appears complete, by renaming. A writer holds a lock, which ends with its process, and first writes the new
    total to the file `size`. So a killed process leaves at most a partial file and a total that is too large; the next
    process that finds no room corrects both. A file ends with a checksum, since a crash of the node may leave it empty
    or full of zeros; fsync, which prevents that, takes 0.24 ms for a file of 110 kB on an SSD, the checksum 0.02 ms.
    """

    def __init__(self, config: Remote) -> None:
        """Opens the cache in the folder `config.cache`, which is created if missing.

        Raises ConfigError if the folder cannot be used.
        """
        assert config.cache is not None, "data.remote.cache is set"
        self._folder, self._limit = config.cache, int(config.cache_gb * 1e9)
        # Part of the key, since the same URL at another endpoint is another file.
        self._about = json.dumps(config.options, sort_keys=True, default=str)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with waiting_lock(self._folder / "size") as note:
                noted = self._noted(note)
                if noted is None or noted > self._limit:
                    self._note(note, self._make_room(0))
        except OSError as error:
            raise ConfigError(f"data.remote.cache: cannot use the folder {self._folder}: {error.strerror}") from error

    def find(self, url: str) -> bytes | None:
        """Returns the cached contents of a URL, None if it is not cached; b"" if there is no such file."""
        path = self._path(url)
        try:
            with open(path, "rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > MARK_EVERY_S:
                    os.utime(file.fileno())
                sealed = file.read()
            contents = sealed[:-SEAL]
            if sealed[-SEAL:] == _seal(contents):
                return contents
            os.unlink(path)  # damaged, or of a version without checksums: it is fetched again
        except OSError:  # not cached, or evicted meanwhile
            pass
        return None

    def keep(self, fetched: Mapping[str, bytes]) -> None:
        """Caches fetched files (contents by URL) as far as there is room. A write error is only logged."""
        if not fetched:
            return
        files = {self._path(url): contents + _seal(contents) for url, contents in fetched.items()}
        try:
            with waiting_lock(self._folder / "size") as note:
                self._write({path: contents for path, contents in files.items() if not os.path.exists(path)}, note)
        except OSError as error:
            logger.warning("data.remote.cache: cannot write to %s: %s", self._folder, error.strerror)

    def forget(self, urls: Iterable[str]) -> None:
        """Deletes the cached files of `urls`."""
        for url in urls:
            Path(self._path(url)).unlink(missing_ok=True)

    def _write(self, files: dict[str, bytes], note: IO[str]) -> None:
        size = self._noted(note)
        wanted = sum(map(len, files.values()))
        if size is None or size + wanted > self._limit:
            size = self._make_room(wanted)
            if size + wanted > self._limit:  # larger than the whole cache
                self._note(note, size)
                return
        self._note(note, size + wanted)
        for path, contents in files.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with atomic_write(Path(path)) as partial:
                partial.write_bytes(contents)

    def _make_room(self, wanted: int) -> int:
        """Evicts the least recently used files if `wanted` more bytes do not fit; returns the total left, in bytes."""
        files = list(self._files())
        size = sum(file.size for file in files)
        if size + wanted <= self._limit:
            return size
        heapq.heapify(files)
        while files and size + wanted > (1 - FREED) * self._limit:
            oldest = heapq.heappop(files)
            Path(oldest.path).unlink(missing_ok=True)
            size -= oldest.size
        return size

    def _files(self) -> Iterator[Kept]:
        for part in os.scandir(self._folder):
            for entry in os.scandir(part.path) if part.is_dir() and len(part.name) == PREFIX else ():
                if entry.name.endswith(PARTIAL):  # its writer was killed, or would hold the lock
                    os.unlink(entry.path)
                else:
                    try:
                        about = entry.stat()
                    except FileNotFoundError:  # deleted meanwhile
                        continue
                    yield Kept(about.st_mtime, entry.path, about.st_size)

    def _path(self, url: str) -> str:
        name = hashlib.sha256(f"{self._about}\n{url}".encode()).hexdigest()
        return f"{self._folder}/{name[:PREFIX]}/{name[PREFIX:]}"

    def _noted(self, note: IO[str]) -> int | None:
        note.seek(0)
        text = note.read()
        return int(text) if text.isdecimal() else None

    def _note(self, note: IO[str], size: int) -> None:
        note.seek(0)
        note.truncate()
        note.write(str(size))
        note.flush()


def _seal(contents: bytes) -> bytes:
    # From 1, so that zeros are not the checksum of no contents.
    return zlib.crc32(contents, 1).to_bytes(SEAL, "big")
