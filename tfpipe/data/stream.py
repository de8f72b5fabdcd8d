"""The endless stream of samples, and where in it each rank goes on: what makes a run exactly resumable.

A fresh stream is all positions 0, 1, 2, ...; the ranks deal them out in turn, so that rank r of `size` takes every
size-th place from place r on. Ranks whose images give more crops get on more slowly. So when a run goes on with
another number of ranks, the places left over below the furthest rank's are listed as `late`, and the new ranks deal
out those first, then all positions from `rest` on. Nothing is trained twice and nothing left out, whatever the
numbers of ranks, also when that happens again before the late ones are through.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfpipe.data.mixture import Mixture
from tfpipe.data.order import Array, Order, take, where
from tfpipe.distributed import World

if TYPE_CHECKING:
    import tensorflow as tf

# Positions made at once, since a graph's cost is per op.
BLOCK = 1024
END = 2**62


class Frontier(NamedTuple):
    """Where a rank goes on: its first position and, of the crops there, the first that it has not yet used."""

    position: int
    crop: int = 0

    @classmethod
    def after(cls, place: Sequence[int]) -> "Frontier":
        """The frontier behind a crop, given its [position, crop]."""
        return cls(int(place[0]), int(place[1]) + 1)


class Part(NamedTuple):
    """Every so many-th block of a rank's visits, counted from where its stream sets out."""

    first: Any = 0  # number of the part's first block: int, or an int64 tensor
    every: int = 1
    visits: int = BLOCK  # of a block


WHOLE = Part()


class Visit(NamedTuple):
    """One image to be loaded, or arrays or tensors of many."""

    position: Any  # int64
    item: Any  # int64: number in the filelist, or among all boxes
    first_crop: Any  # int64: the first of its crops that is wanted


@dataclass(frozen=True)
class Stream:
    """What is left of the stream, and each rank's frontier in it."""

    frontiers: tuple[Frontier, ...]
    """By rank."""
    rest: int = 0
    """From this position on, nothing has been used."""
    late: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """int64 [k, 2]: positions below `rest`, ascending, that come first, each with the first of its crops still to be
    used."""

    @classmethod
    def start(cls, size: int) -> "Stream":
        """The whole stream, for `size` ranks."""
        return cls(tuple(Frontier(rank) for rank in range(size)))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.frontiers)

    def at(self, frontiers: Sequence[Frontier]) -> "Stream":
        """The same, with the ranks at other frontiers.

        Raises:
            ValueError: a frontier is on no place of its rank.
        """
        moved = replace(self, frontiers=tuple(frontiers))
        for rank in range(self.size):
            moved.place(rank)
        return moved

    def over(self, size: int) -> "Stream":
        """What is left, dealt out to `size` ranks. The same ranks keep what is theirs."""
        if size == self.size:
            return self
        places = [self.place(rank) for rank in range(self.size)]
        end = max(len(self.late), *(place + 1 for place in places))
        left = []
        for place, frontier in zip(places, self.frontiers, strict=True):
            visit = self._visits(np.arange(place, end, self.size), place, frontier)
            left.append(np.stack(visit, axis=1))
        late = np.concatenate(left)
        late = late[np.argsort(late[:, 0])]
        rest = self.rest + end - len(self.late)
        # What is whole and borders on the rest belongs to it.
        whole = (late[:, 0] == rest - np.arange(len(late), 0, -1)) & (late[:, 1] == 0)
        kept = int(np.max(np.flatnonzero(~whole), initial=-1)) + 1
        rest -= len(late) - kept
        late = late[:kept]
        dealt = Stream((), rest, late)
        return replace(dealt, frontiers=tuple(dealt._first(rank) for rank in range(size)))

    def visits(self, order: Order | Mixture, world: World, count: int) -> Visit:
        """The next `count` visits of a rank: int64 [count] each."""
        place = self.place(world.rank)
        places = place + self.size * np.arange(count)
        positions, first_crops = self._visits(places, place, self.frontiers[world.rank])
        return Visit(positions, order.items(positions, world), first_crops)

    def dataset(
        self,
        order: Order | Mixture,
        world: World,
        end: int | None = None,
        look_up: Callable[[Visit], Any] = lambda visits: visits,
        part: Part = WHOLE,
    ) -> "tf.data.Dataset":
        """The visits of a rank, one by one: `Visit`s of int64 scalars. As `blocks`, taken apart."""
        return self.blocks(order, world, end, look_up, part).unbatch()

    def blocks(
        self,
        order: Order | Mixture,
        world: World,
        end: int | None = None,
        look_up: Callable[[Visit], Any] = lambda visits: visits,
        part: Part = WHOLE,
    ) -> "tf.data.Dataset":
        """The visits of a rank, many at once: `Visit`s of int64 [k].

        Args:
            order: which item is at a position.
            world: which rank, of how many.
            end: stop before this position, for a stream of which none has been used; None for endless.
            look_up: what to make of the visits of a block.
            part: of them; all, unless it says otherwise.
        """
        import tensorflow as tf

        from tfpipe.data.scopes import stage

        place = self.place(world.rank)
        step = self.size
        length = part.visits * step

        @stage("visit")
        def block(first: tf.Tensor) -> Visit:
            places = tf.range(first, tf.minimum(first + length, END if end is None else end), step)
            positions, first_crops = self._visits(places, place, self.frontiers[world.rank])
            return look_up(Visit(positions, order.items(positions, world), first_crops))

        begin = place + part.first * length
        blocks = tf.data.Dataset.range(begin, END if end is None else end, part.every * length)
        return blocks.map(block, name="visit")

    def _visits(self, places: Array, first: int, frontier: Frontier) -> tuple[Array, Array]:
        """Positions and first crops at `places` (int64 [k]) of a rank whose frontier is at place `first`."""
        behind = len(self.late)
        positions = places + (self.rest - behind)
        first_crops = places * 0
        if behind:
            is_late = places < behind
            inside = where(is_late, places, places * 0)
            positions = where(is_late, take(self.late[:, 0], inside), positions)
            first_crops = where(is_late, take(self.late[:, 1], inside), first_crops)
        return positions, where(places == first, first_crops * 0 + frontier.crop, first_crops)

    def place(self, rank: int) -> int:
        """How many visits, of all ranks, come before a rank's frontier."""
        position = self.frontiers[rank].position
        behind = len(self.late)
        place = position - self.rest + behind
        if position < self.rest:
            place = int(np.searchsorted(self.late[:, 0], position))
            if place == behind or self.late[place, 0] != position:
                place = -1
        if place < 0 or place % self.size != rank:
            raise ValueError(f"position {position} is not on the stream of rank {rank} of {self.size}")
        return place

    def _first(self, rank: int) -> Frontier:
        if rank < len(self.late):
            return Frontier(*map(int, self.late[rank]))
        return Frontier(self.rest + rank - len(self.late))
