"""The one clock of a rank's batches and steps: waits, delays, and in which part the current step is."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from tfpipe.data.runtime.autotune import count_queued, stages

RECENT = 100


class StepTimes(NamedTuple):
    """Times of a step in seconds; the six after `step_s` are its parts, which add up to it."""

    step_s: float  # from the end of the previous step to the end of this one
    wait_s: float  # wait for the input
    transfer_s: float  # wait for the copy of the batch to the model's device
    compute_s: float  # training step without the allreduce
    reduce_s: float  # allreduce of the gradients: network, and wait for slower ranks; 0 with one rank
    callbacks_s: float  # callbacks since the previous step's end
    rest_s: float  # all else between two steps: the loop itself
    delay_s: float  # from the batch being ready to it being taken

    @property
    def own_s(self) -> float:
        """The time that this rank itself causes, without the allreduce."""
        return self.step_s - self.reduce_s


class Times(NamedTuple):
    """Times of a step of which a device may not have ended the allreduce yet."""

    step_s: float
    wait_s: float
    transfer_s: float
    busy_s: float  # from the taking of the batch to the end: training step and allreduce
    reduce_s: Any  # a float, or a scalar that converts to one
    callbacks_s: float
    delay_s: float

    def read(self) -> StepTimes:
        """Returns the times as floats; waits for the device if it has not ended the step."""
        reduce_s = min(float(self.reduce_s), self.busy_s)  # by another clock
        rest_s = max(0.0, self.step_s - self.wait_s - self.transfer_s - self.busy_s - self.callbacks_s)
        return StepTimes(
            *(self.step_s, self.wait_s, self.transfer_s, self.busy_s - reduce_s, reduce_s, self.callbacks_s),
            *(rest_s, self.delay_s),
        )


class OpenStep(NamedTuple):
    """A step that has not ended."""

    part: Literal["input", "step"]  # "input": waits for the input; "step": in the training step
    since_s: float  # begin of the step, by the meter's clock


class Meter:
    """Measures a Loader's waits and, if a loop calls `finish`, the parts of each step; about 10 microseconds a step."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Takes clocks in seconds, the second one for the time of day."""
        self.clock, self._wall_clock = clock, wall_clock
        self.steps = 0
        """Steps that have ended; a run counts its earlier ones too."""
        self.epoch = 1
        """Current epoch, counted from 1."""
        self.last: Times | None = None
        self.taken_at_s = 0.0
        """Time of day at which the last batch was taken."""
        self.open: OpenStep | None = None
        self.recent_s: deque[float] = deque(maxlen=RECENT)
        """Durations of the last steps, from taking the batch to the end."""
        self.waited_s = 0.0
        """Seconds waited for batches since the pipeline began."""
        self.spent_s: dict[str, float] = {}
        """Seconds spent in callbacks since the start, by the names given to `spending`."""
        self._delayed_s: float | None = None
        self._ended_s = clock()
        self._callbacks_s = self._left_out_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Counts batches from zero, as a pipeline begins; the count of steps continues."""
        self._batches, self.waited_s, self._delayed_s = 0, 0.0, None
        self._began_s = self.clock()
        self.recent_s.clear()

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, counted from 1: the next step's time counts from now."""
        self.epoch, self._ended_s, self._callbacks_s, self._left_out_s = epoch, self.clock(), 0.0, 0.0

    def wait(self) -> None:
        """Begins a step by the wait for its batch."""
        self.open = OpenStep("input", self.clock())

    def take(self, ready_s: float = math.inf, moved_s: float = 0.0) -> None:
        """Ends the wait for a batch.

        `ready_s` is the time of day at which it was ready, math.inf if that is not known; `moved_s` are the seconds in
        which a thread put it on a device, of which the wait may be a part.
        """
        assert self.open is not None, "wait() begins a step"
        began_s = self.open.since_s
        self._taken_s = self.clock()
        self.taken_at_s = self._wall_clock()
        self.open = OpenStep("step", began_s)
        self._batches += 1
        self._delay_s = max(0.0, self.taken_at_s - ready_s)
        if ready_s < math.inf:
            self._delayed_s = (self._delayed_s or 0.0) + self._delay_s
        self._transfer_s = min(moved_s, self._taken_s - began_s)
        self._wait_s = self._taken_s - began_s - self._transfer_s
        self.waited_s += self._wait_s

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Counts the time within `with` as the callbacks' of the step that ends next."""
        began_s = self.clock()
        try:
            yield
        finally:
            # An epoch that begins within is no part of a step until then.
            self._callbacks_s += self.clock() - max(began_s, self._ended_s)

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Leaves the time within `with`, which lies in a callback, out of the step: that of a measurement itself."""
        began_s = self.clock()
        yield
        spent_s = self.clock() - began_s
        self._left_out_s += spent_s
        self._callbacks_s -= spent_s

    @contextmanager
    def spending(self, name: str) -> Iterator[None]:
        """Adds the time within `with`, which lies in a callback, to `spent_s`."""
        began_s = self.clock()
        try:
            yield
        finally:
            self.spent_s[name] = self.spent_s.get(name, 0.0) + self.clock() - began_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time within `with` as waiting for the input of a step, so that a hang there is a stall."""
        self.open = OpenStep("input", self.clock())
        yield
        self.open = None

    def finish(self, reduce_s: Any) -> Times:
        """Ends the step that `take` began, with `reduce_s` seconds of allreduce: a float or a scalar to read later."""
        now_s = self.clock()
        assert self.open is not None, "take() begins a step"
        self.recent_s.append(now_s - self.open.since_s)
        self.open = None
        parts_s = self._wait_s, self._transfer_s, now_s - self._taken_s, reduce_s, self._callbacks_s
        self.last = Times(now_s - self._ended_s - self._left_out_s, *parts_s, self._delay_s)
        self.steps += 1
        self._ended_s, self._callbacks_s, self._left_out_s = now_s, 0.0, 0.0
        return self.last

    def stats(self, batch_size: int, iterator: Iterator[Any] | None, names: Sequence[str]) -> dict[str, Any]:
        """Returns the counts since the pipeline began as plain data for JSON.

        `batch_size` is the number of crops of a batch; `iterator` is the pipeline's own, None if it does not run;
        `names` are those of its stages. AUTOTUNE measures the stages, so there are none if it is switched off.

        Returns:
            batches: number of batches taken.
            seconds: since the pipeline began.
            wait_s, wait_fraction: seconds that the loop has waited for batches, and their share of `seconds`.
            images_per_second: crops taken in a second.
            delay_s: seconds that a batch was ready before it was taken, on average; only if the batches have the time.
            queue: number of batches that are ready and not taken; only if AUTOTUNE measures the pipeline.
            stages: by name, the number of its elements (blocks of samples, images, decoder calls or batches) as
                `elements` and `per_second`, the mean number of its threads at work, or waiting for a CPU, as `busy`,
                and the number of calls that may run at once as `parallelism`.
        """
        seconds = max(self.clock() - self._began_s, 1e-9)
        result: dict[str, Any] = {
            "batches": self._batches,
            "seconds": seconds,
            "wait_s": self.waited_s,
            "wait_fraction": self.waited_s / seconds,
            "images_per_second": self._batches * batch_size / seconds,
        }
        if self._delayed_s is not None:
            result["delay_s"] = self._delayed_s / self._batches
        if (ready := None if iterator is None else count_queued(iterator)) is not None:
            result["queue"] = ready
        result["stages"] = {
            stage.stage: {
                "elements": stage.elements,
                "per_second": stage.elements / seconds,
                "busy": stage.busy_ms / 1000 / seconds,
                "parallelism": stage.parallelism,
            }
            for stage in ([] if iterator is None else stages(iterator, names))
        }
        return result
