"""Processes that take turns: what is timed lives in one of its own, and is stopped (SIGSTOP) while others run.

So it neither takes the CPU from another nor fills its buffers ahead of its next turn.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TextIO


class Peer:
    """One of the processes."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self._log = name, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that a signal reaches its workers, and counts of CPU time only them
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            )

    def answer(self, seconds: float | None = None) -> dict[str, float]:
        """To `seconds` of work, or to the first pass."""
        if seconds is not None:
            print(seconds, file=self._process.stdin, flush=True)
            os.killpg(self._process.pid, signal.SIGCONT)
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: it ended:\n{self._log.read_text(errors='replace')[-2000:]}")
        os.killpg(self._process.pid, signal.SIGSTOP)
        return json.loads(line)

    def end(self) -> None:
        """With its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def exit_when_terminated() -> None:
    """Lets SIGTERM raise SystemExit, once: otherwise the peers would outlive the caller, stopped."""

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit("terminated")

    signal.signal(signal.SIGTERM, leave)


def take_turns(peers: list[Peer], turns: int, seconds: float) -> list[dict[str, dict[str, float]]]:
    """What each gave in each turn. One more is made first, for AUTOTUNE and the page cache."""
    results = []
    for turn in range(turns + 1):
        results.append({peer.name: peer.answer(seconds) for peer in peers})
        rates = {name: round(each["crops"] / each["seconds"]) for name, each in results[-1].items()}
        print(f"turn {turn}: {rates}", file=sys.stderr, flush=True)
    return results[1:]


class Columns(NamedTuple):
    """A row's figures over the turns."""

    ratios: list[float]  # of the limit's rate in the same turn
    rates: list[float]  # crops a second; of the limit, times the CPUs
    busy: float  # CPUs, median
    each: float  # crops a CPU second, median


def columns(turns: list[dict[str, dict[str, float]]], name: str, limit: str, cpus: int) -> Columns:
    """Of one row, where `limit` is the row that one thread does."""

    def rates(name: str) -> list[float]:
        factor = cpus if name == limit else 1
        return [factor * turn[name]["crops"] / turn[name]["seconds"] for turn in turns]

    return Columns(
        [rate / most for rate, most in zip(rates(name), rates(limit), strict=True)],
        rates(name),
        median(turn[name]["cpu_seconds"] / turn[name]["seconds"] for turn in turns),
        median(turn[name]["crops"] / turn[name]["cpu_seconds"] for turn in turns),
    )


def spread(values: list[float], style: str) -> str:
    """Median and range."""
    return f"{median(values):{style}} ({min(values):{style}} to {max(values):{style}})"


def answers() -> TextIO:
    """In the process: where its answers go. What else is printed, as libraries do, goes to the log."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def serve(stream: Iterator[Any], output: TextIO) -> None:
    """In the process: for each line SECONDS that it reads, what that many seconds of an endless stream give."""
    for line in sys.stdin:
        print(json.dumps(timed(stream, float(line))), file=output, flush=True)


def timed(stream: Iterator[Any], seconds: float) -> dict[str, float]:
    """Crops in `seconds`, from the arrival of one batch to that of another."""
    next(stream)
    cpu, started, crops = group_cpu_seconds(), time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        crops += len(next(stream))
    return {"crops": crops, "seconds": elapsed, "cpu_seconds": group_cpu_seconds() - cpu}


def group_cpu_seconds() -> float:
    """Of this process and its workers, which are in its process group."""
    group, ticks = os.getpgrp(), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
