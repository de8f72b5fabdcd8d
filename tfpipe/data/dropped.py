"""Reports the samples that `data.on_error` "skip" has left out, and why."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.failures import Failure, explain, replay
from tfpipe.data.lookup import Lookup
from tfpipe.data.salvage import Gaps
from tfpipe.data.stream import Stream, Visit
from tfpipe.distributed import World


class Left(NamedTuple):
    """A sample that was left out: its stream position, file and reason."""

    position: int
    failure: Failure


class Dropped:
    """Finds the samples that were left out, from the positions of a rank's batches.

    Costs nothing for samples that arrive. A missing sample is loaded once more to find the reason; one without any
    object of a known class does not count as left out.
    """

    def __init__(self, catalog: Catalog, config: DataConfig, world: World, stream: Stream) -> None:
        """Starts at `stream`, from which the batches' dataset was built."""
        self._catalog, self._config = catalog, config
        self._order = catalog.order(config)
        self._gaps = Gaps(stream, self._order, world)
        self._known: dict[int, Failure | None] = {}

    def look(self, batches: Sequence[np.ndarray], end: bool = False) -> list[Left]:
        """Returns the samples that the next batches have left out.

        Args:
            batches: the positions of all batches since the last call, int64 [batch, 2] each, as build_dataset returns.
            end: whether these are the last batches of a test pass.
        """
        left = self._explained(self._gaps.passed(batches))
        if end:
            left += self._explained(self._gaps.rest(self._order.count))
        return left

    def _explained(self, visits: Visit) -> list[Left]:
        new = np.array([item not in self._known for item in visits.item.tolist()], bool)
        if new.any():
            self._learn(Visit(*(values[new] for values in visits)))
        known = zip(visits.position.tolist(), (self._known[item] for item in visits.item.tolist()), strict=True)
        return [Left(position, failure) for position, failure in known if failure is not None]

    def _learn(self, visits: Visit) -> None:
        located = tf.data.Dataset.from_tensors(visits).map(Lookup(self._catalog).located).unbatch()
        for sample, error in zip(visits.item.tolist(), replay(located, self._catalog, self._config), strict=True):
            image, _ = self._catalog.image_and_box(sample)
            self._known[sample] = None if error is None else explain(self._catalog, self._config, image, error)
