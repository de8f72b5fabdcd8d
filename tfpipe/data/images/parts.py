"""Batches of crops that several calls write, each a part of them where they stay: so no crop is copied."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.data.images.crops import Crops
from tfpipe.data.images.decode import Cuts
from tfpipe.data.runtime.stage import stage
from tfpipe.native import native


class Plan(NamedTuple):
    """Crops before they are decoded."""

    cuts: Cuts
    crops: Crops  # with memory for the pixels


Write = Callable[[Plan, Any], Crops]
"""(plan, which of its crops to write (int64 [2]: the first and their end; or [0]: all)) -> its crops."""


def write_in_parts(plans: tf.data.Dataset, write: Write, parts: int, calls: int | None) -> tf.data.Dataset:
    """Maps `Plan` to `Crops`, each by as many calls of `write` as it has `parts`, up to `calls` of them at once.

    The call that is the last of a plan hands its crops on. If one fails, none does: who goes on after the error misses
    these crops.
    """
    dataset = plans.flat_map(partial(_in_parts, parts=parts))
    dataset = dataset.map(_write_part(write, parts), num_parallel_calls=calls, name="crop")
    return dataset.filter(lambda crops: tf.size(crops.positions) > 0)


def _in_parts(plan: Plan, parts: int) -> tf.data.Dataset:
    """Builds the dataset of a plan, the number of its parts that are written, and the number of each part."""
    written = tf.raw_ops.Empty(shape=[1], dtype=tf.int64, init=True)
    return tf.data.Dataset.zip(tf.data.Dataset.from_tensors((plan, written)).repeat(), tf.data.Dataset.range(parts))


def _write_part(write: Write, parts: int) -> Callable[..., Crops]:
    """Returns the function that writes a part of a plan's crops, and returns them all if it is the last, else none."""

    @stage("crop")
    def write_part(shared: tuple[Plan, tf.Tensor], part: tf.Tensor) -> Crops:
        plan, written = shared
        count = tf.size(plan.cuts.windows.images, tf.int64)
        crops = write(plan, count * tf.stack([part, part + 1]) // parts)
        with tf.control_dependencies(tf.nest.flatten(crops.images)):
            rows = count * native().arrive(written, of=parts)
        return tf.nest.map_structure(lambda tensor: tensor[:rows], crops)

    return write_part
