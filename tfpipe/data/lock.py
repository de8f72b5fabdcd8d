"""A lock between processes, gone with the process that holds it."""

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

# What a file system says that knows no locks, as Lustre mounted without "flock".
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Holds the lock file `path` meanwhile, and removes it in the end. `work` says what for.

    A process that crashes may leave the file, but not the lock: that is the system's, not the file's being there. Where
    the file system knows no locks, goes on without.

    Raises:
        ConfigError: another process holds it; says which.
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
        file.close()  # whoever held it removed it just then
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
    """The file at `path`, made where it is not there, and nobody else's meanwhile: waits until it is free.

    It stays; the lock is gone with the process that holds it. Where the file system knows no locks, goes on without.

    Raises:
        OSError: the file cannot be written.
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
