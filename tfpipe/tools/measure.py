"""The measuring engine of bench, its sweep and headspace, and tune: segments of pipelines, measured in turns.

A segment lasts from one delivery to another. Measurements that are compared alternate, since the speed of a host
drifts: a segment of each, then the next turn.
"""

import json
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.failures.batches import Batches
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import build_batches, stage_names
from tfpipe.data.runtime.autotune import TunedValue, tuned_values
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import SPEED, Split
from tfpipe.distributed import World
from tfpipe.util.progress import progress
from tfpipe.util.resources import queued_s, queued_since

# Before a segment's clock starts, elements buffered in the meantime are consumed.
LEAD_IN_S = 0.2
IDLE_SHARE = 0.1
IDLE_POLL_S = 0.05
IDLE_AT_MOST_S = 3.0

# Pipelines start this share of the epoch apart: the golden ratio keeps any number of them apart.
START_SHARE = (5**0.5 - 1) / 2

Name = TypeVar("Name", bound=Hashable)
# Reports that this rank has arrived; the function that it returns tells, without waiting, whether all ranks have.
Arrive = Callable[[], Callable[[], bool]]
Work = Callable[[Any], object]
"""A function that is called with each batch, e.g. a training step."""


class Count(NamedTuple):
    """Images and crops delivered since the beginning."""

    images: int = 0
    crops: int = 0  # 0 if crops are not counted
    work_s: float = 0.0  # seconds in which the batches were used, e.g. trained; 0 if they are not used


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
    cpu_seconds: float  # CPU time of all threads of this process
    queued_seconds: float
    """Time that its threads were runnable without a CPU, summed over threads; 0 if the kernel does not report it."""
    work_seconds: float = 0.0  # time in which the batches were used; the rest is the wait for them

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
    def wanted_cpus(self) -> float:
        """CPUs that it would have kept busy if they had been free."""
        return (self.cpu_seconds + self.queued_seconds) / self.seconds


def spread(values: Sequence[float]) -> Spread:
    """Returns median, smallest and largest value."""
    return Spread(statistics.median(values), min(values), max(values))


def spread_of(segments: Sequence[Segment], figure: str = "images_per_second") -> Spread:
    """Returns the spread of a figure, a property of `Segment`, over segments."""
    return spread([getattr(segment, figure) for segment in segments])


def ratio_of(segments: Sequence[Segment], to: Sequence[Segment], figure: str = "images_per_second") -> Spread:
    """Returns the ratio of a figure of segments to that of others, turn by turn."""
    return spread([getattr(a, figure) / getattr(b, figure) for a, b in zip(segments, to, strict=True)])


def no_barrier() -> Callable[[], bool]:
    """Implements `Arrive` for a single rank."""
    return lambda: True


def measure(
    source: Iterator[Count], seconds: float, lead_in_s: float = LEAD_IN_S, arrive: Arrive = no_barrier
) -> Segment:
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
    measured: Mapping[Name, Callable[[float], Segment]], turns: int, seconds: float, show: bool
) -> dict[Name, list[Segment]]:
    """Measures a segment of each in every turn; returns the segments by name."""
    segments: dict[Name, list[Segment]] = {name: [] for name in measured}
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


class Pipelines:
    """Makes the pipelines of a rank's training data; each starts elsewhere in the epoch.

    So none finds the files that another has read in the page cache. Configs that differ only in SPEED share
    what was loaded.
    """

    def __init__(self, world: World, warm_up_s: float, start: float = 0.0) -> None:
        """Takes the shortest warm-up of a segment in seconds, and the share of the epoch at which the first starts."""
        self.world, self.warm_up_s = world, warm_up_s
        self._start, self._made = start, 0
        self._splits: dict[str, Split] = {}

    def split(self, config: Config) -> Split:
        """Returns the training data of a config. Raises ConfigError as load_split does."""
        key = json.dumps(config.data.model_dump(mode="json", exclude=SPEED))
        if key not in self._splits:
            self._splits[key] = load_split(config.data, "train", self.world)
        return self._splits[key].adapt(config.data, self.world)

    def next_start(self, config: Config) -> int:
        """Returns the number of visits after which the next chain starts; no other one starts there."""
        share = (self._start + START_SHARE * self._made) % 1
        self._made += 1
        return int(share * self.split(config).order.length) // self.world.size

    def stream(self, visits: int) -> Stream:
        """Returns the stream after this rank has made `visits` visits."""
        return Stream.start(self.world.size).moved(self.world.rank, Cursor(self.world.rank + visits * self.world.size))

    def images_until(self, positions: tf.Tensor) -> int:
        """Returns the number of this rank's visits through the last of `positions`, int64 [n, 2]."""
        return int(positions[-1, 0]) // self.world.size + 1

    def batches(self, config: Config, visits: int, build: Callable[..., tf.data.Dataset] = build_batches) -> Batches:
        """Returns the config's batches after `visits` visits, as `build` makes them; it names the file of an error."""
        split = self.split(config)
        return Batches(lambda rest, _: build(config, "train", self.world, rest, split), split, self.stream(visits))

    def new(self, config: Config, work: Work | None = None, warm_up_s: float | None = None) -> "Pipeline":
        """Returns a pipeline; a batch counts as delivered when `work`, if given, has processed it."""
        return Pipeline(self, config, work, self.warm_up_s if warm_up_s is None else warm_up_s)

    @contextmanager
    def failures_named(self, config: Config) -> Iterator[None]:
        """Replaces TensorFlow's errors inside `with` by a TfpipeError that names the file."""
        try:
            yield
        except tf.errors.OpError as error:
            raise to_named_error(error, self.split(config), Stream.start(self.world.size), None) from error


class Pipeline:
    """The complete training pipeline of a config.

    Each segment builds it again, from where the last one ended: AUTOTUNE would double the buffer of an idle pipeline.
    """

    def __init__(self, pipelines: Pipelines, config: Config, work: Work | None, warm_up_s: float) -> None:
        self.first_batch_s: list[float] = []  # seconds from building the pipeline to its first batch, by segment
        self.tuned: list[TunedValue] = []  # AUTOTUNE's choices at the end of the last segment
        self._pipelines, self._config, self._work, self._warm_up_s = pipelines, config, work, warm_up_s
        self._visits = pipelines.next_start(config)

    def measure(self, seconds: float, arrive: Arrive = no_barrier) -> Segment:
        """Measures a segment after the warm-up."""
        start = time.perf_counter()
        batches = self._pipelines.batches(self._config, self._visits)
        source = self._deliveries(batches)
        next(source)
        self.first_batch_s.append(time.perf_counter() - start)
        segment = measure(source, seconds, self._warm_up_s, arrive)
        self.tuned = tuned_values(batches.iterator, stage_names(self._pipelines.split(self._config)))
        return segment

    def _deliveries(self, batches: Iterator[Any]) -> Iterator[Count]:
        done = Count()
        for batch in batches:
            work_s = 0.0
            if self._work is not None:
                begin_s = time.perf_counter()
                self._work(batch)
                work_s = time.perf_counter() - begin_s
            self._visits = self._pipelines.images_until(batch.positions)
            done = Count(self._visits, done.crops + len(batch.positions), done.work_s + work_s)
            yield done
