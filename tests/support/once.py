"""Data that all of pytest-xdist's workers share: the first to ask makes them."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest


def once(name: str, factory: pytest.TempPathFactory, make: Callable[[Path], object]) -> Path:
    """Returns a folder that `make` fills, once for all workers of a run."""
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder, made = shared / f"once-{name}", shared / f"once-{name}.made"
    with open(shared / f"once-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder
