"""Caches at work: epochs that no longer need their sources."""

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.batches import KNOWN_STEPS, crops, crops_in, known_crops
from tests.support.sample import SampleData
from tfpipe import Config, Stream, World, build_dataset, load_config
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.sources.registry import load_split


def configured(sample: SampleData, tree: Path, **data: object) -> Config:
    """A config of a tree that may be spoilt; no index: boxes come from the XMLs."""
    lists = {"train_filelist": "train.txt", "test_filelist": "val.txt", "annotations": "xml"}
    return load_config(sample.config(tree.parent / "c.json", data={**lists, **data}))


def uncached(sample: SampleData, tree: Path, split: str = "train", **data: object) -> list[tuple]:
    """(position, crop, label, pixels) of each crop of such a config without a cache; made from the sample itself."""
    config = load_config(sample.config(tree.parent / "uncached.json", data={"annotations": "xml", **data}))
    return known_crops(config, split)


def check_later_epochs(sample: SampleData, tree: Path, cached: dict[str, object], **data: object) -> list[tuple]:
    """Checks that several epochs from a cache are those without it, although the sources are removed after the first.

    The first has an iterator of its own, which is closed before: it reads ahead, and what it has looked for in the
    cache too early it reads from its source, however late. Returns the crops of all epochs.
    """
    expected = uncached(sample, tree, **data)
    config = configured(sample, tree, **data, **cached)
    split = load_split(config.data, "train", World())
    assert expected[-1][0] > 3 * split.catalog.samples
    dataset = build_dataset(config, with_positions=True, data=split)
    crops_of_first = sum(position < split.catalog.samples for position, *_ in expected)
    first = crops_in(dataset.take(crops_of_first // config.data.batch_size + 1))
    assert first == expected[: len(first)] and len(first) > crops_of_first
    shutil.rmtree(tree)
    assert crops_in(dataset.take(KNOWN_STEPS)) == expected
    return expected


def check_a_bad_image(sample: SampleData, tree: Path, **cached: object) -> None:
    """Checks that an unreadable image is named, and read again once it is repaired."""
    config = configured(sample, tree, **cached)
    split = load_split(config.data, "test", World())
    bad = Path(split.catalog.paths[20])
    sound = bad.read_bytes()
    bad.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(tf.errors.OpError) as caught:
        crops(config, "test")
    message = str(to_named_error(caught.value, split, Stream.start(1), None))
    assert message.startswith(f"rank 0: cannot use {bad} of the test data: ")
    bad.write_bytes(sound)
    assert crops(config, "test") == uncached(sample, tree, "test")
