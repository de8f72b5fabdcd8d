"""Reads files: small ones with as few system calls as possible (a file object makes five times as many).

Errors that may pass are retried.
"""

import difflib
import hashlib
import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

from tfpipe.errors import ConfigError
from tfpipe.util.retry import retried

# Bytes per call; nearly every annotation is shorter.
READ_BYTES = 2**14
# Encoding of files that people write: UTF-8 without the byte order mark that editors on Windows put first, which would
# become part of the first word.
WRITTEN = "utf-8-sig"
# Names of a folder among which a similar one is looked for: 20 ms.
MOST_NAMES = 5_000
# First bytes of the files that are given in the place of a text or a table by mistake.
STARTS = {
    b"PK\x03\x04": "a zip archive (or a workbook): unpack it first",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"BZh": "compressed by bzip2: unpack it first",
    b"\xfd7zXZ": "compressed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it first",
    b"\xff\xfe": "a text in UTF-16: save it in UTF-8",
    b"\xfe\xff": "a text in UTF-16: save it in UTF-8",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\xff\xd8\xff": "a JPEG",
    b"\x89PNG": "a PNG",
}


def near(path: object) -> str:
    """Returns "; next to it is NAME" for the most similar name in the folder of a path that is not there, or ""."""
    if not isinstance(path, Path):  # a URL
        return ""
    try:
        with os.scandir(path.absolute().parent) as entries:  # it may have a million
            names = {entry.name.lower(): entry.name for entry in islice(entries, MOST_NAMES)}
    except OSError:
        return ""
    alike = difflib.get_close_matches(path.name.lower(), names, n=1, cutoff=0.75)
    return f"; next to it is {names[alike[0]]}" if alike else ""


class Stamp(NamedTuple):
    """A file's size and time of change, by which a later change is noticed; None for both if there is no file."""

    size: int | None  # bytes
    changed: int | str | None  # nanoseconds since 1970; of a URL the ETag or time that its server states, if any


NO_STAMP = Stamp(None, None)


def stamp(path: str) -> Stamp:
    """Returns the stamp of the file at `path`, NO_STAMP if there is none or `path` is ""."""
    try:
        status = os.stat(path)
    except OSError:
        return NO_STAMP
    return Stamp(status.st_size, status.st_mtime_ns)


@retried
def read_whole(path: str, stamps: list[int | None] | None = None, most: int | None = None) -> bytes:
    """Returns the contents of the file at `path`, or its first `most` bytes; appends its stamp to `stamps`.

    Raises OSError if it cannot be read; the message names it.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        # The stamp of an open file has half the cost of `stamp`; taken before the read, so that a change shows.
        status = None if stamps is None else os.fstat(file)
        text = more = os.read(file, most or READ_BYTES)
        # A file returns fewer bytes than requested only at its end; another call would add a tenth of the cost.
        while most is None and len(more) == READ_BYTES:
            more = os.read(file, READ_BYTES)
            text += more
        if stamps is not None and status is not None:
            stamps += status.st_size, status.st_mtime_ns
        return text
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(file)


@retried
def open_text(path: Path) -> TextIO:
    """Opens a file that people write, in UTF-8, for reading; raises OSError."""
    return path.open(encoding=WRITTEN)


@retried
def read_text(path: Path) -> str:
    """Returns the text of a file that people write, in UTF-8; raises OSError or UnicodeDecodeError."""
    return path.read_text(encoding=WRITTEN)


def text_of(path: Path, key: str = "") -> str:
    """Reads a text as read_text does; raises ConfigError, which begins with `key`, if it cannot be read."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}{unreadable(path, error)}") from error


def format_of(path: Path) -> str | None:
    """Returns the format of a file that is no text, by its first bytes, and what to do; None for any other.

    Raises OSError.
    """
    start = read_whole(str(path), most=max(map(len, STARTS)))
    return next((name for magic, name in STARTS.items() if start.startswith(magic)), None)


def unreadable(path: Path, error: OSError | UnicodeDecodeError, kind: str = "") -> str:
    """Describes why a text could not be read: the system's error, the file's true format, or the first wrong line.

    `kind`, e.g. "the filelist ", precedes the path.
    """
    reason = error.strerror if isinstance(error, OSError) else not_text(path)
    return f"cannot read {kind}{path}: {reason or error}"


def not_text(path: Path) -> str | None:
    """Returns the format of a file that is no text, or the first line that is not UTF-8; None if it is a text."""
    with suppress(OSError):
        if kind := format_of(path):
            return f"it is {kind}"
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return f"line {number} is not UTF-8: received {line.rstrip()[:80]!r}; save the file in UTF-8"
    return None


@retried
def sha256(path: Path) -> str:
    """Returns the sha256 of the file at `path`, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
