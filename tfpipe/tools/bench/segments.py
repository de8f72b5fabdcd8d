"""Measures segments, each from one delivery to another, and the spread of several."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfpipe.util.progress import progress
from tfpipe.util.schedstat import queued_s, queued_since

# Before a segment's clock starts, elements buffered in the meantime are consumed.
LEAD_IN_S = 0.2
IDLE_SHARE = 0.1
IDLE_POLL_S = 0.05
IDLE_AT_MOST_S = 3.0

# Reports that this rank has arrived; the function that it returns tells, without waiting, whether all ranks have.
Arrive = Callable[[], Callable[[], bool]]


class Count(NamedTuple):
    """Images and crops delivered since the beginning."""

    images: int = 0
    crops: int = 0  # 0 if crops are not counted
    work_s: float = 0.0  # seconds in which the batches were used, e.g. trained; 0 if nobody uses them


class Spread(NamedTuple):
    """Median and extremes of several values."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Segment:
    """The interval from one delivery to another."""

    images: int
    crops: int
    seconds: float
    cpu_seconds: float
    """CPU time of all threads of this process."""
    queued_seconds: float
    """Time that its threads were runnable without a CPU, summed over threads; 0 if the kernel does not report it."""
    work_seconds: float = 0.0
    """Time in which the batches were used; the rest is the wait for them."""

    @property
    def images_per_second(self) -> float:
        """Images per second of wall time."""
        return self.images / self.seconds

    @property
    def crops_per_second(self) -> float:
        """Crops per second of wall time."""
        return self.crops / self.seconds

    @property
    def us(self) -> float:
        """Microseconds of wall time per image."""
        return 1e6 * self.seconds / self.images

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU time per image."""
        return 1e6 * self.cpu_seconds / self.images

    @property
    def wait_share(self) -> float:
        """Share of the time that was spent waiting for batches."""
        return 1 - self.work_seconds / self.seconds

    @property
    def busy(self) -> float:
        """CPUs that this process kept busy."""
        return self.cpu_seconds / self.seconds

    @property
    def wanted(self) -> float:
        """CPUs that it would have kept busy if they had been free."""
        return (self.cpu_seconds + self.queued_seconds) / self.seconds


def spread(values: Sequence[float]) -> Spread:
    """Returns median, smallest and largest value."""
    return Spread(statistics.median(values), min(values), max(values))


def alone() -> Callable[[], bool]:
    """Implements `Arrive` for a single rank."""
    return lambda: True


def measure(source: Iterator[Count], seconds: float, lead_in_s: float = LEAD_IN_S, arrive: Arrive = alone) -> Segment:
    """Measures a segment of at least `seconds` and one image, after `lead_in_s` uncounted seconds.

    Before and after it, deliveries continue uncounted until all ranks have reached its beginning or end.
    """
    start = time.perf_counter()
    first = next(source)
    while time.perf_counter() - start < lead_in_s:
        first = next(source)
    all_here = arrive()
    while not all_here():
        first = next(source)
    queued_begin = queued_s()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    while True:
        last = next(source)
        now_s = time.perf_counter()
        if now_s - begin >= seconds and last.images > first.images:
            break
    cpu_seconds = time.process_time() - cpu_begin
    waited_s = queued_since(queued_begin, queued_s())
    all_here = arrive()
    while not all_here():
        next(source)
    images, crops, work_s = (b - a for a, b in zip(first, last, strict=True))
    return Segment(int(images), int(crops), now_s - begin, cpu_seconds, waited_s, work_s)


def in_turns(
    measured: Mapping[str, Callable[[float], Segment]], turns: int, seconds: float, show: bool
) -> dict[str, list[Segment]]:
    """Measures a segment of each in every turn, since the speed of a host drifts; returns the segments by name."""
    segments: dict[str, list[Segment]] = {name: [] for name in measured}
    names = [name for _ in range(turns) for name in measured]
    for name in progress(names, len(names), "measuring", "segment", show):
        wait_until_idle()
        segments[name].append(measured[name](seconds))
    return segments


def wait_until_idle() -> None:
    """Waits until this process's background threads are idle; they would take CPUs from the next measurement."""
    for _ in range(round(IDLE_AT_MOST_S / IDLE_POLL_S)):
        used = time.process_time()
        time.sleep(IDLE_POLL_S)
        if time.process_time() - used < IDLE_SHARE * IDLE_POLL_S:
            return
