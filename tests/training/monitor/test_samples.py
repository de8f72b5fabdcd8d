"""How often each class and sample came, in an epoch's logs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.commands import finish
from tests.support.runs import read_metrics
from tests.support.runs import train as start_train
from tests.support.sample import SampleData
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.training.monitor.accounting import SampleShares

LABELS = np.array([0, 0, 0, 1], np.int32)


def shares(rank: int = 0, size: int = 1) -> SampleShares:
    order = WeightedOrder(4, weights=np.array([1.0, 1, 1, 3]))
    world = SimpleNamespace(rank=rank, size=size, sum=lambda values: values * size)
    catalog = SimpleNamespace(sampled_boxes=None, labels=LABELS, classes=("cat", "dog"))
    return SampleShares(SimpleNamespace(catalog=catalog, world=world, data=SimpleNamespace(order=order)))


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


@pytest.mark.parametrize(
    ("size", "epochs"),
    [(1, 2), pytest.param(3, 30, marks=pytest.mark.full(reason="as one rank; the order is the same on all"))],
)
def test_a_run_writes_the_shares_of_its_classes(sample: SampleData, tmp_path: Path, size: int, epochs: int) -> None:
    """The run has 96 images of 8 classes; on three ranks, it ends after the first epoch, and resumes."""
    classes = sample.classes
    weights = {name: 1 + number for number, name in enumerate(classes)}
    data = {"class_weights": weights, "crop": "center", "test_filelist": None, "batch_size": 48 // size}
    for end in (1, epochs) if size > 1 else (epochs,):
        config = sample.config(tmp_path / "c.json", data=data, training={"epochs": end})
        done = finish(start_train(size, "-c", config, "-l", tmp_path / "run", "--resume", "auto"))
        assert done.code == 0, done.err
    lines = read_metrics(tmp_path / "run")
    assert [line["epoch"] for line in lines] == list(range(1, epochs + 1))
    expected = np.array([96 * weights[name] / sum(weights.values()) for name in classes])
    for line in lines:
        seen = np.array([line["class_samples"][name] for name in classes])
        assert seen.sum() == 96 and (np.abs(seen - expected) < 1).all()
        visits = line["samples_by_visits"]
        assert sum(visits) == 96 and np.dot(visits, range(len(visits))) == 96
