"""Meter of training steps: how the last step's time was spent, and in which part the current step is."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

RECENT = 100


class Step(NamedTuple):
    """Times of a step in seconds; `step_s` minus the next three is the time of the callbacks."""

    step_s: float  # from the end of the previous step to the end of this one
    wait_s: float  # wait for the input
    compute_s: float  # training step without the allreduce
    reduce_s: float  # allreduce of the gradients: network, and wait for slower ranks; 0 with one rank
    delay_s: float  # from the batch being ready to it being taken

    @property
    def own_s(self) -> float:
        """The time that this rank itself causes, without the allreduce."""
        return self.step_s - self.reduce_s


class Times(NamedTuple):
    """Times of a step of which a device may not have ended the allreduce yet."""

    step_s: float
    wait_s: float
    busy_s: float  # training step with the allreduce
    reduce_s: Any  # a float, or a scalar that converts to one
    delay_s: float

    def read(self) -> Step:
        """Returns the times as floats; waits for the device if it has not ended the step."""
        reduce_s = float(self.reduce_s)
        return Step(self.step_s, self.wait_s, max(0.0, self.busy_s - reduce_s), reduce_s, self.delay_s)


class OpenStep(NamedTuple):
    """A step that has not ended."""

    part: Literal["input", "step"]  # "input": waits for the input; "step": in the training step
    since_s: float  # begin of the step, by the meter's clock


class Meter:
    """Measures the parts of each step; costs about 10 microseconds a step."""

    def __init__(
        self,
        steps: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the steps that the run has already done, and clocks in seconds, the second one for the time of day."""
        self.clock, self._wall_clock = clock, wall_clock
        self.steps = steps
        """Steps of the run that have ended."""
        self.epoch = 1
        """Current epoch, counted from 1."""
        self.last: Times | None = None
        self.taken_at_s = 0.0
        """Time of day at which the last batch was taken."""
        self.open: OpenStep | None = None
        self.recent_s: deque[float] = deque(maxlen=RECENT)
        """Durations of the last steps, from taking the batch to the end."""
        self._ended_s = clock()

    def restart(self) -> None:
        """Lets the next step's time count from now."""
        self._ended_s = self.clock()

    def take(self, iterator: Iterator[Any]) -> Any:
        """Returns the next batch, which begins a step."""
        began_s = self.clock()
        self.open = OpenStep("input", began_s)
        batch = next(iterator)
        self._taken_s, self.taken_at_s = self.clock(), self._wall_clock()
        self.open = OpenStep("step", began_s)
        return batch

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time within `with` as waiting for the input of a step, so that a hang there is a stall."""
        self.open = OpenStep("input", self.clock())
        yield
        self.open = None

    def finish(self, reduce_s: Any, ready_at_s: float) -> Times:
        """Ends the step that `take` began.

        It spent `reduce_s` seconds, a float or a scalar to be read later, in the allreduce; its batch was ready at the
        time of day `ready_at_s`.
        """
        now_s = self.clock()
        assert self.open is not None, "take() begins a step"
        began_s = self.open.since_s
        self.open = None
        self.last = Times(
            now_s - self._ended_s,
            self._taken_s - began_s,
            now_s - self._taken_s,
            reduce_s,
            max(0.0, self.taken_at_s - ready_at_s),
        )
        self.recent_s.append(now_s - began_s)
        self.steps += 1
        self._ended_s = now_s
        return self.last
