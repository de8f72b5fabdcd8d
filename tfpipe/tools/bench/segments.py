"""How bench measures: a segment between two deliveries, and the spread of several."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfpipe.runqueue import queued_s, queued_since

# Before a segment's clock starts, what was buffered meanwhile is used up.
LEAD_IN_S = 0.2
IDLE_SHARE = 0.1
IDLE_POLL_S = 0.05
IDLE_AT_MOST_S = 3.0

# Says that this rank has come so far; what it returns then says whether all ranks have, without waiting for them.
Arrive = Callable[[], Callable[[], bool]]


class Count(NamedTuple):
    """What has been delivered since the beginning."""

    images: int = 0
    crops: int = 0  # 0 where none are counted


class Spread(NamedTuple):
    """Of several values."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Segment:
    """A stretch from one delivery to another."""

    images: int
    crops: int
    seconds: float
    cpu_seconds: float
    """Of all threads of this process."""
    queued_seconds: float
    """In which its threads could have run but had no CPU, summed over them; 0 where the kernel does not say."""

    @property
    def images_per_second(self) -> float:
        """Of wall time."""
        return self.images / self.seconds

    @property
    def crops_per_second(self) -> float:
        """Of wall time."""
        return self.crops / self.seconds

    @property
    def us(self) -> float:
        """Microseconds of wall time an image."""
        return 1e6 * self.seconds / self.images

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU time an image."""
        return 1e6 * self.cpu_seconds / self.images

    @property
    def busy(self) -> float:
        """CPUs that this process kept busy."""
        return self.cpu_seconds / self.seconds

    @property
    def wanted(self) -> float:
        """CPUs that it would have kept busy, had it been given them."""
        return (self.cpu_seconds + self.queued_seconds) / self.seconds


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest."""
    return Spread(statistics.median(values), min(values), max(values))


def alone() -> Callable[[], bool]:
    """`Arrive` where there is but one rank."""
    return lambda: True


def measure(source: Iterator[Count], seconds: float, lead_in_s: float = LEAD_IN_S, arrive: Arrive = alone) -> Segment:
    """A segment of at least `seconds`, with at least one image in it, after `lead_in_s` seconds that do not count.

    Deliveries go on, uncounted, until all ranks have come to its beginning, and then to its end.
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
        now = time.perf_counter()
        if now - begin >= seconds and last.images > first.images:
            break
    cpu_seconds = time.process_time() - cpu_begin
    waited_s = queued_since(queued_begin, queued_s())
    all_here = arrive()
    while not all_here():
        next(source)
    return Segment(last.images - first.images, last.crops - first.crops, now - begin, cpu_seconds, waited_s)


def wait_until_idle() -> None:
    """Lets this process's background threads come to rest, which else take CPUs from the next thing measured."""
    for _ in range(round(IDLE_AT_MOST_S / IDLE_POLL_S)):
        used = time.process_time()
        time.sleep(IDLE_POLL_S)
        if time.process_time() - used < IDLE_SHARE * IDLE_POLL_S:
            return
