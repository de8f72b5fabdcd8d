"""The stages by name: they take the arguments of before 0.2 too, in any way, and give the same elements."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.support.batches import assert_same
from tests.support.configs import changed
from tests.support.sample import SampleData
from tfpipe import Config, Stream, World, load_config, stages
from tfpipe.config import DataConfig
from tfpipe.data.images.decode import choose_decoder

WORLD = World(1, 2)
STREAM = Stream.start(2)


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Config:
    return load_config(sample.config(tmp_path / "config.json"))


def elements(dataset: tf.data.Dataset) -> list[tuple]:
    return [tuple(tf.nest.flatten(each)) for each in dataset.take(40).as_numpy_iterator()]


Chain = Callable[[stages.Split, DataConfig], tf.data.Dataset]


def positional(catalog: stages.Split, data: DataConfig) -> tf.data.Dataset:
    samples = stages.visit(catalog, data, WORLD, STREAM)
    return stages.crop(stages.read(samples, catalog, data, WORLD), catalog, data, WORLD)


def by_keyword(catalog: stages.Split, data: DataConfig) -> tf.data.Dataset:
    how: dict[str, Any] = {"config": data, "catalog": catalog, "world": WORLD}
    samples = stages.visit(stream=STREAM, **how)
    return stages.crop(dataset=stages.read(samples, **how), decoder=choose_decoder(data), **how)


def without_a_world(catalog: stages.Split, data: DataConfig) -> tf.data.Dataset:
    samples = stages.visit(catalog, data, world=WORLD, stream=STREAM)
    return stages.crop(stages.read(samples, catalog, data), catalog, data)


@pytest.mark.parametrize("chain", [positional, by_keyword, without_a_world])
def test_the_arguments_of_before_give_the_same_crops(config: Config, chain: Chain) -> None:
    split = stages.load_split(config.data, "train", WORLD)
    expected = elements(stages.crop(stages.read(stages.visit(split, STREAM), split), split))
    assert len(expected) == 40
    # They come with the calls: whatever the catalog was loaded with.
    other = changed(config, seed=config.data.seed + 1, reshuffle_each_iteration=False).data
    for catalog in (stages.load_catalog(config.data, "train", WORLD), stages.load_catalog(other, "train", World())):
        assert_same(elements(chain(catalog, config.data)), expected)
    own = stages.load_split(other, "train", WORLD)
    own_samples = elements(stages.visit(own, STREAM))
    assert own_samples != elements(stages.visit(split, STREAM))
    assert_same(elements(stages.visit(split=split, config=other, stream=STREAM)), own_samples)


def test_crops_are_counted_with_the_arguments_of_before(config: Config) -> None:
    split = stages.load_split(config.data, "train", WORLD)
    whole = changed(config, crop="full").data
    expected = stages.count_crops(split)
    assert stages.count_crops(split, config.data, WORLD) == stages.count_crops(split=split) == expected
    assert stages.count_crops(catalog=split, config=whole, world=WORLD) == (len(split.catalog), True) != expected


def test_an_argument_too_many_or_too_few_is_named(config: Config) -> None:
    split = stages.load_split(config.data, "train", WORLD)
    with pytest.raises(TypeError, match="stream"):
        stages.visit(split, config.data, WORLD)
    with pytest.raises(TypeError, match="batch"):
        stages.count_crops(split, batch=3)
