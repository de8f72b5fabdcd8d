"""Batches of a pipeline, and the crops in them."""

import numpy as np

from tfpipe import Config, World, build_dataset


def batches(
    config: Config, split: str = "train", count: int = -1, world: World = World(), **how: object
) -> list[tuple]:
    """The first `count` batches, or all, with their positions."""
    return list(build_dataset(config, split, world, with_positions=True, **how).take(count).as_numpy_iterator())


def assert_same(some: list[tuple], others: list[tuple]) -> None:
    """Asserts that there are batches, and that they are equal bit by bit."""
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def crops(config: Config, split: str, world: World = World(), steps: int = -1, **how: object) -> list[tuple]:
    """(position, crop, label, pixels) of each crop in the first `steps` batches, or in all."""
    dataset = build_dataset(config, split, world, with_positions=True, **how)
    seen = []
    for images, labels, positions in dataset.take(steps).as_numpy_iterator():
        seen += [
            (int(position), int(crop), int(label), image.tobytes())
            for (position, crop), label, image in zip(positions, labels, images, strict=True)
        ]
    return seen
