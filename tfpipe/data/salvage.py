"""Skips images that fail, for `data.on_error` "skip", and tells which samples are missing from the batches."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfpipe.data.mixture import Mixture
from tfpipe.data.order import Order
from tfpipe.data.stream import Frontier, Stream, Visit
from tfpipe.distributed import World

T = TypeVar("T")
# Batch size that takes in all crops of a call.
ALL = 2**31


def salvaging(work: Callable[[Any], T]) -> Callable[[Any], T]:
    """Wraps `work`, a function in graph: if it fails on n images, applies it to each alone and skips those that fail.

    Costs 0.1 ms per call unless an image fails. All crops of an image are used or none; a skipped image leaves a gap
    among the positions.

    Args:
        work: maps tensors [n, ...] to tensors [k, ...] for any k.
    """

    @tf.autograph.experimental.do_not_convert
    def attempt(images: Any) -> T:
        together = tf.data.Dataset.from_tensors(images).map(work).ignore_errors()
        alone = tf.data.Dataset.from_tensor_slices(images).batch(1).map(work).ignore_errors()
        none = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), together.element_spec)
        # take(1) evaluates these in turn: each only if the ones before are empty.
        joined = together.concatenate(alone.unbatch().batch(ALL)).concatenate(tf.data.Dataset.from_tensors(none))
        return joined.take(1).get_single_element()

    return attempt


class Gaps:
    """A detector of samples without a crop, from the positions of a rank's batches."""

    def __init__(self, stream: Stream, order: Order | Mixture, world: World) -> None:
        """Starts at `stream`, the rest of the stream from which the batches are built."""
        self._stream, self._order, self._world = stream, order, world
        self._last = -1

    def passed(self, batches: Sequence[np.ndarray]) -> Visit:
        """Returns the samples that gave no crop, up to the last one in the next batches.

        Args:
            batches: positions as from build_dataset, int64 [batch, 2] each; consecutive batches, without gaps.
        """
        seen = np.concatenate([np.zeros((0, 2), np.int64), *batches])
        if not len(seen):
            return Visit(*np.zeros((3, 0), np.int64))
        rank, last = self._world.rank, Frontier.after(seen[-1])
        frontiers = list(self._stream.frontiers)
        frontiers[rank] = last
        ahead = self._stream.at(frontiers)
        count = (ahead.place(rank) - self._stream.place(rank)) // ahead.size + 1
        visits = self._stream.visits(self._order, self._world, count)
        # The crops of the first sample may have been in the batches before.
        new = visits.position != self._last
        missing = new & ~np.isin(visits.position, seen[:, 0])
        self._stream, self._last = ahead, last.position
        return Visit(*(column[missing] for column in visits))

    def rest(self, end: int) -> Visit:
        """Returns the samples left before position `end`; only for a stream that was fresh at the start."""
        rank = self._world.rank
        count = max(0, -(-(end - self._stream.place(rank)) // self._stream.size))
        visits = self._stream.visits(self._order, self._world, count)
        new = visits.position != self._last
        return Visit(*(column[new] for column in visits))
