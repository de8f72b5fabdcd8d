"""What `data.on_error` "skip" has left out: which images, and why."""

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
    """A visit that was left out."""

    position: int
    failure: Failure


class Dropped:
    """Finds, from the positions of a rank's batches, the visits that were left out.

    Costs nothing for what is there. An image that is missing is loaded once more, to tell why; one that simply holds no
    object of a known class was not left out.
    """

    def __init__(self, catalog: Catalog, config: DataConfig, world: World, stream: Stream) -> None:
        """Args: what the batches are of, and what they set out from."""
        self._catalog, self._config = catalog, config
        self._order = catalog.order(config)
        self._gaps = Gaps(stream, self._order, world)
        self._known: dict[int, Failure | None] = {}

    def look(self, batches: Sequence[np.ndarray], end: bool = False) -> list[Left]:
        """What the next batches have left out.

        Args:
            batches: int64 [batch, 2] each, as build_dataset gives positions; one after the other, none left out.
            end: whether they are the last ones of a test pass.
        """
        found = self._explained(self._gaps.passed(batches))
        if end:
            found += self._explained(self._gaps.rest(self._order.count))
        return found

    def _explained(self, visits: Visit) -> list[Left]:
        new = np.array([item not in self._known for item in visits.item.tolist()], bool)
        if new.any():
            self._learn(Visit(*(each[new] for each in visits)))
        known = zip(visits.position.tolist(), (self._known[item] for item in visits.item.tolist()), strict=True)
        return [Left(position, failure) for position, failure in known if failure is not None]

    def _learn(self, visits: Visit) -> None:
        located = tf.data.Dataset.from_tensors(visits).map(Lookup(self._catalog).located).unbatch()
        for sample, error in zip(visits.item.tolist(), replay(located, self._catalog, self._config), strict=True):
            image, _ = self._catalog.image_and_box(sample)
            self._known[sample] = None if error is None else explain(self._catalog, self._config, image, error)
