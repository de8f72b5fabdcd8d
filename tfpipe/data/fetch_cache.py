"""What was fetched, kept in a folder on a local disk that the ranks of a node share; what is used least goes first."""

import hashlib
import heapq
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from tfpipe.config import Remote
from tfpipe.data.lock import waiting_lock
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

# Share of the limit that is made free at a time, since to find what goes takes a look at every file.
FREED = 0.1
PARTIAL = ".partial"
# Seconds: what was used is marked so at most this often.
MARK_EVERY_S = 60.0


class Kept(NamedTuple):
    """A file of the cache."""

    used: float
    path: str
    size: int


class FetchCache:
    """Files by URL, below `data.remote.cache_gb` in all, whatever the number of processes that share them.

    A file appears whole, by renaming. Who writes holds a lock, which is gone with the process, and notes the size of
    all in `size` before: a process that is killed leaves at most a partial file, and a note that is too large. The next
    one to find no room clears up both.
    """

    def __init__(self, config: Remote) -> None:
        """Args: its `cache` is the folder, made where it is not there.

        Raises:
            ConfigError: the folder cannot be used.
        """
        assert config.cache is not None, "data.remote.cache is set"
        self._folder, self._limit = config.cache, int(config.cache_gb * 1e9)
        # The same URL of another server is another file.
        self._about = json.dumps(config.options, sort_keys=True, default=str)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._alone() as note:
                noted = self._noted(note)
                if noted is None or noted > self._limit:
                    self._note(note, self._make_room(0))
        except OSError as error:
            raise ConfigError(f"data.remote.cache: cannot use the folder {self._folder}: {error.strerror}") from error

    def find(self, url: str) -> bytes | None:
        """What is kept of a URL, None if nothing is; b"" is kept where there was nothing."""
        path = self._path(url)
        try:
            with open(path, "rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > MARK_EVERY_S:
                    os.utime(file.fileno())
                return file.read()
        except OSError:  # not there, or gone just now
            return None

    def keep(self, fetched: Mapping[str, bytes]) -> None:
        """Keeps what was fetched, as far as there is room. A disk that cannot be written is no reason to stop."""
        if not fetched:
            return
        files = {self._path(url): contents for url, contents in fetched.items()}
        try:
            with self._alone() as note:
                self._write({path: contents for path, contents in files.items() if not os.path.exists(path)}, note)
        except OSError as error:
            logger.warning("data.remote.cache: cannot write to %s: %s", self._folder, error.strerror)

    def forget(self, urls: Iterable[str]) -> None:
        """Drops what is kept of URLs."""
        for url in urls:
            Path(self._path(url)).unlink(missing_ok=True)

    def _write(self, files: dict[str, bytes], note: IO[str]) -> None:
        size = self._noted(note)
        wanted = sum(map(len, files.values()))
        if size is None or size + wanted > self._limit:
            size = self._make_room(wanted)
            if size + wanted > self._limit:  # these alone are larger
                self._note(note, size)
                return
        self._note(note, size + wanted)
        for path, contents in files.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            partial = path + PARTIAL
            with open(partial, "wb") as file:
                file.write(contents)
            os.replace(partial, path)

    def _make_room(self, wanted: int) -> int:
        """Removes what was used longest ago until there is room, and some to spare; returns the bytes that are left."""
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
            for entry in os.scandir(part.path) if part.is_dir() else ():
                if entry.name.endswith(PARTIAL):  # whoever wrote it was killed, or would hold the lock
                    os.unlink(entry.path)
                else:
                    try:
                        about = entry.stat()
                    except FileNotFoundError:  # forgotten just now
                        continue
                    yield Kept(about.st_mtime, entry.path, about.st_size)

    def _path(self, url: str) -> str:
        name = hashlib.sha256(f"{self._about}\n{url}".encode()).hexdigest()
        return f"{self._folder}/{name[:2]}/{name[2:]}"

    @contextmanager
    def _alone(self) -> Iterator[IO[str]]:
        with waiting_lock(self._folder / "size") as note:
            yield note

    def _noted(self, note: IO[str]) -> int | None:
        note.seek(0)
        said = note.read()
        return int(said) if said.isdecimal() else None

    def _note(self, note: IO[str], size: int) -> None:
        note.seek(0)
        note.truncate()
        note.write(str(size))
        note.flush()
