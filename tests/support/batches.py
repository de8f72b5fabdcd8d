"""Batches of a pipeline, and the crops in them."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe import Config, World, build_dataset
from tfpipe.data.runtime.cancellable import Cancellable

KNOWN_STEPS = 40
_known: dict[tuple[str, str, World], list[tuple]] = {}


def batches(
    config: Config, split: str = "train", count: int = -1, world: World = World(), **how: object
) -> list[tuple]:
    """The first `count` batches, or all, with their positions."""
    return list(elements(build_dataset(config, split, world, with_positions=True, **how).take(count)))


def elements(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Yields a dataset's elements as NumPy arrays, by an iterator that holds no later test up when it ends."""
    return (tf.nest.map_structure(lambda tensor: tensor.numpy(), element) for element in Cancellable(dataset))


def assert_same(some: list[tuple], others: list[tuple]) -> None:
    """Asserts that there are batches, and that they are equal bit by bit."""
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def crops(config: Config, split: str, world: World = World(), steps: int = -1, **how: object) -> list[tuple]:
    """(position, crop, label, pixels) of each crop in the first `steps` batches, or in all."""
    return crops_in(build_dataset(config, split, world, with_positions=True, **how).take(steps))


def crops_in(dataset: tf.data.Dataset) -> list[tuple]:
    """The same of a dataset with positions, from its start."""
    return crops_of(elements(dataset))


def crops_of(batches: Iterable[tuple]) -> list[tuple]:
    """The same of batches with positions."""
    seen = []
    for images, labels, positions in batches:
        seen += [
            (int(position), int(crop), int(label), image.tobytes())
            for (position, crop), label, image in zip(positions, labels, images, strict=True)
        ]
    return seen


def known_crops(config: Config, split: str = "train", world: World = World()) -> list[tuple]:
    """Returns the crops of a test pass, or of KNOWN_STEPS batches of training, from files that no test changes.

    They are made once for all tests of this process: a pipeline takes a second to build, and 10 ms to give a batch.
    """
    key = (config.data.model_dump_json(), split, world)
    if key not in _known:
        _known[key] = crops(config, split, world, KNOWN_STEPS if split == "train" else -1)
    return _known[key]
