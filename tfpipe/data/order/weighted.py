"""The order of samples with weights: like the order of one list, a pure function of the position.

An epoch of n positions takes n points, one apart, on a line of length n, on which each sample has an interval in
proportion to its weight (systematic sampling). So each sample comes as often as its share of n says, rounded down or
up, and a class, whose samples have their shares together, does so too if its samples follow each other. The points
begin at an offset that moves by the golden ratio from epoch to epoch: over the epochs, the rounding evens out. The
n points are shuffled like the samples of a list. A position's sample is found by bisection, in O(log n).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tfpipe.data.order.permutation import GAMMA, Array, Order, mix
from tfpipe.distributed import World
from tfpipe.errors import counted

# Parts of a position's length that the line is divided into: n * PARTS stays below 2**63.
PARTS = 2**30
# The golden ratio's fractional part in PARTS; odd, so that all offsets come.
STEP = 663608941


@dataclass(frozen=True, eq=False)
class WeightedOrder(Order):
    """The endless order of samples that come in proportion to their weights."""

    weights: np.ndarray = field(default_factory=lambda: np.ones(1))
    """float64 [count]: weights, relative to each other; 0 for a sample that never comes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights.shape != (self.count,):
            raise ValueError(f"{counted(self.weights.size, 'weight')} for {counted(self.count, 'sample')}")
        wrong = np.flatnonzero(~(np.isfinite(self.weights) & (self.weights >= 0)))
        if wrong.size:
            raise ValueError(f"sample {wrong[0]} has the weight {self.weights[wrong[0]]}; give numbers of at least 0")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightedOrder):
            return NotImplemented
        return super().__eq__(other) and np.array_equal(self.weights, other.weights)

    __hash__ = Order.__hash__

    def items(self, positions: Array, world: World = World()) -> Array:
        """Returns int64 [k]: the samples at a rank's stream positions (int64 [k]).

        Raises ValueError if the weights of all samples that the rank has are 0.
        """
        places, epochs = self._places(positions, world)
        points = places * PARTS + (epochs % PARTS * STEP + self._offset) % PARTS
        ends = self._ends(world)
        if isinstance(points, np.ndarray):
            items = np.searchsorted(ends, points, side="right")
        else:
            items = _search(ends, points)
        return items if self.scope == "global" else items * world.size + world.rank

    def expected(self, world: World = World()) -> np.ndarray:
        """Returns float64 [count], or of the rank's own samples in the scope "shard": visits in an epoch."""
        return np.diff(self._ends(world), prepend=0) / PARTS * self.repeats

    @cached_property
    def _offset(self) -> int:
        """First epoch's offset in [0, PARTS), from the seed."""
        return int(mix(np.array([self.seed], np.uint64) + GAMMA)[0] % np.uint64(PARTS))

    @cached_property
    def _tables(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    def _ends(self, world: World) -> np.ndarray:
        """Returns int64 [n]: the ends of the samples' intervals, in PARTS of a position's length, ascending."""
        key = (0, 1) if self.scope == "global" else (world.rank, world.size)
        if key not in self._tables:
            rank, size = key
            self._tables[key] = np.cumsum(widths(self.weights[rank::size]))
        return self._tables[key]


def widths(weights: np.ndarray) -> np.ndarray:
    """Returns int64 [n]: whole numbers in proportion to `weights` (float64 [n]), whose sum is n * PARTS.

    Raises ValueError if all weights are 0.
    """
    largest = weights.max()
    if largest == 0:
        raise ValueError(f"the sum of {counted(len(weights), 'weight')} is 0")
    # Sums in a fixed order: every machine must get the same bits.
    scaled = weights / largest
    result = np.floor(scaled * (len(weights) * PARTS / np.cumsum(scaled)[-1])).astype(np.int64)
    positive, remaining = np.flatnonzero(weights), len(weights) * PARTS - int(result.sum())
    if remaining < 0:  # a width beyond 2**53, which floats round
        result[np.argmax(weights)] += remaining
        return result
    result[positive] += remaining // len(positive)
    result[positive[: remaining % len(positive)]] += 1
    return result


def _search(ends: np.ndarray, points: Any) -> Any:
    import tensorflow as tf

    # Outside the graph being built, which then holds a reference, not a copy.
    with tf.init_scope(), tf.device("CPU"):
        table = tf.constant(ends)
    return tf.searchsorted(table, points, side="right", out_type=tf.int64)
