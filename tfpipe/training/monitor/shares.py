"""How often each class and each sample came in an epoch, for data with weights."""

import keras
import numpy as np

from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.distributed import World
from tfpipe.training.monitor.record import Logs

# Samples of which each is counted: the ranks add up 8 bytes for each at the end of an epoch.
MOST = 10**7


class SampleShares(keras.callbacks.Callback):
    """Adds to an epoch's logs the number of samples of each class, and how many samples came 0, 1, 2 ... times.

    Counts the samples of all ranks; of an interrupted epoch, those since the run went on.
    """

    def __init__(self, catalog: Catalog, order: WeightedOrder, world: World) -> None:
        super().__init__()
        boxes = catalog.sampled_boxes
        self._labels = catalog.labels if boxes is None else boxes.labels
        self._classes, self._order, self._world = catalog.classes, order, world
        self._positions: list[np.ndarray] = []
        self._last = -1

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._positions.append(np.unique(self.model.positions.numpy()[:, 0]))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        positions = np.unique(np.concatenate([np.full(1, self._last), *self._positions]))
        # The other crops of the first sample may have been in the epoch before.
        new = positions[positions != self._last]
        self._last, self._positions = positions[-1], []
        items, classes = self._order.items(new, self._world), len(self._classes)
        labels = self._labels[items]
        by_class = np.bincount(labels[labels != BY_OBJECT], minlength=classes)
        by_sample = np.bincount(items, minlength=self._order.count) if self._order.count <= MOST else new[:0]
        counts = self._world.sum(np.concatenate([by_class, by_sample]).astype(np.float64)).astype(np.int64)
        logs["class_samples"] = dict(zip(self._classes, counts[:classes].tolist(), strict=True))
        if len(by_sample):
            logs["samples_by_visits"] = np.bincount(counts[classes:]).tolist()
