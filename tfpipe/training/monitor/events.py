"""events.jsonl: the starts, checkpoints, stops and ends of a run, one line each, of all its processes; by rank 0."""

import logging
import os
import platform
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tfpipe.distributed import World
from tfpipe.training.monitor.metrics import append

logger = logging.getLogger(__name__)

EVENTS = "events.jsonl"
PACKAGES = ("tfpipe", "tensorflow", "keras", "numpy", "horovod", "jax", "torch")


def record(run_dir: Path, world: World, event: str, **facts: Any) -> None:
    """Appends an event, with its time in seconds since 1970, on rank 0.

    A record that cannot be written is a warning: the run does not need it.
    """
    if world.rank > 0:
        return
    try:
        append(run_dir / EVENTS, {"time": round(time.time(), 3), "event": event, **facts})
    except OSError as error:
        logger.warning("cannot write %s: %s; training continues", run_dir / EVENTS, error)


def record_start(run_dir: Path, world: World, step: int, epoch: int) -> None:
    """Appends the start of a process, which has `step` steps and `epoch` epochs behind it."""
    facts = {"step": step, "epoch": epoch, "ranks": world.size, "host": socket.gethostname(), "pid": os.getpid()}
    record(run_dir, world, "start", **facts, versions=versions())


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
