"""The endless stream of samples and each rank's cursor in it, which make a run exactly resumable.

A fresh stream has the positions 0, 1, 2, ..., dealt to the ranks in turn: rank r of `size` takes every size-th one,
from position r on. A rank whose images give more crops advances more slowly through the positions. So when a run
resumes with another number of ranks, the unused positions before the most advanced rank's are listed as `pending`; the
new ranks first deal out these, then all positions from `rest` on. No crop is trained twice or left out, for any numbers
of ranks, even if the number changes again before the pending positions are used up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import Array, Order, take, where
from tfpipe.distributed import World

# Positions per block: in graph, the cost is per op, not per position.
BLOCK = 1024
END = 2**62
# Upper bound of the positions by which a rank of a stored stream is ahead, so that a forged one cannot trigger a huge
# allocation: `over` lists them, with 60 bytes each.
MAX_AHEAD = 2**24


class Cursor(NamedTuple):
    """A rank's cursor: the position where it resumes, and the number of the first crop there that is still unused."""

    position: int
    crop: int = 0

    @classmethod
    def after(cls, crop: Sequence[int]) -> "Cursor":
        """Returns the cursor right after a crop, given its [position, crop]."""
        return cls(int(crop[0]), int(crop[1]) + 1)


class BlockRange(NamedTuple):
    """Every `every`-th block of a rank's samples, from block `first` on, counted from the rank's cursor."""

    first: Any = 0  # number of the part's first block: int, or an int64 tensor []
    every: int = 1
    visits: int = BLOCK  # samples per block


WHOLE = BlockRange()


class SampleRef(NamedTuple):
    """A sample to be loaded: scalars, or arrays or tensors [k] for k samples."""

    position: Any  # int64: stream position
    item: Any  # int64: number of the image in the filelist, or of the box among all boxes if boxes are samples
    first_crop: Any  # int64: number of its first crop that is requested


@dataclass(frozen=True)
class Stream:
    """The unused rest of the stream, and each rank's cursor in it."""

    cursors: tuple[Cursor, ...]
    """Cursors by rank."""
    rest: int = 0
    """First position after the pending ones; from here on, all were unused when the stream was dealt out."""
    pending: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """int64 [k, 2]: positions below `rest`, ascending, that come first, each with its first unused crop."""

    @classmethod
    def start(cls, size: int) -> "Stream":
        """Returns the whole stream, for `size` ranks."""
        return cls(tuple(Cursor(rank) for rank in range(size)))

    @property
    def frontiers(self) -> tuple[Cursor, ...]:
        """Cursors by rank: the name of `cursors` in states and checkpoints."""
        return self.cursors

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.cursors)

    @property
    def used(self) -> tuple[int, int]:
        """Number of samples of which all crops were used, and of the crops used of samples that are not over."""
        indices = np.array([self.index(rank) for rank in range(self.size)])
        numbers = np.arange(len(self.pending))
        waiting = self.pending[numbers > indices[numbers % self.size], 1]
        crops = sum(cursor.crop for cursor in self.cursors) + int(waiting.sum())
        return self.rest - len(self.pending) + int((indices // self.size).sum()), crops

    def at(self, cursors: Sequence[Cursor]) -> "Stream":
        """Returns the same stream with the ranks at other cursors.

        Raises ValueError if a cursor's position does not belong to its rank.
        """
        moved = replace(self, cursors=tuple(cursors))
        for rank in range(self.size):
            moved.index(rank)
        return moved

    def moved(self, rank: int, cursor: Cursor) -> "Stream":
        """Returns the same stream with one rank at another cursor; raises ValueError as `at` does."""
        return self.at([*self.cursors[:rank], cursor, *self.cursors[rank + 1 :]])

    def over(self, size: int) -> "Stream":
        """Deals the unused rest of the stream out to `size` ranks; with the same number, ranks keep their positions."""
        if size == self.size:
            return self
        indices = [self.index(rank) for rank in range(self.size)]
        end = max(len(self.pending), *(index + 1 for index in indices))
        unused = []
        for index, cursor in zip(indices, self.cursors, strict=True):
            columns = self.at_indices(np.arange(index, end, self.size), index, cursor)
            unused.append(np.stack(columns, axis=1))
        pending = np.concatenate(unused)
        pending = pending[np.argsort(pending[:, 0])]
        rest = self.rest + end - len(self.pending)
        # Pending positions with all crops unused that directly precede `rest` are moved into it.
        untouched = (pending[:, 0] == rest - np.arange(len(pending), 0, -1)) & (pending[:, 1] == 0)
        kept = int(np.max(np.flatnonzero(~untouched), initial=-1)) + 1
        rest -= len(pending) - kept
        dealt = Stream((), rest, pending[:kept])
        return replace(dealt, cursors=tuple(dealt._first(rank) for rank in range(size)))

    def to_dict(self) -> dict[str, Any]:
        """Returns the stream as plain data for JSON."""
        cursors = [list(map(int, cursor)) for cursor in self.cursors]
        return {"frontiers": cursors, "rest": int(self.rest), "pending": self.pending.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Stream":
        """Returns the stream of which `values` is the `to_dict`, maybe among other values.

        Raises ValueError if a rank is more than MAX_AHEAD positions ahead of another.
        """
        pending = np.array(values["pending"], np.int64).reshape(-1, 2)
        stream = cls(tuple(Cursor(*cursor) for cursor in values["frontiers"]), values["rest"], pending)
        positions = [cursor.position for cursor in stream.cursors]
        if max(positions) - max(min(positions), stream.rest) > MAX_AHEAD:
            raise ValueError(f"a rank is at position {max(positions)}, more than {MAX_AHEAD} ahead of another")
        return stream

    def indices_before(self, end: int) -> int:
        """Returns the number of indices of the unused rest, of all ranks, that lie before position `end`."""
        return int(np.searchsorted(self.pending[:, 0], end)) + max(0, end - self.rest)

    def count(self, rank: int, end: int) -> int:
        """Returns the number of samples that a rank has left before position `end`, with the one at its cursor."""
        return max(0, -(-(self.indices_before(end) - self.index(rank)) // self.size))

    def visits(self, order: Order | Mixture, world: World, count: int) -> SampleRef:
        """Returns the next `count` samples of a rank, as arrays int64 [count]."""
        index = self.index(world.rank)
        indices = index + self.size * np.arange(count)
        positions, first_crops = self.at_indices(indices, index, self.cursors[world.rank])
        return SampleRef(positions, order.items(positions, world), first_crops)

    def at_indices(self, indices: Array, first: int, cursor: Cursor) -> tuple[Array, Array]:
        """Returns positions and first crops at `indices` (int64 [k]) of the rest; the rank's cursor is at `first`."""
        before = len(self.pending)
        positions = indices + (self.rest - before)
        first_crops = indices * 0
        if before:
            is_pending = indices < before
            inside = where(is_pending, indices, indices * 0)
            positions = where(is_pending, take(self.pending[:, 0], inside), positions)
            first_crops = where(is_pending, take(self.pending[:, 1], inside), first_crops)
        return positions, where(indices == first, first_crops * 0 + cursor.crop, first_crops)

    def index(self, rank: int) -> int:
        """Returns the index of a rank's cursor in the unused rest; raises ValueError if it is another rank's."""
        position = self.cursors[rank].position
        before = len(self.pending)
        index = position - self.rest + before
        if position < self.rest:
            index = int(np.searchsorted(self.pending[:, 0], position))
            if index == before or self.pending[index, 0] != position:
                index = -1
        if index < 0 or index % self.size != rank:
            raise ValueError(f"position {position} is not on the stream of rank {rank} of {self.size}")
        return index

    def _first(self, rank: int) -> Cursor:
        if rank < len(self.pending):
            return Cursor(*map(int, self.pending[rank]))
        return Cursor(self.rest + rank - len(self.pending))
