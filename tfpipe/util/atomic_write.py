"""Writes files atomically, and turns errors of writing into messages."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfpipe.errors import ConfigError

PARTIAL = ".partial"


@contextmanager
def atomic_write(path: Path, sync: bool = False, scratch: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path to write to; renames it to `path` at the end, or removes it after an error.

    The temporary file, whose name ends with PARTIAL, is next to `path`, or in the folder `scratch` of the same file
    system. With `sync`, it is on the disk before it gets its name.
    """
    folder = scratch or path.parent
    # By host too: processes of several hosts may have equal numbers.
    writer = f"{os.uname().nodename[:60]}-{os.getpid()}-{threading.get_ident()}"
    partial = folder / f".{path.name[:60]}.{writer}{PARTIAL}"
    try:
        yield partial
        if sync:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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
