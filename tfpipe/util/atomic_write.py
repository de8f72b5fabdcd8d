"""Writes files atomically, removes what killed writers left, and turns errors of writing into messages."""

import functools
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfpipe.errors import ConfigError

PARTIAL = ".partial"
# Names of files and folders that are being written: the system and the number of the writing process, and its thread.
WRITER = re.compile(rf"\.([0-9a-f]+)-(\d{{1,9}})-\d+{re.escape(PARTIAL)}$")
# Seconds without a change after which nobody writes a file or folder any more, whoever did.
OLD_S = 86_400.0


@contextmanager
def atomic_write(path: Path, sync: bool = False, scratch: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path to write to; renames it to `path` at the end, or removes it after an error.

    The temporary file, whose name ends with PARTIAL, is next to `path`, or in the folder `scratch` of the same file
    system. With `sync`, it is on the disk before it gets its name.
    """
    partial = partial_path(path, scratch)
    try:
        yield partial
        if sync:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_path(path: Path, folder: Path | None = None) -> Path:
    """Returns the temporary path of a file or folder that this thread writes, next to `path` or in `folder`."""
    # By system too: processes of several hosts may have equal numbers.
    writer = f"{_system()}-{os.getpid()}-{threading.get_ident()}"
    return (folder or path.parent) / f".{path.name[:60]}.{writer}{PARTIAL}"


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes those files and folders that no living process writes, by the process in their names or by their age.

    Of a process of another host, or of another boot or container of this one, nothing is known: what it wrote stays for
    OLD_S. What another process removes meanwhile is passed over.
    """
    for path in paths:
        writer = WRITER.search(path.name)
        with suppress(FileNotFoundError):
            if (writer and _has_ended(*writer.groups())) or time.time() - path.lstat().st_mtime > OLD_S:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _has_ended(system: str, process: str) -> bool:
    """Returns whether a process is known to have ended; a later one of the same number may hide that."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return system == _system()
    except PermissionError:  # another user's
        pass
    return False


@functools.cache
def _system() -> str:
    """Returns a name, in hex, of this boot of the host or container, in which numbers tell processes apart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return f"{boot.replace('-', '')[:12]}{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:  # so that no other process is taken for one of this system
        return os.urandom(8).hex()


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
