"""The meter of training steps: what the last one's time went on, and what the open one is at."""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

RECENT = 100


class Step(NamedTuple):
    """Where a step's time went, in seconds; what the first leaves over the next three is the callbacks'."""

    step_s: float
    """From the end of the step before to its own."""
    wait_s: float
    """Waiting for the input."""
    compute_s: float
    """In the training step, but for the allreduce."""
    reduce_s: float
    """In the gradients' allreduce: the network, and the wait for slower ranks; 0 with one rank."""
    delay_s: float
    """From the batch being ready to its being taken."""

    @property
    def own_s(self) -> float:
        """What this rank alone is to blame for."""
        return self.step_s - self.reduce_s


class Open(NamedTuple):
    """A step that has not ended."""

    part: Literal["input", "step"]
    """Whether it waits for the input, or is in the training step."""
    since_s: float
    """When it began, by the meter's clock."""


class Meter:
    """Times each step as it goes through its parts; some 10 microseconds a step."""

    def __init__(
        self,
        steps: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Args: steps that the run has made already; clocks, in seconds, of which the second says the time of day."""
        self.clock, self._wall_clock = clock, wall_clock
        self.steps = steps
        """Of the run, that have ended."""
        self.epoch = 1
        """Which is being trained, counted from 1."""
        self.last: Step | None = None
        self.open: Open | None = None
        self.recent_s: deque[float] = deque(maxlen=RECENT)
        """How long each of the last steps was open."""
        # Weakly: a pipeline that lives on when fit has ended would keep its threads and batches.
        self._iterator: Callable[[], Iterator[Any] | None] = lambda: None
        self._ended_s = clock()

    @property
    def iterator(self) -> Iterator[Any] | None:
        """What the batches come from; None before the first, and after the last."""
        return self._iterator()

    def restart(self) -> None:
        """The next step's time counts from now."""
        self._ended_s = self.clock()

    def take(self, iterator: Iterator[Any]) -> Any:
        """The next batch, with which a step begins."""
        if self._iterator() is not iterator:
            self._iterator = weakref.ref(iterator)
        began_s = self.clock()
        self.open = Open("input", began_s)
        batch = next(iterator)
        self._taken_s, self._taken_at_s = self.clock(), self._wall_clock()
        self.open = Open("step", began_s)
        return batch

    def finish(self, reduce_s: float, ready_at_s: float) -> Step:
        """Ends the step that `take` began.

        Args:
            reduce_s: of it spent in the allreduce.
            ready_at_s: when its batch was ready, by the time of day.
        """
        now_s = self.clock()
        assert self.open is not None, "take() begins a step"
        began_s = self.open.since_s
        self.open = None
        self.last = Step(
            now_s - self._ended_s,
            self._taken_s - began_s,
            max(0.0, now_s - self._taken_s - reduce_s),
            reduce_s,
            max(0.0, self._taken_at_s - ready_at_s),
        )
        self.recent_s.append(now_s - began_s)
        self.steps += 1
        self._ended_s = now_s
        return self.last
