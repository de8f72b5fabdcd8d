"""File locks between processes, which the system releases when their process ends."""

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

PAUSE_S = 1.0

# Errors of file systems without locks, e.g. Lustre mounted without "flock".
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


@contextmanager
def locked(path: Path, work: str, patience_s: float = 0.0) -> Iterator[None]:
    """Holds a lock on the file `path` and removes the file at the end; `work` names the task in messages.

    A crashed process may leave the file but not the lock, which belongs to the process. Waits at most `patience_s`
    seconds for a process on another host, which may be about to end. If the file system has no locks, a warning says
    so. Raises ConfigError if another process holds the lock, which it names, OSError if the file cannot be written.
    """
    until_s = time.monotonic() + patience_s
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            if not holder.endswith(f" on {socket.gethostname()}") and time.monotonic() < until_s:
                time.sleep(PAUSE_S)
                continue
            raise ConfigError(f"{holder} is {work} already, and holds {path}: let it finish, or end it") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            logger.warning("%s cannot be locked (%s): ensure that no other process is %s", path, error.strerror, work)
        if is_same_file(file, path):
            break
        file.close()  # its holder has just removed it: try again with a new file
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


@contextmanager
def waiting_lock(path: Path) -> Iterator[IO[str]]:
    """Opens the file at `path`, creating it if necessary, and waits for an exclusive lock on it; never removes it.

    If the file system has no locks, continues without one. Raises OSError if the file cannot be written.
    """
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        try:
            yield file
        finally:
            with suppress(OSError):  # explicitly: a child that was forked meanwhile keeps the file open
                fcntl.flock(file, fcntl.LOCK_UN)


def is_same_file(file: IO[Any], path: Path) -> bool:
    """Returns whether an open file is the one that has the name `path` now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
