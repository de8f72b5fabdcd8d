"""Copies files to a folder, each atomically, many at once."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tfpipe.data.catalog.class_folders import SCAN_THREADS
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError
from tfpipe.data.split import Split
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.retry import retried

# Files per copying task.
TOGETHER = 32


class File(NamedTuple):
    """A file to copy, and the path of its copy."""

    source: str
    target: str


class Copied(NamedTuple):
    """Statistics of copying."""

    files: int = 0  # number of files copied now
    there: int = 0  # number of files copied before
    bytes: int = 0
    errors: tuple[str, ...] = ()

    def plus(self, other: "Copied") -> "Copied":
        """Returns the sum of both."""
        return Copied(
            self.files + other.files, self.there + other.there, self.bytes + other.bytes, self.errors + other.errors
        )


class Copier:
    """A thread-safe copier of files, each atomically."""

    def __init__(self, split: Split, scratch: Path) -> None:
        """Copies the files of `split`; unfinished files are in the folder `scratch` until they are complete."""
        paths = split.catalog.paths
        remote = split.config.remote if paths.remote else None
        self._fetcher = None if remote is None else Fetcher(remote, paths.folders)
        self._scratch = scratch
        self.threads = SCAN_THREADS if remote is None else 2 * -(-remote.concurrency // TOGETHER)

    def copy(self, files: list[File]) -> Copied:
        """Copies the files that do not exist yet; returns errors instead of raising them."""
        existing = [file for file in files if os.path.exists(file.target)]
        sizes = dict(zip(existing, self.sizes([file.source for file in existing]), strict=True))
        # Targets appear atomically, so one whose source has no known size is complete.
        left = [file for file in files if sizes.get(file, -1) not in (None, _size(file.target))]
        copied = [result for result in map(self._put, left, self._contents(left)) if result is not None]
        errors = tuple(result for result in copied if isinstance(result, str))
        done = [result for result in copied if isinstance(result, int)]
        return Copied(len(done), len(files) - len(left), sum(done), errors)

    def sizes(self, sources: list[str]) -> Sequence[int | Exception | None]:
        """Returns each file's size in bytes, None if the server does not state it, or the error."""
        if self._fetcher is not None:
            return self._fetcher.sizes(sources)
        return [_size(source) for source in sources]

    def _contents(self, files: list[File]) -> Iterable[bytes | FetchError | None]:
        if self._fetcher is None:
            return [None] * len(files)
        return self._fetcher.fetch([file.source for file in files])

    def _put(self, file: File, contents: bytes | FetchError | None) -> int | str | None:
        """Writes a file; returns its size in bytes, an error message, or None if an optional source does not exist."""
        if isinstance(contents, FetchError):
            return str(contents)
        if contents is None and self._fetcher is not None:
            return None
        try:
            with atomic_write(Path(file.target), scratch=self._scratch) as partial:
                if contents is None:
                    retried(shutil.copyfile)(file.source, partial)
                else:
                    partial.write_bytes(contents)
                os.makedirs(os.path.dirname(file.target), exist_ok=True)
                return partial.stat().st_size
        except OSError as error:
            return f"cannot copy {file.source} to {file.target}: {error.strerror}"


def _size(path: str) -> int | OSError:
    try:
        return os.path.getsize(path)
    except OSError as error:
        return error
