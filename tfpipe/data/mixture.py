"""The order of several lists that are mixed by weights, as a pure function like that of one list.

The endless stream is cut into blocks of SLOTS places. In every block each list has as many as its weight asks for (its
share), at places drawn anew from (seed, block); the j-th of them in block b is place b * share + j of the list's own
endless order. So each list has epochs of its own, in which every sample comes once, and any position is known at once.
"""

from dataclasses import dataclass

import numpy as np

from tfpipe.data.order import Array, Order, Scope, permute, take, where
from tfpipe.distributed import World

SLOTS = 1024
# Odd, so that its multiples go through all slots; SLOTS over the golden ratio, so that they do so evenly.
STRIDE = 633


@dataclass(frozen=True)
class Mixture:
    """What Order is of one list. Samples are numbered through all lists, in the lists' sequence."""

    orders: tuple[Order, ...]
    """Of the lists; alike but for their counts."""
    shares: tuple[int, ...]
    """Places of each list in a block; SLOTS together."""

    @classmethod
    def of(cls, order: Order, counts: tuple[int, ...], weights: tuple[float, ...]) -> "Mixture":
        """Lists of `counts` samples, each in an order such as `order`.

        Raises:
            ValueError: a weight is too small to be kept.
        """
        # Every list has a seed of its own: lists of one length would otherwise go the same way.
        orders = (
            Order(count, mixed_seed(order.seed, place), order.shuffle, order.reshuffle, order.scope)
            for place, count in enumerate(counts)
        )
        return cls(tuple(orders), shares(weights))

    @property
    def count(self) -> int:
        """Samples of all lists; an epoch is as many places."""
        return sum(order.count for order in self.orders)

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
        """As Order.positions."""
        return Order(self.count, scope=self.scope).positions(epoch, world)

    def items(self, positions: Array, world: World = World()) -> Array:
        """As Order.items; costs as much for every list as for one alone.

        Raises:
            ValueError: the rank has no sample of a list; only in the scope "shard", with fewer samples than ranks.
        """
        steps = positions if self.scope == "global" else positions // world.size
        blocks, places = steps // SLOTS, steps % SLOTS
        if self.shuffle:
            seed = mixed_seed(self.seed, len(self.orders))
            # In the scope "shard" a rank's places are its own.
            slots = permute(places, SLOTS, seed if self.scope == "global" else (seed, world.rank), blocks)
            owners, ranks = self._dealt(np.arange(SLOTS))
        else:
            slots = places
            owners, ranks = self._dealt(np.arange(SLOTS) * STRIDE % SLOTS)
        owners, ranks = take(owners, slots), take(ranks, slots)
        items, start = positions * 0, 0
        for number, (order, share) in enumerate(zip(self.orders, self.shares, strict=True)):
            own = blocks * share + ranks
            of_list = order.items(own if self.scope == "global" else own * world.size + world.rank, world)
            items = where(owners == number, of_list + start, items)
            start += order.count
        return items

    def _dealt(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64 [SLOTS] each: whose the slots are, and how many of that list's come before."""
        owners = np.searchsorted(np.cumsum(self.shares), slots, side="right")
        ranks = np.zeros(SLOTS, np.int64)
        for number in range(len(self.shares)):
            own = owners == number
            ranks[own] = np.arange(own.sum())
        return owners.astype(np.int64), ranks


def shares(weights: tuple[float, ...]) -> tuple[int, ...]:
    """Places of SLOTS in proportion to `weights`, by largest remainders (Hamilton's method).

    Raises:
        ValueError: a weight is so small beside the others that it would have none.
    """
    exact = np.array(weights) * (SLOTS / sum(weights))
    whole = np.floor(exact).astype(int)
    whole[np.argsort(whole - exact, kind="stable")[: SLOTS - whole.sum()]] += 1
    if whole.min() == 0:
        small = weights[int(np.argmin(whole))]
        raise ValueError(f"the weight {small:g} is less than 1/{SLOTS} of all weights, {sum(weights):g}")
    return tuple(map(int, whole))


def mixed_seed(seed: int, number: int) -> int:
    """Another seed for each number; the seed itself for the first."""
    return (seed + 0x9E3779B97F4A7C15 * number) % 2**64
