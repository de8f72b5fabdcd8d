"""Keeps many files open, each from its first use on."""

import errno
import os
import resource
import threading

from tfpipe.errors import ConfigError
from tfpipe.util.forks import per_process

# File descriptors that a process needs in addition to these.
SPARE_FILES = 256


class OpenFiles:
    """Open files by number; each is opened on first use, and closed with this object. Thread-safe."""

    def __init__(self, paths: list[str]) -> None:
        allow_open(len(paths))
        self._paths, self._lock = paths, per_process(threading.Lock)
        self._opened: list[int | None] = [None] * len(paths)
        self._lost: list[int] = []

    def read(self, number: int, length: int, offset: int) -> bytes:
        """Returns `length` bytes of a file from `offset` on, fewer at its end.

        Raises OSError if it cannot be opened or read; after the loss of its handle the next read opens it anew.
        """
        descriptor = self._opened[number]
        if descriptor is None:
            with self._lock():
                descriptor = self._opened[number]
                if descriptor is None:
                    descriptor = self._opened[number] = os.open(self._paths[number], os.O_RDONLY)
        try:
            return os.pread(descriptor, length, offset)
        except OSError as error:
            with self._lock():
                if error.errno == errno.ESTALE and self._opened[number] == descriptor:
                    self._opened[number] = None
                    self._lost.append(descriptor)  # closed later: another thread may be reading by it
            raise

    def __del__(self) -> None:
        for file in (*getattr(self, "_opened", ()), *getattr(self, "_lost", ())):
            if file is not None:
                os.close(file)


def allow_open(files: int) -> None:
    """Raises the limit of open files of this process, if necessary, so that it can open `files` more.

    Raises ConfigError if the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(f"{files} shards are to be open at once, but this process may open {hard} files: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
