"""`data.on_error` "skip": of images worked on together, those that can be used, where one cannot."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfpipe.data.mixture import Mixture
from tfpipe.data.order import Order
from tfpipe.data.stream import Frontier, Stream, Visit
from tfpipe.distributed import World

T = TypeVar("T")
# Crops of one call, and more than there can be.
ALL = 2**31


def salvaging(work: Callable[[Any], T]) -> Callable[[Any], T]:
    """`work`, in graph, on n images at once; where it fails, on each alone, without those at which it fails.

    Costs a tenth of a millisecond a call, and nothing else until something fails. An image is used whole or not at
    all: one that is left out leaves a gap among the positions.

    Args:
        work: from tensors [n, ...] to tensors [k, ...], k of any size.
    """

    @tf.autograph.experimental.do_not_convert
    def attempt(images: Any) -> T:
        together = tf.data.Dataset.from_tensors(images).map(work).ignore_errors()
        alone = tf.data.Dataset.from_tensor_slices(images).batch(1).map(work).ignore_errors()
        none = tf.nest.map_structure(lambda each: tf.zeros([0, *each.shape[1:]], each.dtype), together.element_spec)
        # Evaluated in turn, each only where the one before is empty.
        joined = together.concatenate(alone.unbatch().batch(ALL)).concatenate(tf.data.Dataset.from_tensors(none))
        return joined.take(1).get_single_element()

    return attempt


class Gaps:
    """Tells from the positions of a rank's batches which of its visits gave no crop."""

    def __init__(self, stream: Stream, order: Order | Mixture, world: World) -> None:
        """Args: what the batches set out from, which item is at a position, and which rank this is."""
        self._stream, self._order, self._world = stream, order, world
        self._last = -1

    def passed(self, batches: Sequence[np.ndarray]) -> Visit:
        """The visits without a crop that the next batches have passed over.

        Args:
            batches: int64 [batch, 2] each, as build_dataset gives positions; one after the other, none left out.
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
        # The first one's crops may have come before.
        new = visits.position != self._last
        missing = new & ~np.isin(visits.position, seen[:, 0])
        self._stream, self._last = ahead, last.position
        return Visit(*(each[missing] for each in visits))

    def rest(self, end: int) -> Visit:
        """The visits that are left below position `end`, of a stream of which none had been used."""
        rank = self._world.rank
        count = max(0, -(-(end - self._stream.place(rank)) // self._stream.size))
        visits = self._stream.visits(self._order, self._world, count)
        new = visits.position != self._last
        return Visit(*(each[new] for each in visits))
