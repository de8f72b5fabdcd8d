"""A split: its order, what a copy with other parts keeps, and the names of its samples."""

import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.configs import changed
from tests.support.sample import SampleData
from tests.support.targets import LABEL, catalog_of, data_config
from tfpipe import Config, Loader, Stream, World, build_dataset, load_config, make_config
from tfpipe.collectives.agreement import name_ranks
from tfpipe.config import DataConfig, Parallel, Remote, SourceConfig
from tfpipe.config.data_sections import Mix, Normalize, RandomResizedCrop
from tfpipe.config.targets import TargetsConfig
from tfpipe.config.views import View
from tfpipe.data.order.permutation import Order
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
    with pytest.raises(ConfigError, match=r'^train\.txt: 3 samples cannot be dealt to 4 ranks with .*scope "shard"$'):
        check_order(split_of(3, world=World(0, 4), scope="shard"))


@given(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=1, max_size=12), st.integers(1, 4))
def test_ranks_whose_samples_all_have_the_weight_0_are_named_on_every_rank(weights: list[float], size: int) -> None:
    assume(len(weights) >= size and any(weights))
    idle = [rank for rank in range(size) if not any(weights[rank::size])]
    for rank in range(size):
        split = split_of(len(weights), world=World(rank, size), scope="shard", sample_weights=Path("w.txt"))
        split = replace(split, catalog=replace(split.catalog, weights=np.array(weights)))
        check_order(replace(split, config=data_config(scope="global")))
        if not idle:
            check_order(split)
            assert weights[int(split.visits(Stream.start(size), 1).item[0])] > 0
            continue
        with pytest.raises(
            ConfigError,
            match=rf"data\.sample_weights are 0 for all samples .* gives to {re.escape(name_ranks(idle))}: set it",
        ):
            check_order(split)


def test_a_split_for_other_ranks_is_checked_for_them(config: Config, tmp_path: Path) -> None:
    count = len(load_split(config.data, "train", World()).catalog)
    (tmp_path / "weights.txt").write_text("\n".join("10"[number % 2] for number in range(count)))
    config = changed(config, scope="shard", sample_weights=tmp_path / "weights.txt")
    data = load_split(config.data, "train", World())
    with pytest.raises(ConfigError, match=r"sample_weights are 0 for all samples .* gives to rank 1: "):
        Loader(config, world=World(0, 2), data=data)


def test_advice_is_of_what_the_user_has(config: Config) -> None:
    assert "take it out of the filelist" in load_split(config.data, "train", World()).remedy
    own = make_config({"data": {"source": {"kind": "tests.support.dict_source:Pictures"}}})
    assert "take it out of the data" in load_split(own.data, "train", World()).remedy


class StoredPixels(FileSplit):
    """A split whose records are the pixels of crops."""

    stores = "pixels"


A_PATH = Path("/other")
# A value of each key of `data` that is not the default: of those that decide what is loaded, ...
LOADED = {
    "source": SourceConfig(kind="folders", path=A_PATH), "train_filelist": A_PATH, "test_filelist": A_PATH,
    "remote": Remote(options={"endpoint_url": "http://localhost"}), "service": 2, "shuffle_buffer": 1,
    "reshuffle_each_iteration": False, "scope": "shard", "unit": "box", "class_weights": "balanced",
    "sample_weights": A_PATH, "repeats": 2, "seed": 1, "decoder": "graph", "exif": "apply",
    "targets": TargetsConfig(kind="number"), "label_source": "object", "class_level": 1, "classes": ["cat", "dog"],
    "num_classes": 9, "train_label_file": A_PATH, "test_label_file": A_PATH, "train_box_file": A_PATH,
    "test_box_file": A_PATH, "annotations": "none", "index": A_PATH, "layout": "voc",
}  # fmt: skip
# ... of those that crops depend on, which may be stored, ...
PIXELS = {
    "crop": "full", "test_crop": "full", "crop_image_size": (8, 8), "test_crop_image_size": (8, 8), "num_channels": 1,
    "resize": "area", "fit": "letterbox", "center_fraction": 0.5, "views": [View(count=2)],
}  # fmt: skip
# ... and of the others.
READING = {
    "batch_size": 3, "num_parallel_readers": 1, "parallel": Parallel(read=1), "prefetch_buffer_size": 1, "threads": 1,
    "cache": A_PATH, "max_pixels": 9, "dtype": "float32", "normalize": Normalize(mean=[0.0], std=[1.0]),
    "mix": Mix(mixup=0.2), "random_resized": RandomResizedCrop(area=(0.5, 1.0)), "flip": True,
    "augment": data_config(augment=[{"name": "RandomVerticalFlip"}]).augment, "on_error": "skip",
    "max_bad_fraction": 0.5, "stall_timeout_s": None, "transform": "math:sqrt",
}  # fmt: skip


@pytest.mark.parametrize("key", DataConfig.model_fields)
def test_a_split_is_taken_for_a_config_that_loads_the_same_and_for_no_other(key: str) -> None:
    """A new key has to be put into one of the three sets."""
    values = LOADED | PIXELS | READING
    config, world = data_config(), World(1, 2)
    other = config.model_copy(update={key: values[key]})
    for kind, free in ((FileSplit, PIXELS | READING), (StoredPixels, READING)):
        split = kind(config, catalog_of([LABEL] * 4), World())
        if key in free:
            assert split.adapt(other, world).config == other and split.adapt(other, world).world == world
            continue
        with pytest.raises(ConfigError, match=rf"^data=: .*\bdata\.{key}\b.* there, .* here; leave it out"):
            split.adapt(other, world)
        assert split.adapt(config.model_copy(), world).config == config


def test_of_remote_only_what_is_fetched_has_to_be_alike() -> None:
    split, other = split_of(4), Remote(concurrency=1, retries=1, timeout_s=1.0, cache_gb=1.0)
    assert split.adapt(data_config(remote=other), World()).config.remote == other
    with pytest.raises(ConfigError, match=r'data\.remote\.cache: null there, "/other" here'):
        split.adapt(data_config(remote=Remote(cache=A_PATH)), World())


def test_crops_of_boxes_need_a_split_that_was_loaded_with_them() -> None:
    whole = split_of(4, crop="full")
    assert split_of(4, crop="boxes").adapt(whole.config, World()).config.crop == "full"
    with pytest.raises(ConfigError, match=r"use of boxes, by data\.crop, .*: false there, true here"):
        whole.adapt(data_config(crop="boxes"), World())


def test_a_loader_takes_a_split_of_its_name_config_and_data_alone(config: Config) -> None:
    train = load_split(config.data, "train", World())
    assert Loader(changed(config, batch_size=3), data=train).data.catalog is train.catalog
    for build in (Loader, build_dataset):
        with pytest.raises(ConfigError, match='split: "train" there, "test" here'):
            build(config, "test", data=train)
        with pytest.raises(ConfigError, match=r"data\.seed: 0 there, 7 here"):
            build(changed(config, seed=7), data=train)


@pytest.mark.parametrize("scope", ["global", "shard"])
def test_an_order_without_weights_is_checked_without_a_look_at_its_samples(scope: str) -> None:
    """Lists of 14 million files take no memory and no second."""
    order, config = Order(1_000_000, scope=scope), SimpleNamespace(scope=scope)
    tracemalloc.start()
    check_order(SimpleNamespace(order=order, config=config, world=World(1, 4)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000
