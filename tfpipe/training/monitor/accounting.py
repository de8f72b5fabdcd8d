"""Callbacks that sum up all ranks' steps by interval, and samples by epoch; they cost less than one percent."""

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.loader import Loader
from tfpipe.data.pipeline import stage_names
from tfpipe.data.runtime.autotune import Stage, since, stages, tuned_values
from tfpipe.data.runtime.meter import StepTimes, Times
from tfpipe.training.monitor.metrics import append
from tfpipe.training.monitor.record import Logs, Record, Throughput
from tfpipe.training.monitor.stragglers import describe_stragglers, find_straggler
from tfpipe.training.run_model import RunCallback
from tfpipe.util.resources import queued_s, queued_since, usable_cpus

# Samples of which each is counted: the ranks add up 8 bytes for each at the end of an epoch.
MOST_SAMPLES = 10**7
logger = logging.getLogger(__name__)

FRACTION_DIGITS, MS_DIGITS = 4, 3


class NewPositions:
    """The positions of batches without those counted before: a sample's crops may lie in two batches."""

    def __init__(self) -> None:
        self._last = -1

    def of(self, batches: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the new positions, int64 [n], each once, of batches of positions, int64 [batch, 2] each."""
        positions = np.unique(np.concatenate([np.zeros(0, np.int64), *(batch[:, 0] for batch in batches)]))
        new = positions[positions != self._last]
        self._last = batches[-1][-1, 0] if batches else self._last
        return new


class SampleCounter:
    """Counts the images and files of batches, by their positions."""

    def __init__(self, loader: Loader) -> None:
        catalog = loader.catalog
        self._annotated = None if catalog.boxes is not None else catalog.annotated
        self._order, self._world, self._new = loader.data.order, loader.world, NewPositions()

    def count(self, batches: Sequence[np.ndarray]) -> tuple[int, int]:
        """Counts the new images and files, JPEGs plus XMLs if they are read, in batches of these positions.

        Those are int64 [batch, 2] each. Looking up an image's item costs 0.4 microseconds.
        """
        new = self._new.of(batches)
        if self._annotated is None or not len(new):
            return len(new), len(new)
        annotated = self._annotated[self._order.items(new, self._world)]
        return len(new), len(new) + int(annotated.sum())


class SampleShares(RunCallback):
    """Adds to an epoch's logs the number of samples of each class, and how many samples came 0, 1, 2 ... times.

    For data with weights. Counts the samples of all ranks; of an interrupted epoch, those since the run resumed.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        catalog = loader.catalog
        boxes = catalog.sampled_boxes
        self._labels = catalog.labels if boxes is None else boxes.labels
        self._classes, self._order, self._world = catalog.classes, loader.data.order, loader.world
        self._positions: list[np.ndarray] = []
        self._new = NewPositions()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._positions.append(self._new.of([self.model.positions.numpy()]))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        new, self._positions = np.concatenate([np.zeros(0, np.int64), *self._positions]), []
        items, classes = self._order.items(new, self._world), len(self._classes)
        labels = self._labels[items]
        by_class = np.bincount(labels[labels != BY_OBJECT], minlength=classes)
        by_sample = np.bincount(items, minlength=self._order.count) if self._order.count <= MOST_SAMPLES else new[:0]
        counts = self._world.sum(np.concatenate([by_class, by_sample]).astype(np.float64)).astype(np.int64)
        logs["class_samples"] = dict(zip(self._classes, counts[:classes].tolist(), strict=True))
        if len(by_sample):
            logs["samples_by_visits"] = np.bincount(counts[classes:]).tolist()


class Usage(NamedTuple):
    """Resources used since the start of the process."""

    cpu_s: float  # CPU seconds of all threads
    read_bytes: int  # bytes of read calls, from storage or the page cache; memory-mapped files do not count
    storage_bytes: int  # bytes fetched from storage; reads of a network file system may be missing


class RankFigures(NamedTuple):
    """Figures of an interval that a rank sends to the others: means over its steps."""

    wait_ms: float
    own_ms: float
    compute_ms: float
    cpu_fraction: float
    memory_bytes: float
    delay_ms: float
    transfer_ms: float
    callbacks_ms: float
    rest_ms: float


class Readings(NamedTuple):
    """Counters of this process at the begin of an interval; the stages are those of rank 0 alone."""

    used: Usage
    stages: Sequence[Stage]
    queued: Mapping[str, float]  # seconds that a thread was runnable but had no CPU
    spent: Mapping[str, float]  # seconds in callbacks, by name


class IntervalFigures(NamedTuple):
    """Figures of an interval of rank 0's steps, as a line of metrics.jsonl has them."""

    steps: int
    seconds: float
    images_per_second: float
    input_wait_fraction: float
    step_ms: dict[str, float]  # mean and percentiles; likewise those of the parts of a step
    wait_ms: dict[str, float]
    transfer_ms: dict[str, float]
    compute_ms: dict[str, float]
    reduce_ms: dict[str, float]
    callbacks_ms: dict[str, float]
    rest_ms: dict[str, float]
    delay_ms: dict[str, float]
    callbacks: dict[str, float]  # milliseconds of a step, by name
    cpu_fraction: float
    cores: int
    queued_fraction: float
    memory_bytes: int
    read_bytes: int
    storage_bytes: int
    images: int
    files: int
    autotune: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    ranks: list[dict[str, Any]]  # the figures of each rank, with its number and host
    spread: dict[str, dict[str, float]]
    straggler: dict[str, Any] | None


class TimedCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a run as Keras' fit calls them, whose time the meter counts as a part of the steps."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        with self._model.meter.calling():
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        with self._model.meter.calling():
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        # Keras would read each metric from the device, for which it waits.
        with self._model.meter.calling():
            for callback in self.callbacks:
                callback.on_train_batch_end(batch, logs)


class Accounting(RunCallback):
    """Summarises every `interval` steps, and the rest of an epoch; rank 0 writes the figures and warns of stragglers.

    It leaves out a run's first steps, as Throughput does. All ranks summarise after the same step, in one collective.
    """

    def __init__(self, loader: Loader, interval: int, throughput: Throughput, record: Record | None) -> None:
        """Requires `throughput` earlier in the list; `record` is None except on rank 0."""
        super().__init__()
        self.loader, self.world, self.interval, self.throughput = loader, loader.world, interval, throughput
        self.record, self.visits = record, SampleCounter(loader)
        self.names = stage_names(loader.data)
        self.latest: IntervalFigures | None = None
        """The last interval, on rank 0; None before its end."""
        self.cores = loader.world.threads or usable_cpus()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.hosts = self.world.gather(socket.gethostname())

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self.loader.meter.begin_epoch(epoch + 1)
        self.of_epoch: list[dict[str, Any]] = []
        self._begin(self._read())

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self.throughput.steps == 0:
            self._begin(self._read())
            return
        assert self.loader.meter.last is not None, "a step has ended"
        self.times.append(self.loader.meter.last)
        self.positions.append(self.model.positions.numpy())
        if len(self.times) == self.interval or self.model.granted.stop:
            self._close()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if self.times:
            self._close()
        if (straggling := describe_stragglers(self.of_epoch)) is not None:
            logger.warning("%s", straggling)

    def _read(self) -> Readings:
        stages_now = [] if self.record is None else stages(self.loader.iterator, self.names)
        return Readings(usage(), stages_now, queued_s(), dict(self.loader.meter.spent_s))

    def _begin(self, readings: Readings) -> None:
        self.readings = readings
        self.times: list[Times] = []
        self.positions: list[np.ndarray] = []

    def _close(self) -> None:
        before, now = self.readings, self._read()
        steps = [times.read() for times in self.times]
        cpu_s = now.used.cpu_s - before.used.cpu_s
        seconds = sum(step.step_s for step in steps)
        figures = rank_figures(steps, cpu_s / (seconds * self.cores), resident_bytes())
        # One allreduce of a table with a row per rank is twice as fast as a gather.
        table = np.zeros((self.world.size, len(figures)))
        table[self.world.rank] = figures
        ranks = [RankFigures(*row) for row in self.world.sum(table).tolist()]
        if self.record is not None:
            self.latest = self._describe(steps, ranks, before, now)
            self.of_epoch.append(self.latest._asdict())
            meter = self.loader.meter
            append(self.record.path, {"epoch": meter.epoch, "step": meter.steps, "interval": self.of_epoch[-1]})
            self.record.draw(curves(self.latest))
        # The next interval begins where this one ended, so that all work counts, including this summary.
        self._begin(now)

    def _describe(
        self, steps: Sequence[StepTimes], ranks: Sequence[RankFigures], before: Readings, now: Readings
    ) -> IntervalFigures:
        seconds = sum(step.step_s for step in steps)
        described = [
            {
                "rank": rank,
                "host": host,
                **{name: round(value, MS_DIGITS) for name, value in figures._asdict().items()},
                "cpu_fraction": round(figures.cpu_fraction, FRACTION_DIGITS),
                "memory_bytes": int(figures.memory_bytes),
            }
            for rank, (host, figures) in enumerate(zip(self.hosts, ranks, strict=True))
        ]
        straggler = find_straggler(described)
        images, files = self.visits.count(self.positions)
        mean_wait_s = float(np.mean([figures.wait_ms for figures in ranks])) / 1000
        return IntervalFigures(
            steps=len(steps),
            seconds=round(seconds, 6),
            images_per_second=round(len(steps) * self.throughput.images_per_step / seconds, 3),
            input_wait_fraction=round(len(steps) * mean_wait_s / seconds, FRACTION_DIGITS),
            **distributions(steps),
            callbacks={
                name: round(1000 * (spent_s - before.spent.get(name, 0.0)) / len(steps), MS_DIGITS)
                for name, spent_s in now.spent.items()
            },
            cpu_fraction=described[self.world.rank]["cpu_fraction"],
            cores=self.cores,
            queued_fraction=round(queued_since(before.queued, now.queued) / (seconds * self.cores), FRACTION_DIGITS),
            memory_bytes=described[self.world.rank]["memory_bytes"],
            read_bytes=now.used.read_bytes - before.used.read_bytes,
            storage_bytes=now.used.storage_bytes - before.used.storage_bytes,
            images=images,
            files=files,
            autotune=[vars(choice) for choice in tuned_values(self.loader.iterator, self.names)],
            stages=[
                {**vars(stage), "busy_ms": round(stage.busy_ms / stage.elements, MS_DIGITS)}
                for stage in since(before.stages, now.stages)
                if stage.elements
            ],
            ranks=described,
            spread={part: spread([figures[part] for figures in described]) for part in ("wait_ms", "own_ms")},
            straggler=straggler and {**straggler._asdict(), "times": round(straggler.times, MS_DIGITS)},
        )


def usage() -> Usage:
    """Returns this process's usage so far; bytes are 0 if the kernel does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        lines = []
    counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return Usage(time.process_time(), counts.get("rchar", 0), counts.get("read_bytes", 0))


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rank_figures(steps: Sequence[StepTimes], cpu_fraction: float, memory_bytes: int) -> RankFigures:
    """Returns the means over one rank's steps; a CPU fraction above 1, from threads on other ranks' CPUs, becomes 1."""
    own_ms = 1000 * float(np.mean([step.own_s for step in steps]))
    mean = StepTimes(*(1000 * np.mean(steps, axis=0)).tolist())
    return RankFigures(
        *(mean.wait_s, own_ms, mean.compute_s, min(1.0, cpu_fraction), memory_bytes, mean.delay_s),
        *(mean.transfer_s, mean.callbacks_s, mean.rest_s),
    )


def distributions(steps: Sequence[StepTimes]) -> dict[str, Any]:
    """Returns mean and percentiles of each part of the steps, in milliseconds, dict[str, float], by name."""
    result = {}
    for name, values_s in zip(StepTimes._fields, np.array(steps).T, strict=True):
        figures = [values_s.mean(), *np.percentile(values_s, (50, 90, 99))]
        result[name.removesuffix("_s") + "_ms"] = {
            key: round(1000 * float(value), MS_DIGITS)
            for key, value in zip(("mean", "p50", "p90", "p99"), figures, strict=True)
        }
    return result


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the minimum, median and maximum."""
    return {"min": min(values), "median": round(float(np.median(values)), MS_DIGITS), "max": max(values)}


def curves(interval: IntervalFigures) -> dict[str, float]:
    """Returns the figures of an interval that TensorBoard draws, by curve."""
    names = ("images_per_second", "input_wait_fraction", "cpu_fraction", "memory_bytes")
    times = [field.removesuffix("_s") + "_ms" for field in StepTimes._fields]
    return {
        **{f"interval/{name}": getattr(interval, name) for name in names},
        **{f"interval/{name}": getattr(interval, name)["mean"] for name in times},
        **{f"interval/slowest_rank_{part}": values["max"] for part, values in interval.spread.items()},
    }
