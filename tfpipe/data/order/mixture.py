"""The order of several lists mixed by weights: like the order of one list, a pure function of the position.

The endless stream is cut into blocks of SLOTS slots. In every block each list has a fixed number of slots in proportion
to its weight (its share), at places drawn from (seed, block); the j-th of them in block b is position b * share + j of
the list's own endless order. So each list has its own epochs, each with every sample once, and access is random.
"""

import math
from dataclasses import dataclass

import numpy as np

from tfpipe.data.order.permutation import Array, Order, Scope, permute, take, where
from tfpipe.distributed import World

SLOTS = 1024
# Odd, so that its multiples reach all slots; about SLOTS over the golden ratio, so that they spread evenly.
STRIDE = 633


@dataclass(frozen=True)
class Mixture:
    """The sample order of several lists, like Order for one; samples are numbered consecutively over the lists."""

    orders: tuple[Order, ...]
    """The lists' own orders, which differ in count and seed only."""
    shares: tuple[int, ...]
    """Slots of each list in a block; their sum is SLOTS."""
    repeats: int = 1
    """Visits of a sample that follow each other; the lists' own orders have 1."""

    @classmethod
    def of(cls, order: Order, counts: tuple[int, ...], weights: tuple[float, ...]) -> "Mixture":
        """Mixes lists of `counts` samples by `weights`; the other settings are those of `order`.

        Raises ValueError if a weight is less than 1/SLOTS of all.
        """
        # Each list has its own seed: lists of equal length would otherwise be shuffled alike.
        orders = (
            Order(count, mixed_seed(order.seed, number), order.shuffle, order.reshuffle, order.scope)
            for number, count in enumerate(counts)
        )
        return cls(tuple(orders), shares(weights), order.repeats)

    @property
    def count(self) -> int:
        """Number of samples of all lists."""
        return sum(order.count for order in self.orders)

    @property
    def length(self) -> int:
        """Number of positions of an epoch: that of a list of all samples."""
        return self._whole.length

    @property
    def seed(self) -> int:
        return self.orders[0].seed

    @property
    def shuffle(self) -> bool:
        return self.orders[0].shuffle

    @property
    def scope(self) -> Scope:
        return self.orders[0].scope

    def positions(self, epoch: int, world: World) -> range:
        """Returns the stream positions of a rank in an epoch; see Order.positions."""
        return self._whole.positions(epoch, world)

    def epochs(self, positions: Array, world: World) -> Array:
        """Returns int64 [k]: the epochs of a rank's stream positions (int64 [k])."""
        return self._whole.epochs(positions, world)

    def items(self, positions: Array, world: World = World()) -> Array:
        """Returns int64 [k]: the samples at stream positions (int64 [k]); evaluates the order of every list for each.

        Raises ValueError if the rank has no sample of a list; only in the scope "shard", with fewer samples than ranks.
        """
        steps = self._whole.steps(positions, world)
        blocks, places = steps // SLOTS, steps % SLOTS
        if self.shuffle:
            seed = mixed_seed(self.seed, len(self.orders))
            # In the scope "shard" each rank has its own blocks, and draws their slots from its own seed.
            slots = permute(places, SLOTS, seed if self.scope == "global" else (seed, world.rank), blocks)
            owners, ranks = self._dealt(np.arange(SLOTS))
        else:
            slots = places
            owners, ranks = self._dealt(np.arange(SLOTS) * STRIDE % SLOTS)
        owners, ranks = take(owners, slots), take(ranks, slots)
        items, start = positions * 0, 0
        for number, (order, share) in enumerate(zip(self.orders, self.shares, strict=True)):
            ranked = blocks * share + ranks
            of_list = order.items(ranked if self.scope == "global" else ranked * world.size + world.rank, world)
            items = where(owners == number, of_list + start, items)
            start += order.count
        return items

    @property
    def _whole(self) -> Order:
        """Order of one list of all samples, whose epochs and repeats are those of the mixture."""
        return Order(self.count, scope=self.scope, repeats=self.repeats)

    def _dealt(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns, for each slot, the number of its list and its rank among that list's slots (int64 [SLOTS] each)."""
        owners = np.searchsorted(np.cumsum(self.shares), slots, side="right")
        ranks = np.zeros(SLOTS, np.int64)
        for number in range(len(self.shares)):
            of_list = owners == number
            ranks[of_list] = np.arange(of_list.sum())
        return owners.astype(np.int64), ranks


def shares(weights: tuple[float, ...]) -> tuple[int, ...]:
    """Divides SLOTS slots in proportion to `weights`, by largest remainders (Hamilton's method).

    Raises ValueError if a weight is too small in proportion to get a slot, or their sum is no ordinary number.
    """
    if not 0 < SLOTS / sum(weights) < math.inf:
        raise ValueError(f"the weights add up to {sum(weights):g}; give numbers around 1")
    exact = np.array(weights) * (SLOTS / sum(weights))
    slots = np.floor(exact).astype(int)
    slots[np.argsort(slots - exact, kind="stable")[: SLOTS - slots.sum()]] += 1
    if slots.min() == 0:
        small = weights[int(np.argmin(slots))]
        raise ValueError(f"the weight {small:g} is less than 1/{SLOTS} of all weights, {sum(weights):g}")
    return tuple(map(int, slots))


def mixed_seed(seed: int, number: int) -> int:
    """Derives a different seed for each number; number 0 gives `seed` itself."""
    return (seed + 0x9E3779B97F4A7C15 * number) % 2**64
