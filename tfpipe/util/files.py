"""Reads files: small ones with as few system calls as possible (a file object makes five times as many)."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

# Bytes per call; nearly every annotation is shorter.
SOME = 2**14


class Stamp(NamedTuple):
    """A file's size and time of change, by which a later change is noticed; None for both if there is no file."""

    size: int | None  # bytes
    changed: int | None  # nanoseconds since 1970


NO_STAMP = Stamp(None, None)


def stamp(path: str) -> Stamp:
    """Returns the stamp of the file at `path`, NO_STAMP if there is none or `path` is ""."""
    try:
        about = os.stat(path)
    except OSError:
        return NO_STAMP
    return Stamp(about.st_size, about.st_mtime_ns)


def read_start(path: str, count: int, stamps: list[int | None] | None = None) -> bytes:
    """Returns the first `count` bytes of the file at `path`, or all if it is shorter; appends its stamp to `stamps`.

    Raises OSError if it cannot be read; the message names it.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        _add_stamp(file, stamps)
        return os.read(file, count)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(file)


def read_whole(path: str, stamps: list[int | None] | None = None) -> bytes:
    """Returns the contents of the file at `path`; appends its stamp to `stamps`.

    Raises OSError if it cannot be read; the message names it.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        _add_stamp(file, stamps)
        text = more = os.read(file, SOME)
        # A file returns fewer bytes than requested only at its end; another call would add a tenth of the cost.
        while len(more) == SOME:
            more = os.read(file, SOME)
            text += more
        return text
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(file)


def _add_stamp(file: int, stamps: list[int | None] | None) -> None:
    """Appends the stamp of an open file, at half the cost of `stamp`; before it is read, so that a change shows."""
    if stamps is not None:
        about = os.fstat(file)
        stamps += about.st_size, about.st_mtime_ns


def read_text(path: Path) -> str:
    """Returns the text of a file that people write, in UTF-8.

    Drops the byte order mark that editors on Windows put first: it would become part of the first word. Raises OSError
    or UnicodeDecodeError.
    """
    return path.read_text(encoding="utf-8-sig")


def sha256(path: Path) -> str:
    """Returns the sha256 of the file at `path`, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
