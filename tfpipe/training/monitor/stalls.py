"""Stalls: steps that take far too long; reported while they last, since they may never end, and ended at a limit."""

import logging
import statistics
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tfpipe.data.failures.stalled import PATIENCE_S
from tfpipe.data.loader import Loader
from tfpipe.training.monitor.metrics import append, end_process, in_time

logger = logging.getLogger(__name__)

STALL_REASONS = {"input": "waiting for the input", "step": "in the training step, or in its wait for the other ranks"}


class Stall(NamedTuple):
    """A step that has not ended yet."""

    epoch: int
    step: int
    seconds: float  # time since the step began
    part: str  # "input" or "step"


# A rank that hangs in its training step, perhaps waiting for one without a batch, gets LONGER times as long, and 20
# seconds more, so that it reports second; in a process's first step, which traces the graphs, FIRST times.
LONGER = 1.25
FIRST = 4


class StallWatch:
    """A thread that warns of a stall, and again each time its duration has doubled.

    A stall is a step that has taken `after_s` and ten times the median step. The first step of a process, which traces
    the graphs and starts the pipeline, gets FIRST times as long. Python cannot see whether the training step hangs in
    the computation or in the allreduce. After `data.stall_timeout_s` a stall ends the process.
    """

    def __init__(
        self,
        loader: Loader,
        path: Path | None = None,
        *,
        after_s: float = 30.0,
        name: str = "step",
        end: Callable[[str], None] = end_process,
    ) -> None:
        """Prepares the thread, which runs inside `with` and watches the steps on the batches of `loader`.

        It writes to the metrics.jsonl at `path`, None for none. `name` is the noun for a step in messages; `end` ends
        the process with a message.
        """
        self._loader, self._meter, self._path, self._after_s = loader, loader.meter, path, after_s
        self._limit_s, self._name, self._end = loader.config.data.stall_timeout_s, name, end
        self._told, self._next_s = 0, 0.0
        self._done = threading.Event()
        # A daemon thread, so that it cannot keep the process alive, even if it hangs in a write.
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    def __enter__(self) -> "StallWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=1)

    def poll(self) -> Stall | None:
        """Returns the current stall if a warning is due now, else None."""
        stall = self._open()
        if stall is None or stall.seconds < self._after_s:
            return None
        if stall.step != self._told:
            recent_s = list(self._meter.recent_s)
            most_s = max(self._after_s, 10 * statistics.median(recent_s)) if recent_s else FIRST * self._after_s
            self._told, self._next_s = stall.step, most_s
        if stall.seconds < self._next_s:
            return None
        self._next_s = 2 * stall.seconds
        return stall

    def at_limit(self) -> Stall | None:
        """Returns the current stall if it has reached its limit, else None."""
        stall, limit_s = self._open(), self._limit_s
        if stall is None or limit_s is None:
            return None
        if stall.part != "input":
            # A rank that waits for files looks at them before it reports.
            limit_s = (LONGER if self._meter.recent_s else FIRST) * limit_s + 2 * PATIENCE_S
        return stall if stall.seconds >= limit_s else None

    def _open(self) -> Stall | None:
        # Read both first: the step may end at any moment.
        step, now_open = self._meter.steps + 1, self._meter.open
        if now_open is None:
            return None
        return Stall(self._meter.epoch, step, self._meter.clock() - now_open.since_s, now_open.part)

    def _run(self) -> None:
        while not self._done.wait(min(self._after_s, self._limit_s or self._after_s) / 10):
            if (stall := self.poll()) is not None:
                logger.warning("%s", self._text(stall))
                if self._path is not None:
                    figures = {"seconds": round(stall.seconds, 3), "in": stall.part, "rank": self._loader.world.rank}
                    in_time(partial(append, self._path, {"epoch": stall.epoch, "step": stall.step, "stall": figures}))
            if (stall := self.at_limit()) is not None:
                other_reason = "this rank's own step does not end, or another rank has stopped"
                reason = self._loader.waits_for() if stall.part == "input" else other_reason
                self._end(f"{self._text(stall)}: {reason}; data.stall_timeout_s is how long to wait")
                return

    def _text(self, stall: Stall) -> str:
        rank, lasted = self._loader.world.rank, f"{stall.seconds:.1f} seconds"
        return f"rank {rank}: {self._name} {stall.step} has been open for {lasted}, {STALL_REASONS[stall.part]}"
