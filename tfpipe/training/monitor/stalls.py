"""Stalls: steps that take far too long; reported while they last, since they may never end, and ended at a limit."""

import logging
import os
import statistics
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tfpipe.data.failures.stalled import PATIENCE_S
from tfpipe.training.monitor.meter import Meter, OpenStep
from tfpipe.training.monitor.metrics import append

logger = logging.getLogger(__name__)

PARTS = {"input": "waiting for the input", "step": "in the training step, or in its wait for the other ranks"}


class Stall(NamedTuple):
    """A step that has not ended yet."""

    epoch: int
    step: int
    seconds: float  # time since the step began
    part: str  # "input" or "step"

    @property
    def lasted(self) -> str:
        """The duration so far, in words."""
        return f"{self.seconds:.0f} seconds" if self.seconds >= 10 else f"{self.seconds:.2g} seconds"


class StallLimit(NamedTuple):
    """The duration after which a stall counts as fatal, and its explanation."""

    seconds: float
    """Seconds without a batch. A rank that hangs in its training step, perhaps waiting for such a rank, gets LONGER
    times as many, and 20 more, so that it reports second; in a process's first step, which traces the graphs, FIRST
    times."""
    reason: Callable[[Stall], str]
    """Returns the explanation of a stall, for the error message."""


LONGER = 1.25
FIRST = 4


class StallWatch:
    """A thread that warns of a stall, and again each time its duration has doubled.

    A stall is a step that has taken `after_s` and ten times the median step. The first step of a process, which traces
    the graphs and starts the pipeline, gets FIRST times as long. Python cannot see whether the training step hangs in
    the computation or in the allreduce.
    """

    def __init__(
        self,
        meter: Meter,
        rank: int,
        path: Path | None = None,
        after_s: float = 30.0,
        limit: StallLimit | None = None,
        name: str = "step",
        end: Callable[[str], None] = lambda message: end_process(message),
    ) -> None:
        """Prepares the thread, which runs inside `with`.

        Writes to the metrics.jsonl at `path`, None for none. A stall lasts at least `after_s` seconds, and is fatal
        after `limit`, None for never. `name` is the noun for a step in messages; `end` ends the process with a message.
        """
        self._meter, self._rank, self._path, self._after_s = meter, rank, path, after_s
        self._limit, self._name, self._end = limit, name, end
        self._told: OpenStep | None = None
        self._next_s = 0.0
        self._done = threading.Event()
        # A daemon thread, so that it cannot keep the process alive, even if it hangs in a write.
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    def __enter__(self) -> "StallWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(timeout=1)

    def look(self) -> Stall | None:
        """Returns the current stall if a warning is due now, else None."""
        # Read both first: the step may end at any moment.
        step, now_open = self._meter.steps + 1, self._meter.open
        if now_open is None:
            return None
        seconds = self._meter.clock() - now_open.since_s
        if seconds < self._after_s:
            return None
        if self._told is None or self._told.since_s != now_open.since_s:
            self._next_s = self._limit_s()
        if seconds < self._next_s:
            return None
        self._told = now_open
        self._next_s = 2 * seconds
        return Stall(self._meter.epoch, step, seconds, now_open.part)

    def _limit_s(self) -> float:
        recent_s = list(self._meter.recent_s)
        return max(self._after_s, 10 * statistics.median(recent_s)) if recent_s else FIRST * self._after_s

    def at_limit(self) -> Stall | None:
        """Returns the current stall if it has reached its limit, else None."""
        step, now_open = self._meter.steps + 1, self._meter.open
        if self._limit is None or now_open is None:
            return None
        seconds = self._meter.clock() - now_open.since_s
        limit_s = self._limit.seconds
        if now_open.part != "input":
            # A rank that waits for files looks at them before it reports.
            limit_s = (LONGER if self._meter.recent_s else FIRST) * limit_s + 2 * PATIENCE_S
        if seconds < limit_s:
            return None
        return Stall(self._meter.epoch, step, seconds, now_open.part)

    def _run(self) -> None:
        while not self._done.wait(min(self._after_s, self._limit.seconds if self._limit else self._after_s) / 10):
            stall = self.look()
            if stall is not None:
                self._tell(stall)
            stall = self.at_limit()
            if stall is not None:
                assert self._limit is not None, "it has come to it"
                duration = f"rank {self._rank}: {self._name} {stall.step} has been open for {stall.lasted}"
                self._end(f"{duration}, {PARTS[stall.part]}: {self._limit.reason(stall)}")
                return

    def _tell(self, stall: Stall) -> None:
        logger.warning(
            "rank %d: %s %d has been open for %s, %s",
            self._rank,
            self._name,
            stall.step,
            stall.lasted,
            PARTS[stall.part],
        )
        if self._path is not None:
            figures = {"seconds": round(stall.seconds, 3), "in": stall.part, "rank": self._rank}
            append(self._path, {"epoch": stall.epoch, "step": stall.step, "stall": figures})


def end_process(message: str) -> None:
    """Ends this process at once, with code 1, which makes a launcher end the other ranks.

    It runs no cleanup: the hanging thread is in C++ or in the kernel, where no exception reaches it.
    """
    print(f"tfpipe: error: {message}", file=sys.stderr, flush=True)
    os._exit(1)
