"""File locks between processes, which the system releases when their process ends."""

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

# Errors of file systems without locks, e.g. Lustre mounted without "flock".
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Holds a lock on the file `path` and removes the file at the end; `work` names the task in messages.

    A crashed process may leave the file but not the lock, which belongs to the process. If the file system has no
    locks, logs a warning and continues without one.

    Raises:
        ConfigError: another process holds the lock; the message names it.
        OSError: the file cannot be written.
    """
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise ConfigError(f"{holder} is {work} already, and holds {path}: let it finish, or end it") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            logger.warning("%s cannot be locked (%s): make sure that nobody else is %s", path, error.strerror, work)
        if _is(file, path):
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
        yield file


def _is(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
