"""Lists mixed by weights: exact shares, an epoch of each list's own, the same for any ranks and after any resume."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.annotations import read_annotation
from tests.support.batches import crops
from tests.support.configs import changed
from tests.support.examples import examples
from tests.support.ranks import check_interrupted
from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.config import Config
from tfpipe.data.catalog.filelist import index_path, read_filelist, read_lists
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.order.mixture import SLOTS, STRIDE, Mixture, shares
from tfpipe.data.order.permutation import Order
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index

weights = (
    st.lists(st.floats(0.05, 20), min_size=1, max_size=5).filter(lambda some: min(some) * SLOTS >= sum(some)).map(tuple)
)


@st.composite
def mixtures(draw: st.DrawFn, least: int = 1, scope: str | None = None, shuffle: bool | None = None) -> Mixture:
    chosen = draw(weights)
    counts = tuple(draw(st.integers(least, 3000)) for _ in chosen)
    how = st.booleans() if shuffle is None else st.just(shuffle)
    scopes = st.sampled_from(["global", "shard"]) if scope is None else st.just(scope)
    return Mixture.of(Order(1, draw(st.integers(0, 2**64 - 1)), draw(how), True, draw(scopes)), counts, chosen)


def starts(mixture: Mixture) -> np.ndarray:
    return np.cumsum([0, *(order.count for order in mixture.orders)])


@given(weights)
def test_shares_are_proportional_to_the_weights(chosen: tuple[float, ...]) -> None:
    got = shares(chosen)
    assert sum(got) == SLOTS
    assert np.abs(np.array(got) - np.array(chosen) * SLOTS / sum(chosen)).max() < 1


def test_a_weight_that_would_give_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the weight 0.0001 is less than 1/1024 of all weights, 1\.0001"):
        shares((1.0, 0.0001))
    for odd in (1e308, 5e-324):
        with pytest.raises(ValueError, match="give numbers around 1"):
            shares((odd, odd))


@settings(max_examples=examples(60))
@given(mixtures(scope="global"), st.integers(0, 10**6))
def test_every_block_holds_each_lists_share(mixture: Mixture, block: int) -> None:
    items = mixture.items(block * SLOTS + np.arange(SLOTS))
    owners = np.searchsorted(starts(mixture), items, side="right") - 1
    assert np.bincount(owners, minlength=len(mixture.shares)).tolist() == list(mixture.shares)


@settings(max_examples=examples(60))
@given(mixtures(scope="global"))
def test_each_list_has_epochs_of_its_own(mixture: Mixture) -> None:
    """The items of a list, put in the order of its own stream, come once in each of its epochs."""
    first = starts(mixture)
    for number, (order, share) in enumerate(zip(mixture.orders, mixture.shares, strict=True)):
        blocks = -(-2 * order.count // share)
        if blocks > 200:
            continue
        items = mixture.items(np.arange(blocks * SLOTS))
        own = items[(items >= first[number]) & (items < first[number + 1])] - first[number]
        # Whole blocks hold the list's own stream up to there, whatever the places within a block.
        expected = order.items(np.arange(blocks * share))
        assert sorted(own.tolist()) == sorted(expected.tolist())
        seen = np.bincount(own, minlength=order.count)
        assert seen.min() >= blocks * share // order.count
        assert seen.max() <= -(-blocks * share // order.count)


@settings(max_examples=examples(40))
@given(mixtures(least=64, scope="shard"), st.integers(1, 64))
def test_in_the_scope_shard_a_rank_keeps_its_part_of_each_list(mixture: Mixture, size: int) -> None:
    first = starts(mixture)
    for rank in {0, size // 2, size - 1}:
        items = mixture.items(rank + size * np.arange(3000), World(rank, size))
        owners = np.searchsorted(first, items, side="right") - 1
        assert ((items - first[owners]) % size == rank).all()


@settings(max_examples=examples(20))
@given(mixtures(scope="global", shuffle=False))
def test_without_shuffling_each_list_comes_in_its_own_order_and_evenly(mixture: Mixture) -> None:
    items = mixture.items(np.arange(2 * SLOTS))
    first = starts(mixture)
    for number, order in enumerate(mixture.orders):
        own = items[(items >= first[number]) & (items < first[number + 1])] - first[number]
        assert own.tolist() == (np.arange(len(own)) % order.count).tolist()


def test_the_stride_goes_through_all_slots_evenly() -> None:
    assert sorted(np.arange(SLOTS) * STRIDE % SLOTS) == list(range(SLOTS))
    items = Mixture.of(Order(1, shuffle=False), (5000, 5000), (3.0, 1.0)).items(np.arange(SLOTS))
    gaps = np.diff(np.flatnonzero(items >= 5000))
    assert gaps.min() >= 2 and gaps.max() <= 5


def test_places_are_drawn_anew_in_every_block_and_for_every_seed() -> None:
    def owners(seed: int, block: int) -> np.ndarray:
        return Mixture.of(Order(1, seed), (5000, 5000), (1.0, 1.0)).items(block * SLOTS + np.arange(SLOTS)) >= 5000

    for one, other in itertools.combinations([owners(0, 0), owners(0, 1), owners(1, 0)], 2):
        assert 0.4 < (one == other).mean() < 0.6


@settings(max_examples=examples(40))
@given(
    mixtures(scope="global"),
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 7)), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_nothing_is_lost_or_trained_twice_however_often_it_goes_on(
    mixture: Mixture, runs: list[tuple[int, int]], batch: int
) -> None:
    crops = np.arange(mixture.count) % 3 + 1
    check_interrupted(mixture, crops, runs, batch, ahead=500)


@pytest.fixture
def mixed(sample: SampleData, tmp_path: Path) -> Config:
    """The sample's list twice: its first third, with a weight of 3, and the rest, with 1."""
    lines = (sample.root.parent / "train.txt").read_text().splitlines(keepends=True)
    cut = len(lines) // 3
    (tmp_path / "few.txt").write_text("".join(lines[:cut]))
    (tmp_path / "many.txt").write_text("".join(lines[cut:]))
    lists = [{"path": "few.txt", "weight": 3}, {"path": "many.txt", "weight": 1}]
    return load_config(sample.config(tmp_path / "config.json", data={"train_filelist": lists}))


def test_a_joined_list_holds_the_paths_of_all(mixed: Config, sample: SampleData) -> None:
    paths, lists = read_lists(mixed.data.train_filelist)[:2]
    assert list(paths) == list(read_filelist(sample.root.parent / "train.txt"))
    assert [len(each.images) for each in lists] == [len(paths) // 3, len(paths) - len(paths) // 3]
    assert [paths.name(item) for item in range(len(paths))] == [Path(path).name for path in paths]
    parts = [read_filelist(each) for each in mixed.data.train_lists]
    assert FileList.concat(parts[::-1]).digest != FileList.concat(parts).digest


@pytest.mark.parametrize("unit", ["image", "box"])
def test_the_pipeline_mixes_as_the_order_says_and_alike_on_one_rank_and_on_two(mixed: Config, unit: str) -> None:
    config = changed(mixed, unit=unit)
    split = load_split(config.data, "train", World())
    order = split.order
    first = [item for item in order.items(np.arange(SLOTS)) if item < order.orders[0].count]
    assert len(first) == 768
    whole = crops(config, "train", steps=6, data=split)
    for position, _, label, _ in whole:
        image, _ = split.catalog.image_and_box(int(order.items(np.array([position]))[0]))
        assert label == split.catalog.labels[image]
    if unit == "box":
        ranks = [crops(config, "train", World(rank, 2), steps=3, data=split) for rank in range(2)]
        assert [each for visit in zip(*ranks, strict=True) for each in visit] == whole


def test_an_epochs_crops_are_what_is_to_be_expected(mixed: Config) -> None:
    split = load_split(mixed.data, "train", World())
    order = split.order
    crops_of = [
        len(read_annotation(path).names) if path else 1
        for path in map(split.catalog.annotation, range(len(split.catalog)))
    ]
    cut = order.orders[0].count
    few, many = np.mean(crops_of[:cut]), np.mean(crops_of[cut:])
    count = count_crops(split)
    assert not count.exact
    assert count.crops == round(order.count * (0.75 * few + 0.25 * many))


def test_an_index_is_of_all_lists_together(mixed: Config, tmp_path: Path) -> None:
    before = count_crops(load_split(mixed.data, "train", World()))
    made = build_index(mixed.data, "train", World(), processes=1)
    assert made.path == tmp_path / "few+many.index.parquet" == index_path(mixed.data, mixed.data.train_filelist)
    split = load_split(mixed.data, "train", World())
    assert split.catalog.boxes is not None
    assert count_crops(split).crops == before.crops


def test_what_cannot_be_mixed_is_refused(mixed: Config) -> None:
    lists = [
        each.model_copy(update={"weight": weight})
        for each, weight in zip(mixed.data.train_filelist, (1e-6, 1), strict=True)
    ]
    with pytest.raises(ConfigError, match=r"data\.train_filelist cannot be mixed so: the weight 1e-06 is less than"):
        load_split(mixed.data.model_copy(update={"train_filelist": lists}), "train", World())
    shard = mixed.data.model_copy(update={"scope": "shard"})
    with pytest.raises(ConfigError, match=r"few\.txt \+ .*many\.txt: \d+ samples cannot be dealt to 1,000 ranks"):
        load_split(shard, "train", World(0, 1000))
