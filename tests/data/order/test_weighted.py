"""Weighted samples: each as often as its weight says, the same for any ranks, in numpy and in TensorFlow."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ranks import check_interrupted
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.weighted import PARTS, STEP, WeightedOrder, widths
from tfpipe.distributed import World

weights = st.lists(st.floats(0, 1e6) | st.sampled_from([0.0, 1e-12, 1.0]), min_size=1, max_size=300)
weights = weights.filter(any).map(np.array)


@st.composite
def orders(draw: st.DrawFn, scope: str = "global", least: int = 1) -> WeightedOrder:
    chosen = draw(weights)
    if len(chosen) < least:
        chosen = np.resize(chosen, least)
    seed, shuffle, reshuffle = draw(st.integers(0, 2**64 - 1)), draw(st.booleans()), draw(st.booleans())
    return WeightedOrder(len(chosen), seed, shuffle, reshuffle, scope, chosen)


def counts(order: WeightedOrder, epoch: int, epochs: int = 1) -> np.ndarray:
    items = order.items(np.arange(epoch * order.count, (epoch + epochs) * order.count))
    return np.bincount(items, minlength=order.count)


@settings(max_examples=examples(100))
@given(weights)
def test_widths_are_proportional_to_the_weights_and_fill_the_line(chosen: np.ndarray) -> None:
    got = widths(chosen)
    assert got.sum() == len(chosen) * PARTS
    exact = chosen / chosen.sum() * len(chosen) * PARTS
    assert np.abs(got - exact).max() <= 2 + 1e-12 * exact.max()
    assert (got[chosen == 0] == 0).all() and (got >= 0).all()


@settings(max_examples=examples(100))
@given(orders(), st.integers(0, 10**9))
def test_in_every_epoch_a_sample_comes_as_often_as_its_weight_says(order: WeightedOrder, epoch: int) -> None:
    """Rounded down or up, and so do any samples that follow each other, together."""
    expected, seen = order.expected(), counts(order, epoch)
    assert seen.sum() == order.count
    for part in (np.arange(order.count), np.arange(order.count // 2)):
        total = expected[part].sum()
        assert np.floor(total - 1e-6) <= seen[part].sum() <= np.ceil(total + 1e-6)
    assert (np.floor(expected) <= seen).all() and (seen <= np.ceil(expected)).all()


@settings(max_examples=examples(30))
@given(orders())
def test_over_the_epochs_the_rounding_evens_out(order: WeightedOrder) -> None:
    """The offsets follow the golden ratio: a sample's visits stay within 3 of what is expected, not a root of them."""
    epochs = 60
    assert np.abs(counts(order, 0, epochs) - epochs * order.expected()).max() < 3


def test_the_offsets_of_the_seeds_make_each_count_exact_in_expectation() -> None:
    """The mean over the seeds of a sample's visits in one epoch is its weight's share."""
    chosen = np.array([0.3, 0.5, 2.2, 1.0])
    seen = np.mean([counts(WeightedOrder(4, seed, weights=chosen), 7) for seed in range(3000)], axis=0)
    error = np.sqrt(chosen % 1 * (1 - chosen % 1) / 3000)
    assert (np.abs(seen - chosen) <= 4 * error).all()


def test_equal_weights_give_each_sample_once() -> None:
    for count in (1, 7, 1000):
        order = WeightedOrder(count, 3, weights=np.full(count, 0.1))
        assert all((counts(order, epoch) == 1).all() for epoch in range(5))


@pytest.mark.parametrize("of", [np.array, tf.constant], ids=["arrays", "tensors"])
def test_a_point_where_two_intervals_meet_is_of_the_later_one(of: Any) -> None:
    """In the epoch whose offset is 0, each point is where an interval begins; a sample of no width has none."""
    for chosen, expected in (([1.0] * 5, [0, 1, 2, 3, 4]), ([0.0, 2.0, 0.0, 1.0, 2.0], [1, 1, 3, 4, 4])):
        order = WeightedOrder(5, 3, shuffle=False, weights=np.array(chosen))
        epoch = -order._offset * pow(STEP, -1, PARTS) % PARTS
        assert np.asarray(order.items(of(epoch * 5 + np.arange(5)))).tolist() == expected


def test_the_step_of_the_offsets_reaches_all_of_them() -> None:
    assert STEP % 2 == 1 and PARTS == 2**30
    assert abs(STEP / PARTS - (5**0.5 - 1) / 2) < 1e-8


def test_the_most_samples_do_not_overflow() -> None:
    """The last interval ends at 2**31 * PARTS, below 2**63; a dominant weight is rounded as floats are."""
    for chosen in (np.array([1.0, 1e-300]), np.array([1.0, 3.0, 1e15]), np.append(np.full(10**5, 1e-9), 1e9)):
        got = widths(chosen)
        assert got.sum() == len(chosen) * PARTS and (got >= 0).all()
    assert 2**31 * PARTS < 2**63


@settings(max_examples=examples(40))
@given(orders("shard", least=64), st.integers(1, 64), st.integers(0, 1000))
def test_in_the_scope_shard_a_rank_draws_from_its_own_samples(order: WeightedOrder, size: int, epoch: int) -> None:
    for rank in {0, size // 2, size - 1}:
        world = World(rank, size)
        if not order.weights[rank::size].any():
            with pytest.raises(ValueError, match=r"weights? is 0"):
                order.items(np.array([rank]), world)
            continue
        items = order.items(np.array(order.positions(epoch, world)), world)
        assert (items % size == rank).all()
        seen, expected = np.bincount(items // size, minlength=order.cycle(world)), order.expected(world)
        assert (np.floor(expected) <= seen).all() and (seen <= np.ceil(expected)).all()


@settings(max_examples=examples(30))
@given(orders() | orders("shard", least=64), st.integers(1, 64), st.integers(0, 2**40))
def test_tensors_give_what_arrays_give(order: WeightedOrder, size: int, start: int) -> None:
    world = World(size - 1, size)
    if order.scope == "shard" and not order.weights[world.rank :: size].any():
        return
    positions = start // size * size + world.rank + size * np.arange(200)
    in_graph = tf.function(lambda places: order.items(places, world))
    np.testing.assert_array_equal(in_graph(tf.constant(positions)), order.items(positions, world))


def test_without_shuffling_samples_come_in_their_order() -> None:
    order = WeightedOrder(1000, 1, shuffle=False, weights=np.random.default_rng(0).random(1000))
    items = order.items(np.arange(1000))
    assert (np.diff(items) >= 0).all()


def test_epochs_and_seeds_differ_and_without_reshuffling_the_places_stay() -> None:
    chosen = np.random.default_rng(0).random(1000)
    shuffled = [WeightedOrder(1000, seed, weights=chosen).items(np.arange(2000)) for seed in (1, 2)]
    assert (shuffled[0] == shuffled[1]).mean() < 0.05
    assert (shuffled[0][:1000] == shuffled[0][1000:]).mean() < 0.05
    same = WeightedOrder(1000, 1, reshuffle=False, weights=chosen).items(np.arange(2000))
    # Each place holds the same sample, or one of its neighbours, whose turn it is by the offset.
    assert np.abs(same[:1000] - same[1000:]).max() < 30
    equal = WeightedOrder(1000, 1, reshuffle=False, weights=np.ones(1000)).items(np.arange(2000))
    np.testing.assert_array_equal(equal[:1000], equal[1000:])


@pytest.mark.parametrize("wrong", [[1, np.nan], [1, -1], [np.inf, 1], [0, 0], [1, 1, 1]])
def test_weights_that_are_none_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        WeightedOrder(2, weights=np.array(wrong, float)).items(np.arange(2))


@settings(max_examples=examples(40))
@given(orders(), st.lists(st.tuples(st.integers(1, 16), st.integers(0, 7)), min_size=1, max_size=4), st.integers(1, 9))
def test_nothing_is_lost_or_trained_twice_however_often_it_goes_on(
    order: WeightedOrder, runs: list[tuple[int, int]], batch: int
) -> None:
    crops = np.arange(order.count) % 3 + 1
    check_interrupted(order, crops, runs, batch, ahead=500)


def test_orders_are_equal_if_their_weights_are() -> None:
    orders = [WeightedOrder(3, weights=np.array(weights)) for weights in ([1.0, 2, 3], [1.0, 2, 3], [1.0, 2, 4])]
    assert orders[0] == orders[1] and hash(orders[0]) == hash(orders[1])
    assert orders[0] != orders[2] and orders[0] != Order(3)
