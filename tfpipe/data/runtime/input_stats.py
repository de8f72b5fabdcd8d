"""Counts how long a loop waits for its batches, and how long they wait for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfpipe.data.runtime.autotune import stages


class InputStats:
    """Waits of a loop for its batches since their pipeline began."""

    def __init__(
        self,
        batch_size: int,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Counts batches of `batch_size` crops by two clocks in seconds, the second one for the time of day."""
        self._batch_size, self._clock, self._wall_clock = batch_size, clock, wall_clock
        self.restart()

    def restart(self) -> None:
        """Begins to count from zero."""
        self._batches, self._wait_s, self._began_s = 0, 0.0, self._clock()
        self._delay_s: float | None = None

    def add(self, wait_s: float, ready_at_s: float | None = None) -> None:
        """Counts a batch that was taken now: the loop has waited for it; it was ready at a time of day, if known."""
        self._batches += 1
        self._wait_s += wait_s
        if ready_at_s is not None:
            self._delay_s = (self._delay_s or 0.0) + max(0.0, self._wall_clock() - ready_at_s)

    def read(self, iterator: Iterator[Any] | None, names: Sequence[str]) -> dict[str, Any]:
        """Returns the counts as plain data for JSON.

        `iterator` is the pipeline's own, None if it does not run; `names` are those of its stages. AUTOTUNE measures
        the stages, so there are none if it is switched off.

        Returns:
            batches: number of batches taken.
            seconds: since the pipeline began.
            wait_s, wait_fraction: seconds that the loop has waited for batches, and their share of `seconds`.
            images_per_second: crops taken in a second.
            delay_s: seconds that a batch was ready before it was taken, on average; only if the batches have the time.
            stages: by name, the number of its elements (blocks of samples, images, decoder calls or batches) as
                `elements` and `per_second`, the mean number of its threads at work, or waiting for a CPU, as `busy`,
                and the number of calls that may run at once as `parallelism`.
        """
        seconds = max(self._clock() - self._began_s, 1e-9)
        result: dict[str, Any] = {
            "batches": self._batches,
            "seconds": seconds,
            "wait_s": self._wait_s,
            "wait_fraction": self._wait_s / seconds,
            "images_per_second": self._batches * self._batch_size / seconds,
        }
        if self._delay_s is not None:
            result["delay_s"] = self._delay_s / self._batches
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
