"""The records of a run: metrics.jsonl, a line per epoch, interval and stall, and events.jsonl, one per start,
checkpoint, stop, failure and end of its processes."""

import json
import logging
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tfpipe.collectives.protocol import is_lost
from tfpipe.distributed import World
from tfpipe.errors import Stopped
from tfpipe.util.json_text import to_json
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
# Only "\n" ends a line; the last one may lack it, if a crash cut it off.
LINE = re.compile(r"[^\n]*\n|[^\n]+")

EVENTS = "events.jsonl"
# Seconds for a record of a run that may hang, as its storage does.
WRITE_S = 5.0
PACKAGES = ("tfpipe", "tensorflow", "keras", "numpy", "horovod", "jax", "torch")


@retried
def append(path: Path, line: Mapping[str, Any]) -> None:
    """Appends a line in a single write, since StallWatch writes from another thread."""
    with path.open("ab", buffering=0) as file:
        file.write(to_json(line).encode() + b"\n")


def parse(line: str) -> dict[str, Any]:
    """Returns the figures of a line. Raises ValueError if it is damaged: cut off, or not one of a run's."""
    figures = json.loads(line)
    if not (
        line.endswith("\n") and isinstance(figures, dict) and {int} == {type(figures.get(k)) for k in ("epoch", "step")}
    ):
        raise ValueError("no object with an epoch and a step")
    return figures


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines' figures, and names the damaged ones in warnings. Raises OSError if the file cannot be read."""
    for number, line in enumerate(lines(path), start=1):
        try:
            figures = parse(line)
        except ValueError:
            warn_damaged(path, number, line)
        else:
            yield figures


def lines(path: Path) -> list[str]:
    """Returns the lines of a run's record, which may be damaged, with their ends. Raises OSError."""
    return LINE.findall(path.read_text(errors="surrogateescape"))


def warn_damaged(path: Path, number: int, line: str) -> None:
    """Warns that line `number`, from 1, is damaged, e.g. by a kill or a full disk, and left out."""
    logger.warning("%s: line %d is damaged, and left out: %s", path, number, ascii(line.rstrip("\n")[:60]))


def is_epoch(line: Mapping[str, Any]) -> bool:
    """Returns whether a line describes an epoch."""
    return "interval" not in line and "stall" not in line


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
        in_time(partial(_record_failure, run_dir, message))
    end_process(message)


def in_time(write: Callable[[], object]) -> None:
    """Calls `write`, which may raise OSError, and waits for it for WRITE_S at most: its storage may be what hangs."""

    def attempt() -> None:
        with suppress(OSError):
            write()

    thread = threading.Thread(target=attempt, name="record", daemon=True)
    thread.start()
    thread.join(WRITE_S)


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
        # What is loaded says it itself: a distribution may have another name, as vendors' of TensorFlow have.
        with suppress(PackageNotFoundError):
            numbers[package] = getattr(sys.modules.get(package), "__version__", None) or version(package)
    return numbers


def end_process(message: str) -> None:
    """Ends this process at once, with code 1, which makes a launcher end the other ranks.

    It runs no cleanup: the hanging thread is in C++ or in the kernel, where no exception reaches it.
    """
    print(f"tfpipe: error: {message}", file=sys.stderr, flush=True)
    os._exit(1)
