"""The sample order: which item a rank visits next, as a pure function of (seed, epoch, position, rank, size).

A global stream position p = 0, 1, 2, ... never ends: epoch = p // n, item = permutation(seed, epoch)[p % n].
Rank r of `size` visits every p with p % size == r. So over an epoch the ranks' shards are exclusive and exhaustive
for every n and size, with nothing dropped and nothing padded.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tfpipe.distributed import World

if TYPE_CHECKING:
    import tensorflow as tf


class Frontier(NamedTuple):
    """Where a rank's stream goes on: the next crop it has not yet used."""

    position: int
    crop: int = 0


def start(world: World) -> Frontier:
    """The beginning of a rank's stream."""
    return Frontier(world.rank)


def positions(frontier: Frontier, world: World, end: int | None = None) -> "tf.data.Dataset":
    """int64 scalars: this rank's stream positions from `frontier` on, endless or up to `end` (exclusive).

    Raises:
        ValueError: the frontier is another rank's.
    """
    import tensorflow as tf

    if frontier.position % world.size != world.rank:
        raise ValueError(f"{frontier} is not on the stream of rank {world.rank} of {world.size}")
    if end is not None:
        return tf.data.Dataset.range(frontier.position, end, world.size)
    return tf.data.Dataset.counter(frontier.position, world.size, dtype=tf.int64)


def item(position: Any, count: int, seed: int, shuffle: bool = True, reshuffle: bool = True) -> Any:
    """The item visited at stream position `position`, of `count`.

    Args:
        position: int64 tensor, a scalar or a vector.
        count: number of items, n.
        seed: of the permutations.
        shuffle: False for the list's own order.
        reshuffle: False to repeat the first epoch's permutation.

    Returns:
        int64 tensor shaped like `position`, in [0, count). Stateless and O(1): no shuffle buffer
        (the op behind tf.random.experimental.index_shuffle, whose wrapper takes no vector of seeds).
    """
    import tensorflow as tf

    position = tf.convert_to_tensor(position, tf.int64)
    place = position % count
    if not shuffle:
        return place
    epoch = position // count if reshuffle else tf.zeros_like(position)
    seeds = tf.stack([tf.fill(tf.shape(epoch), tf.constant(seed, tf.int64)), epoch, tf.zeros_like(epoch)], axis=-1)
    return tf.raw_ops.RandomIndexShuffle(index=place, seed=seeds, max_index=tf.constant(count - 1, tf.int64), rounds=4)


def steps_per_epoch(crops: int, batch_size: int, size: int) -> int:
    """Steps after which all ranks together have seen at least an epoch's crops; the same on every rank."""
    return max(1, math.ceil(crops / (batch_size * size)))
