"""Writes files atomically, and turns errors of writing into messages."""

import fcntl
import glob
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tfpipe.errors import ConfigError
from tfpipe.util.locks import NO_LOCKS, is_same_file

PARTIAL = ".partial"
# Tries to open a temporary file that no other process is about to remove. Where a file's number is never that of its
# name, as on some network file systems, it is then written without a lock.
OPENS = 10
# Age from which a temporary file is nobody's where the file system has no locks.
ABANDONED_S = 86400.0


@contextmanager
def atomic_write(path: Path, sync: bool = False, scratch: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path to write to; renames it to `path` at the end, or removes it after an error.

    The temporary file, whose name ends with PARTIAL, is next to `path`, or in the folder `scratch` of the same file
    system. With `sync`, it is on the disk before it gets its name.
    """
    place = scratch or path.parent
    # By host too: processes of several hosts may have equal numbers.
    writer = f"{os.uname().nodename[:60]}-{os.getpid()}-{threading.get_ident()}"
    partial = place / f".{path.name[:60]}.{writer}{PARTIAL}"
    try:
        yield partial
        if sync:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def locked_write(path: Path) -> Iterator[IO[bytes]]:
    """Yields an open file that becomes `path` at the end, as atomic_write does; for files that take long to write.

    Its lock tells other processes that it is being written: see remove_abandoned. Raises OSError.
    """
    with ExitStack() as held, atomic_write(path) as partial:
        # Closed, and so unlocked, after it got its name.
        file = held.enter_context(partial.open("wb"))
        for _ in range(OPENS):
            if _lock(file) and is_same_file(file, partial):
                break
            file.close()
            file = held.enter_context(partial.open("wb"))  # another process was about to remove it
        yield file
        file.flush()


def remove_abandoned(path: Path) -> None:
    """Removes the temporary files of `path` that killed processes left in `locked_write`, on any host.

    Leaves those that this process may not remove.
    """
    for partial in path.parent.glob(f".{glob.escape(path.name[:60])}.*{PARTIAL}"):
        try:
            with partial.open("rb+") as file:
                # Locked until it is removed: its writer, if it has just made it, then makes another.
                if _lock(file, partial.stat().st_mtime < time.time() - ABANDONED_S):
                    partial.unlink(missing_ok=True)
        except OSError:
            continue


def _lock(file: IO[bytes], otherwise: bool = True) -> bool:
    """Returns whether no other process held the lock of a file, which this one then holds.

    Returns `otherwise` if the file system has no locks. Raises OSError.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return otherwise
    return True


def remove_partials(folder: Path) -> None:
    """Removes the temporary files that killed writers left in `folder`; no other process may be writing there.

    Raises OSError if one cannot be removed.
    """
    for partial in folder.glob(f".*{PARTIAL}"):
        partial.unlink()


@contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Raises a ConfigError that names `path`, the reason and `advice` in the place of an OSError inside `with`.

    A BrokenPipeError passes: it comes from what is printed.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}{advice and f'; {advice}'}") from error
