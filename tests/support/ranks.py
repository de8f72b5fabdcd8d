"""Ranks of a run, worked out without a pipeline."""

import itertools
from collections.abc import Iterator

import numpy as np

from tfpipe.data.order.permutation import Order
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.distributed import World

Place = tuple[int, int]


class Ranks:
    """Crops that a run's ranks train, worked out without a pipeline: `steps(k)` gives the crops of k steps by rank."""

    def __init__(self, stream: Stream, order: Order, crops: np.ndarray, batch: int) -> None:
        self.stream, self.order, self.crops, self.batch = stream, order, crops, batch
        self.streams = [self._stream(World(rank, stream.size)) for rank in range(stream.size)]

    def _stream(self, world: World) -> Iterator[Place]:
        for length in itertools.count(64, 64):
            visits = zip(*self.stream.visits(self.order, world, length), strict=True)
            for position, item, first in itertools.islice(visits, length - 64, None):
                yield from ((int(position), crop) for crop in range(int(first), self.crops[item]))

    def steps(self, count: int) -> list[list[Place]]:
        """[rank][crop]; moves on."""
        return [list(itertools.islice(stream, count * self.batch)) for stream in self.streams]

    def interrupted(self, trained: list[list[Place]]) -> Stream:
        """The stream after what each rank has trained, as a checkpoint holds it."""
        ends = [Cursor.after(places[-1]) if places else self.stream.cursors[r] for r, places in enumerate(trained)]
        return self.stream.at(ends)


def everything(crops: np.ndarray, order: Order, below: int) -> set[Place]:
    """All crops at the positions below `below`."""
    items = order.items(np.arange(below))
    return {(position, crop) for position, item in enumerate(items) for crop in range(crops[item])}


def rest_of(stream: Stream, world: World, order: Order, crops: np.ndarray, below: int) -> list[Place]:
    """Crops that a rank has yet to train at positions below `below`."""
    visits = stream.visits(order, world, below + len(stream.pending))
    return [
        (int(position), crop)
        for position, item, first in zip(*visits, strict=True)
        if position < below
        for crop in range(int(first), crops[item])
    ]


def check_interrupted(order: Order, crops: np.ndarray, runs: list[tuple[int, int]], batch: int, ahead: int) -> None:
    """Asserts that runs of (ranks, steps), each resuming the last, train no crop twice and leave all others.

    Everything up to `ahead` positions beyond the last one that was passed must still come.
    """
    stream, trained = Stream.start(runs[0][0]), []
    for size, steps in runs:
        ranks = Ranks(stream.over(size), order, crops, batch)
        ran = ranks.steps(steps)
        stream = ranks.interrupted(ran)
        trained += itertools.chain(*ran)
    assert len(set(trained)) == len(trained)
    below = max(cursor.position for cursor in stream.cursors) + ahead
    left = [rest_of(stream, World(rank, stream.size), order, crops, below) for rank in range(stream.size)]
    assert sorted(trained + list(itertools.chain(*left))) == sorted(everything(crops, order, below) | set(trained))
