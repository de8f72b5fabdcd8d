"""How often each class and sample came, in an epoch's logs."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.training.monitor.shares import SampleShares

LABELS = np.array([0, 0, 0, 1], np.int32)


def shares(rank: int = 0, size: int = 1) -> SampleShares:
    order = WeightedOrder(4, weights=np.array([1.0, 1, 1, 3]))
    world = SimpleNamespace(rank=rank, size=size, sum=lambda values: values * size)
    catalog = SimpleNamespace(sampled_boxes=None, labels=LABELS, classes=("cat", "dog"))
    return SampleShares(catalog, order, world)


def train(callback: SampleShares, *batches: list[tuple[int, int]]) -> dict:
    for batch in batches:
        callback.set_model(SimpleNamespace(positions=tf.constant(batch, tf.int64)))
        callback.on_train_batch_end(0)
    logs = {}
    callback.on_epoch_end(0, logs)
    return logs


def test_each_sample_counts_once_although_its_crops_are_in_two_batches_and_epochs() -> None:
    callback = shares()
    order = callback._order
    logs = train(callback, [(0, 0), (1, 0), (1, 1)], [(1, 2), (2, 0), (3, 0)])
    seen = np.bincount(order.items(np.arange(4)), minlength=4)
    assert logs["class_samples"] == {"cat": seen[:3].sum(), "dog": seen[3]}
    assert logs["samples_by_visits"] == np.bincount(seen).tolist()
    logs = train(callback, [(3, 1), (4, 0)])
    assert sum(logs["class_samples"].values()) == 1


def test_the_ranks_add_up() -> None:
    assert sum(train(shares(0, 3), [(0, 0), (3, 0)])["class_samples"].values()) == 6
