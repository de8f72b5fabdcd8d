"""Repeated samples: position p has the item that p // k has without repeats, whatever the order, ranks and resumes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.batches import assert_same, batches, crops
from tests.support.configs import changed, config_here
from tests.support.examples import examples
from tests.support.ranks import check_interrupted
from tests.support.sample import SampleData
from tfpipe import Loader, World
from tfpipe.cli import main
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

times = st.integers(1, 9)
sizes = st.integers(1, 64)


@st.composite
def orders(draw: st.DrawFn, scope: str | None = None) -> Order | Mixture:
    """Orders of each kind without repeats, of at least 64 items in each list, one for each rank."""
    count, seed = draw(st.integers(64, 3000)), draw(st.integers(0, 2**64 - 1))
    shuffle, reshuffle = draw(st.booleans()), draw(st.booleans())
    how = (seed, shuffle, reshuffle, draw(st.sampled_from(["global", "shard"])) if scope is None else scope)
    kind = draw(st.sampled_from(["plain", "weighted", "mixed"]))
    if kind == "weighted":
        return WeightedOrder(count, *how, np.random.default_rng(seed).integers(1, 9, count).astype(float))
    if kind == "mixed":
        return Mixture.of(Order(1, *how), (count, draw(st.integers(64, 500))), (1.0, draw(st.floats(0.1, 5))))
    return Order(count, *how)


@settings(max_examples=examples(100))
@given(orders("global"), times, st.integers(0, 2**40), sizes)
def test_in_the_scope_global_a_position_has_the_item_of_its_kth_part(
    order: Order | Mixture, k: int, start: int, size: int
) -> None:
    repeated, stream = replace(order, repeats=k), start + np.arange(500)
    expected = order.items(stream // k)
    np.testing.assert_array_equal(repeated.items(stream), expected)
    for rank in {0, size - 1}:
        np.testing.assert_array_equal(repeated.items(stream[rank::size], World(rank, size)), expected[rank::size])


@settings(max_examples=examples(100))
@given(orders("shard"), times, st.integers(0, 10**6), sizes)
def test_in_the_scope_shard_a_rank_itself_repeats_its_samples(
    order: Order | Mixture, k: int, start: int, size: int
) -> None:
    repeated, world = replace(order, repeats=k), World(size - 1, size)
    steps = start + np.arange(500)
    expected = order.items(steps // k * size + world.rank, world)
    np.testing.assert_array_equal(repeated.items(steps * size + world.rank, world), expected)


@settings(max_examples=examples(60))
@given(orders(), times, sizes, st.integers(0, 1000))
def test_an_epochs_positions_follow_on_the_last_ones_and_hold_k_visits_of_each_item(
    order: Order | Mixture, k: int, size: int, epoch: int
) -> None:
    repeated, world = replace(order, repeats=k), World(size // 2, size)
    assert repeated.length == k * order.length
    own, before = (each.positions(epoch, world) for each in (repeated, order))
    two = [*own, *repeated.positions(epoch + 1, world)]
    assert two == list(range(two[0], two[-1] + 1, size))
    if order.scope == "shard" or size == 1:
        assert len(own) == k * len(before)
        items = repeated.items(np.array(own), world).reshape(-1, k)
        assert (items == items[:, :1]).all()
        np.testing.assert_array_equal(items[:, 0], order.items(np.array(before), world))


@settings(max_examples=examples(40))
@given(orders(), times, sizes, st.integers(0, 2**40))
def test_tensors_give_what_arrays_give(order: Order | Mixture, k: int, size: int, start: int) -> None:
    repeated, world = replace(order, repeats=k), World(size - 1, size)
    positions = start // size * size + world.rank + size * np.arange(200)
    np.testing.assert_array_equal(repeated.items(tf.constant(positions), world), repeated.items(positions, world))


@settings(max_examples=examples(40))
@given(
    st.integers(1, 200),
    times,
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 7)), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_nothing_is_lost_or_trained_twice_however_often_it_goes_on(
    count: int, k: int, runs: list[tuple[int, int]], batch: int
) -> None:
    order = Order(count, seed=3, repeats=k)
    check_interrupted(order, np.arange(count) % 4 + 1, runs, batch, ahead=order.length)


def test_without_repeats_an_order_is_what_it_was() -> None:
    assert Order(10, seed=1, repeats=1) == Order(10, seed=1)
    assert Order(10, seed=1, repeats=3).items(np.arange(9)).tolist() == [5, 5, 5, 1, 1, 1, 9, 9, 9]
    with pytest.raises(ValueError, match="at least once, received repeats 0"):
        Order(10, repeats=0)


@pytest.mark.parametrize("crop", ["random_resized", "boxes"])
def test_the_pipeline_visits_a_sample_k_times_each_time_with_another_crop(
    sample: SampleData, tmp_path: Path, crop: str
) -> None:
    once = config_here(sample, tmp_path, batch_size=6, crop=crop, flip=crop == "random_resized")
    thrice = changed(once, repeats=3)
    split = load_split(thrice.data, "train", World())
    assert count_crops(split).crops == 3 * count_crops(load_split(once.data, "train", World())).crops
    whole = crops(thrice, "train", steps=4)
    ranks = [crops(thrice, "train", World(rank, 2), steps=2) for rank in range(2)]
    items = split.order.items(np.array([position for position, *_ in whole]))
    assert (split.order.items(np.arange(9)) == np.repeat(split.order.items(np.arange(0, 9, 3)), 3)).all()
    for (position, _, label, _), item in zip(whole, items, strict=True):
        assert label == split.catalog.labels[item], position
    if crop == "random_resized":
        assert sorted([*ranks[0], *ranks[1]]) == sorted(whole)
        pixels = [digest for *_, digest in whole]
        assert len(set(pixels)) == len(pixels), "each visit draws from its own position"


def test_test_data_are_never_repeated(sample: SampleData, tmp_path: Path) -> None:
    once = config_here(sample, tmp_path, crop="center")
    assert_same(batches(once, "test"), batches(changed(once, repeats=4), "test"))


def test_an_epoch_is_longer_and_another_k_is_refused_like_another_seed(sample: SampleData, tmp_path: Path) -> None:
    once = config_here(sample, tmp_path, crop="random_resized", batch_size=4)
    twice = changed(once, repeats=2)
    with Loader(once, "train", World()) as one, Loader(twice, "train", World()) as two:
        samples = one.catalog.samples
        assert (one.steps_per_epoch, two.steps_per_epoch) == (-(-samples // 4), -(-2 * samples // 4))
        next(two)
        with pytest.raises(ConfigError, match=r"data\.repeats: 2 then, 1 now"):
            one.load_state_dict(two.state_dict())


def test_tfpipe_order_prints_each_sample_k_times(
    sample: SampleData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["order", "-c", str(sample.config(tmp_path / "config.json", data={"repeats": 2}))])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    images = [int(row[1]) for row in rows]
    assert images[::2] == images[1::2] and sorted(set(images)) == sorted(images[::2])
