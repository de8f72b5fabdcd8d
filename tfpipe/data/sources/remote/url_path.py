"""Files and folders behind URLs, with the few methods of pathlib.Path that packed data and tar shards need."""

import errno
import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Union

from tfpipe.config import Remote
from tfpipe.data.sources.remote.fetcher import CANNOT_FETCH, Fetcher, FetchError, shared_fetcher
from tfpipe.data.sources.remote.ranges import REQUEST_BYTES, Extent, read_ranges
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp

# Bytes that a read of an open file brings: some requests at once.
BUFFER_BYTES = 4 * REQUEST_BYTES
SEE_TO = "see to the server, or to data.remote.options"

AnyPath = Union[Path, "UrlPath"]


class Unreachable(OSError):
    """A file behind a URL that may exist, but could not be fetched."""

    @classmethod
    def of(cls, path: "UrlPath", error: FetchError) -> "Unreachable":
        """Makes the error of a file; the constructor is OSError's, so that ranks can pickle the error."""
        why = str(error).removeprefix(f"{CANNOT_FETCH}{path}: ")
        return cls(errno.EIO, f"{why}; {SEE_TO}", str(path))


def cannot_read(name: str, error: OSError, advice: str) -> ConfigError:
    """Returns the error about a file that cannot be read; `advice` is for a file that was found missing or damaged."""
    why = error.strerror if isinstance(error, Unreachable) else f"{error.strerror}; {advice}"
    return ConfigError(f"cannot read {name}: {why}")


class UrlPath:
    """A file or folder behind a URL; `data.remote` says how to reach it. Nothing of it is cached."""

    def __init__(self, url: str, remote: Remote) -> None:
        self._url, self.remote = url.rstrip("/"), remote

    def __str__(self) -> str:
        return self._url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str) -> "UrlPath":
        return UrlPath(f"{self._url}/{name}", self.remote)

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self._url.rpartition("/")[2]

    def fetcher(self) -> Fetcher:
        """Returns the client; raises ConfigError as Fetcher does."""
        return shared_fetcher(self.remote.model_copy(update={"cache": None}), [self._url])

    def exists(self) -> bool:
        """Returns whether there is such a file. Raises ConfigError if the server does not say so."""
        (stamp,) = self.fetcher().stamps([self._url])
        if isinstance(stamp, FetchError) and not stamp.missing:
            raise ConfigError(f"data.source: {stamp}; {SEE_TO}")
        return not isinstance(stamp, FetchError)

    @property
    def parent(self) -> "UrlPath":
        """The folder that it is in."""
        return UrlPath(self._url.rpartition("/")[0], self.remote)

    def names(self) -> set[str]:
        """Returns the base names in a folder of an object store, empty if there is none. Raises FetchError."""
        (entries,) = self.fetcher().listings([self._url])
        return {name for name, _ in entries if name}

    def read_bytes(self) -> bytes:
        """Returns the content; raises OSError."""
        stamp = self._known_stamp()
        (contents,) = self.spans([(0, stamp.size or 0)], stamp)
        return contents

    def spans(self, spans: Sequence[tuple[int, int]], stamp: Stamp | None = None) -> list[bytes]:
        """Returns the bytes from a start to an end, for each of `spans`; requests are made together.

        `stamp` is the version of the file that is meant. Raises OSError.
        """
        extents = [Extent(0, start, end - start) for start, end in spans]
        parts = []
        for data in read_ranges(self.fetcher(), [(self._url, stamp)], extents):
            if isinstance(data, FetchError):
                raise Unreachable.of(self, data)
            parts.append(data)
        return parts

    def open(self) -> IO[bytes]:
        """Opens the file for reading; a few parts are fetched ahead. Raises OSError."""
        return io.BufferedReader(UrlFile(self, self._known_stamp()), BUFFER_BYTES)

    def _known_stamp(self) -> Stamp:
        (stamp,) = stamps_of([self])
        if isinstance(stamp, OSError):
            raise stamp
        return stamp


def as_path(path: Path | str, remote: Remote) -> AnyPath:
    """Returns a config's path: a URL is a string there."""
    return UrlPath(path, remote) if isinstance(path, str) else path


def open_file(path: AnyPath) -> IO[bytes]:
    """Opens a file for reading; raises OSError."""
    return path.open() if isinstance(path, UrlPath) else path.open("rb")


def stamps_of(paths: Sequence[AnyPath]) -> list[Stamp | OSError]:
    """Returns the stamp of each file, or the error; those behind URLs are asked for together."""
    urls = [path for path in paths if isinstance(path, UrlPath)]
    stamps = iter(urls[0].fetcher().stamps(list(map(str, urls))) if urls else [])
    return [_stamp(path, next(stamps)) if isinstance(path, UrlPath) else _local_stamp(path) for path in paths]


def stamped_files(paths: Sequence[AnyPath]) -> list[tuple[AnyPath, Stamp]]:
    """Returns files with their stamps; raises ConfigError if one cannot be reached."""
    stamped = []
    for path, stamp in zip(paths, stamps_of(paths), strict=True):
        if isinstance(stamp, OSError):
            raise ConfigError(f"cannot read {path}: {stamp.strerror}")
        stamped.append((path, stamp))
    return stamped


def _local_stamp(path: Path) -> Stamp | OSError:
    try:
        status = path.stat()
    except OSError as error:
        return error
    return Stamp(status.st_size, status.st_mtime_ns)


def _stamp(path: UrlPath, stamp: Stamp | FetchError) -> Stamp | OSError:
    if not isinstance(stamp, FetchError):
        return OSError(errno.EIO, "the server does not state its size", str(path)) if stamp.size is None else stamp
    missing = OSError(errno.ENOENT, "there is no such file", str(path))
    return missing if stamp.missing else Unreachable.of(path, stamp)


class UrlFile(io.RawIOBase):
    """The content of a URL from a position on, of a version; each read requests what it returns."""

    def __init__(self, path: UrlPath, stamp: Stamp) -> None:
        self._path, self._stamp, self._at = path, stamp, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._stamp.size or 0)[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._stamp.size or 0)
        if self._at >= end:
            return 0
        (data,) = self._path.spans([(self._at, end)], self._stamp)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
