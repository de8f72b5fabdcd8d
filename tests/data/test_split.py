"""A split: its order, what a copy with other parts keeps, and the names of its samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.configs import changed
from tests.support.sample import SampleData
from tests.support.targets import LABEL, catalog_of, data_config
from tfpipe import Config, Stream, World, load_config, make_config
from tfpipe.config import Parallel
from tfpipe.data.sources.files import FileSplit
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split, check_order, order_of, sample_names
from tfpipe.errors import ConfigError


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Config:
    return load_config(sample.config(tmp_path / "config.json"))


def split_of(count: int, name: str = "train", world: World = World(), **keys: object) -> Split:
    return FileSplit(data_config(**keys), catalog_of([LABEL] * count, split=name), world)


def test_test_data_comes_in_the_lists_order_whatever_the_config_says() -> None:
    split = split_of(10, "test", seed=3, scope="shard", class_weights={"n01": 1, "n02": 2, "n03": 3})
    assert not split.training
    for rank in range(2):
        items = split.order.items(np.arange(rank, 10, 2), World(rank, 2))
        assert items.tolist() == list(range(rank, 10, 2))


def test_a_copy_has_the_order_of_its_own_config_and_the_original_keeps_its() -> None:
    split = split_of(50, seed=1)
    before, positions = split.order, np.arange(50)
    other = replace(split, config=data_config(seed=2))
    assert other.order.items(positions).tolist() != before.items(positions).tolist()
    assert other.order == order_of(split.catalog, data_config(seed=2))
    fewer = replace(split, catalog=catalog_of([LABEL] * 7))
    assert (fewer.order.count, fewer.config) == (7, split.config)
    assert replace(split, world=World(1, 2)).world == World(1, 2)
    assert split.order is before and split.config.seed == 1 and split.world == World() and len(split.catalog) == 50


@pytest.mark.parametrize("world", [World(), World(2, 3)])
def test_a_ranks_visits_are_the_streams(world: World) -> None:
    split = split_of(20, world=world)
    visits = split.visits(Stream.start(world.size), 30)
    assert visits.position.tolist() == list(range(world.rank, 30 * world.size, world.size))
    assert visits.item.tolist() == split.order.items(visits.position, world).tolist()


def test_what_finds_a_failure_reads_originals_in_the_same_order(config: Config) -> None:
    split = load_split(changed(config, cache="memory", on_error="skip").data, "train", World())
    order, serial = split.order, split.serial()
    assert serial.order == order
    settings = {"num_parallel_readers": 1, "cache": None, "on_error": "raise"}
    assert serial.config == split.config.model_copy(update={**settings, "parallel": Parallel()})
    assert split.config.cache == "memory" and split.config.on_error == "skip"


@pytest.mark.parametrize("unit", ["image", "box"])
def test_names_are_of_the_images_at_a_ranks_positions(config: Config, unit: str) -> None:
    split = load_split(changed(config, unit=unit).data, "train", World(1, 2))
    positions = [1, 3, 201]
    samples = split.order.items(np.array(positions), World(1, 2)).tolist()
    images = [split.catalog.image_and_box(sample)[0] for sample in samples]
    assert sample_names(split, positions) == [split.catalog.paths[image] for image in images]


def test_too_few_samples_for_the_ranks_are_refused_in_the_scope_shard_alone() -> None:
    check_order(split_of(3, world=World(0, 3), scope="shard"))
    check_order(split_of(3, world=World(0, 4)))
    with pytest.raises(ConfigError, match=r'^train\.txt: 3 samples are too few for 4 ranks with data\.scope "shard"$'):
        check_order(split_of(3, world=World(0, 4), scope="shard"))


def test_advice_is_of_what_the_user_has(config: Config) -> None:
    assert "take it out of the filelist" in load_split(config.data, "train", World()).remedy
    own = make_config({"data": {"source": {"kind": "tests.support.dict_source:Pictures"}}})
    assert "take it out of the data" in load_split(own.data, "train", World()).remedy
