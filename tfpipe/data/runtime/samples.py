"""The samples of a rank as a dataset: the stream's order, computed in graph a block at a time."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.stream import END, WHOLE, BlockRange, SampleRef, Stream
from tfpipe.data.runtime.stage import stage
from tfpipe.distributed import World


def sample_blocks(
    stream: Stream,
    order: Order | Mixture,
    world: World,
    end: int | None = None,
    look_up: Callable[[SampleRef], Any] = lambda visits: visits,
    part: BlockRange = WHOLE,
) -> tf.data.Dataset:
    """Builds the dataset of a rank's samples in blocks, `SampleRef`s of int64 [k].

    Stops before position `end`; None for endless. `look_up` is applied in graph to each block's `SampleRef`; `part`
    selects the blocks to make.
    """
    index, after_last = stream.index(world.rank), END if end is None else stream.indices_before(end)
    step = stream.size
    length = part.visits * step

    @stage("visit")
    def block(first: tf.Tensor) -> Any:
        indices = tf.range(first, tf.minimum(first + length, after_last), step)
        positions, first_crops = stream.at_indices(indices, index, stream.cursors[world.rank])
        return look_up(SampleRef(positions, order.items(positions, world), first_crops))

    begin = index + part.first * length
    blocks = tf.data.Dataset.range(begin, after_last, part.every * length)
    return blocks.map(block, name="visit")
