"""events.jsonl: the starts, checkpoints, stops, failures and ends of a run, one line each, of all its processes."""

import logging
import os
import platform
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tfpipe.collectives.protocol import is_lost
from tfpipe.distributed import World
from tfpipe.errors import Stopped
from tfpipe.training.monitor.metrics import append, read
from tfpipe.training.monitor.stalls import end_process

logger = logging.getLogger(__name__)

EVENTS = "events.jsonl"
PACKAGES = ("tfpipe", "tensorflow", "keras", "numpy", "horovod", "jax", "torch")


def record(run_dir: Path, world: World, event: str, **facts: Any) -> None:
    """Appends an event, with its time in seconds since 1970, on rank 0.

    A record that cannot be written is a warning: the run does not need it.
    """
    if world.rank == 0:
        _append(run_dir, event, facts)


def _append(run_dir: Path, event: str, facts: dict[str, Any]) -> None:
    try:
        append(run_dir / EVENTS, {"time": round(time.time(), 3), "event": event, **facts})
    except OSError as error:
        logger.warning("cannot write %s: %s; training continues", run_dir / EVENTS, error)


@contextmanager
def recorded_failures(run_dir: Path, world: World) -> Iterator[None]:
    """Appends the error that leaves `with`, on the rank that its message names, or else on rank 0.

    That another rank has stopped is no reason: `watch_peers` names that rank, and ends this process by `end_run`.
    """
    try:
        yield
    except Exception as error:
        named = re.match(r"rank (\d+):", str(error))
        is_own = world.rank == (int(named[1]) if named else 0)
        if is_own and not isinstance(error, Stopped) and not is_lost(error):
            _record_failure(run_dir, str(error) or type(error).__name__)
        raise


def end_run(run_dir: Path, world: World, message: str) -> None:
    """Ends this process at once, with code 1; on rank 0 the record of events has the message."""
    if world.rank == 0:
        _record_failure(run_dir, message)
    end_process(message)


def _record_failure(run_dir: Path, reason: str) -> None:
    """Appends a reason with the last recorded step; a process that has started nothing leaves no trace of itself."""
    with suppress(OSError):
        *_, last = [{}, *read(run_dir / EVENTS)]
        if last:
            facts = {"step": last["step"], "epoch": last["epoch"], "reason": reason.partition("\n")[0]}
            _append(run_dir, "failure", facts)


def record_start(run_dir: Path, world: World, step: int, epoch: int) -> None:
    """Appends the start of a process, which has `step` steps and `epoch` epochs behind it."""
    facts = {"step": step, "epoch": epoch, "ranks": world.size, "host": socket.gethostname(), "pid": os.getpid()}
    record(run_dir, world, "start", **facts, versions=versions())


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that are installed."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            continue
    return numbers
