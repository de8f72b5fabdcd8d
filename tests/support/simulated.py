"""Pipelines without TensorFlow, for thousands of Loaders: positions and labels of batches, faults and pauses."""

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfpipe import Config, Stream, World
from tfpipe.data.batch import Batch
from tfpipe.data.crop_counts import most_crops
from tfpipe.data.split import Split

CHUNK = 16


class Simulation:
    """What the pipelines of a test share: the errors that come next, and how many pipelines were built."""

    def __init__(self) -> None:
        self.errors: dict[int, list[Exception]] = {}  # by rank
        self.built = 0
        self.bad: set[int] = set()  # items that cannot be used

    def build(
        self,
        config: Config,
        split: str,
        world: World,
        resume: Stream | None,
        data: Split,
        with_ready: bool = False,
    ) -> "Simulated":
        """As pipeline.build_batches."""
        self.built += 1
        return Simulated(self, data.adapt(config.data, world), resume or Stream.start(world.size))


class Simulated:
    """The batches of a rank from a point of the stream on; an iterable, with tf.data's `take`."""

    def __init__(self, simulation: Simulation, split: Split, stream: Stream, most: int | None = None) -> None:
        self.simulation, self.split, self.stream, self.most = simulation, split, stream, most

    def take(self, count: int) -> "Simulated":
        return Simulated(self.simulation, self.split, self.stream, None if count < 0 else count)

    def __iter__(self) -> Iterator[Batch]:
        return itertools.islice(self._batches(), self.most)

    def _crops(self) -> Iterator[list[int]]:
        split, rank = self.split, self.split.world.rank
        for start in itertools.count(0, CHUNK):
            end = start + CHUNK
            if not split.training:
                end = min(end, self.stream.count(rank, split.order.count))
            if end <= start:
                return
            visits = split.visits(self.stream, end)
            counts = most_crops(split, visits.item)
            for position, item, first, count in zip(
                *(part[start:end].tolist() for part in (*visits, counts)), strict=True
            ):
                if item not in self.simulation.bad:
                    yield from ([position, crop] for crop in range(first, count))

    def _batches(self) -> Iterator[Batch]:
        crops, rows = self._crops(), self.split.config.batch_size
        while chunk := list(itertools.islice(crops, rows)):
            if errors := self.simulation.errors.get(self.split.world.rank):
                raise errors.pop(0)
            positions = np.array(chunk, np.int64)
            yield Batch((positions.copy(),), positions)


def passing() -> tf.errors.OpError:
    """An error of storage that may pass."""
    return tf.errors.UnknownError(None, None, f"/data/a.JPEG; {os.strerror(errno.EIO)}")


def lasting() -> tf.errors.OpError:
    """An error that does not pass."""
    return tf.errors.UnknownError(None, None, f"/data/a.JPEG; {os.strerror(errno.EACCES)}")


def simulate(monkeypatch: pytest.MonkeyPatch, simulation: Simulation) -> None:
    """Gives Loaders these pipelines, without pauses before further tries."""
    monkeypatch.setattr("tfpipe.data.loader.build_batches", simulation.build)
    monkeypatch.setattr("tfpipe.data.failures.batches.Batches._iterate", lambda _, dataset: Iterated(dataset))
    monkeypatch.setattr("tfpipe.data.failures.missing.replay", _replay)
    monkeypatch.setattr("tfpipe.util.retry.FIRST_PAUSE_S", 0.0)


class Iterated(Iterator[Batch]):
    """An iterator that raises an error again and then goes on as tf.data's do, and that another thread can cancel."""

    def __init__(self, dataset: Simulated) -> None:
        self.dataset, self.iterator, self.cancelled = dataset, iter(dataset), False

    def __next__(self) -> Batch:
        if self.cancelled:
            raise tf.errors.CancelledError(None, None, "cancelled")
        return next(self.iterator)

    def cancel(self) -> None:
        self.cancelled = True


def _replay(samples: tf.data.Dataset, split: Split) -> Iterator[Any]:
    """Each sample that is missing is bad."""
    return (lasting() for _ in samples)


def table(folder: Path, boxes: list[int], bad: set[int]) -> Path:
    """A table of images, each with its number of boxes; only the bad ones are looked for, and are not there."""
    path = folder / "boxes.csv"
    rows = [
        f"{folder}/{number}.jpg,64,64,{'ab'[number % 2]},{4 * box},2,{4 * box + 20},40,{1 + number % 3}\n"
        for number, count in enumerate(boxes)
        for box in range(count)
    ]
    path.write_text("path,width,height,label,xmin,ymin,xmax,ymax,weight\n" + "".join(rows))
    return path
