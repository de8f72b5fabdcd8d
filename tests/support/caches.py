"""Caches at work: epochs that no longer need their sources."""

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.sample import SampleData
from tfpipe import Config, Stream, World, build_dataset, load_config
from tfpipe.data.catalog import load_catalog
from tfpipe.data.failures import named


def configured(sample: SampleData, tree: Path, **data: object) -> Config:
    """A config of a tree that may be spoilt; no index: boxes come from the XMLs."""
    lists = {"train_filelist": "train.txt", "test_filelist": "val.txt", "annotations": "xml"}
    return load_config(sample.config(tree.parent / "c.json", data={**lists, **data}))


def epochs(config: Config, world: World = World(), **how: object) -> list[list[tuple]]:
    """Two epochs: (position, crop, label, pixels) of each crop.

    In between, all sources are removed if there is a cache.
    """
    catalog = load_catalog(config.data, "train", world)
    seen: list[list[tuple]] = [[], []]
    spoilt = False
    dataset = build_dataset(config, "train", world, True, catalog=catalog, **how)
    for images, labels, positions in dataset.as_numpy_iterator():
        for image, label, (position, crop) in zip(images, labels, positions, strict=True):
            epoch = int(position) // catalog.samples
            if epoch == 2:
                return seen
            seen[epoch].append((int(position), int(crop), int(label), image.tobytes()))
        # The pipeline reads ahead, but by the end of the first epoch it has read no more than two.
        if seen[1] and not spoilt and config.data.cache:
            spoilt = True
            shutil.rmtree(Path(config.data.train_filelist).parent / "tree")
    raise AssertionError("training data ends")


def whole(config: Config, split: str = "test", world: World = World(), steps: int = -1, **how: object) -> list:
    """The bytes of every part of each batch."""
    dataset = build_dataset(config, split, world, with_positions=True, **how).take(steps)
    return [[part.tobytes() for part in batch] for batch in dataset.as_numpy_iterator()]


def check_a_bad_image(sample: SampleData, tree: Path, **kept: object) -> None:
    """Checks that an unreadable image is named, and read anew once it is repaired."""
    config = configured(sample, tree, **kept)
    catalog = load_catalog(config.data, "test", World())
    expected = whole(configured(sample, tree))
    bad = Path(catalog.paths[20])
    sound = bad.read_bytes()
    bad.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(tf.errors.OpError) as caught:
        whole(config)
    message = str(named(caught.value, catalog, config.data, World(), Stream.start(1), None))
    assert message.startswith(f"rank 0: cannot use {bad} of the test data: ")
    bad.write_bytes(sound)
    assert whole(config) == expected
