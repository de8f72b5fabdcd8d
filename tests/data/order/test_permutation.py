"""The order: shards exclusive and exhaustive, epochs different, fair, the same in numpy and in TensorFlow."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.data.order.permutation import Order, steps_per_epoch
from tfpipe.distributed import World

counts = st.integers(1, 4000)
sizes = st.integers(1, 64)
epochs = st.integers(0, 10**6)
seeds = st.integers(0, 2**64 - 1)
scopes = st.sampled_from(["global", "shard"])


@settings(max_examples=150)
@given(counts, sizes, epochs, seeds, scopes)
def test_the_ranks_shards_are_exclusive_and_exhaustive_over_every_epoch(
    count: int, size: int, epoch: int, seed: int, scope: str
) -> None:
    order = Order(count, seed, scope=scope)
    shards = []
    for rank in range(min(size, count) if scope == "shard" else size):
        world = World(rank, size)
        positions = np.array(order.positions(epoch, world), np.int64)
        if positions.size:
            assert (positions % size == rank).all()
            assert (order.epochs(positions, world) == epoch).all()
            shards.append(order.items(positions, world))
    assert sorted(np.concatenate(shards).tolist()) == list(range(count))


@settings(max_examples=50)
@given(counts, sizes, seeds)
def test_the_global_order_is_the_same_whatever_the_number_of_ranks(count: int, size: int, seed: int) -> None:
    order = Order(count, seed)
    stream = np.arange(3 * count)
    alone = order.items(stream)
    for rank in range(size):
        if rank < 3 * count:
            np.testing.assert_array_equal(order.items(stream[rank::size], World(rank, size)), alone[rank::size])


@settings(max_examples=50)
@given(st.integers(1, 500), sizes)
def test_in_the_scope_shard_a_rank_keeps_its_items(count: int, size: int) -> None:
    size = min(size, count)
    order = Order(count, scope="shard")
    for rank in range(size):
        world = World(rank, size)
        for epoch in (0, 1, 7):
            seen = order.items(np.array(order.positions(epoch, world)), world)
            assert sorted(seen.tolist()) == list(range(rank, count, size))


def test_ranks_shuffle_their_shards_differently() -> None:
    order = Order(4000, scope="shard")
    places = [order.items(np.array(order.positions(0, World(rank, 4))), World(rank, 4)) // 4 for rank in range(4)]
    for one, other in itertools.combinations(places, 2):
        assert (one == other).mean() < 0.01


def test_in_the_scope_shard_every_rank_needs_an_item() -> None:
    with pytest.raises(ValueError, match="2 items, and none for rank 2 of 3"):
        Order(2, scope="shard").items(np.array([2]), World(2, 3))


def test_an_order_is_of_a_possible_number_of_items() -> None:
    for count in (0, 2**31 + 1):
        with pytest.raises(ValueError, match=f"an order is of 1 to 2147483648 items, received {count}"):
            Order(count)
    assert Order(2**31).count == 2147483648


def test_the_order_of_today_is_the_order_of_tomorrow() -> None:
    """A run that resumes with a newer version must find the order it left."""
    assert Order(10, seed=1).items(np.arange(20)).tolist() == [*map(int, "51946738209107482356")]
    imagenet = Order(1_281_167, seed=7, scope="shard").items(np.array([5, 13, 10**12 + 5]), World(5, 8))
    assert imagenet.tolist() == [284797, 79581, 48469]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """Also epochs far apart: a cipher that takes few bits of the epoch repeats itself after 256 of them."""
    count = 1000
    orders = {
        (seed, epoch): Order(count, seed).items(np.arange(count) + epoch * count)
        for seed in (0, 1, 2**32)
        for epoch in (0, 1, 2, 255, 256, 257, 2048, 4096, 2**32)
    }
    for one, other in itertools.combinations(orders, 2):
        assert (orders[one] == orders[other]).mean() < 0.02, (one, other)


@given(counts, seeds)
def test_without_reshuffling_every_epoch_is_the_first(count: int, seed: int) -> None:
    order = Order(count, seed, reshuffle=False)
    first = order.items(np.arange(count))
    np.testing.assert_array_equal(order.items(np.arange(count) + 5 * count), first)
    np.testing.assert_array_equal(first, Order(count, seed).items(np.arange(count)))


@given(counts)
def test_without_shuffling_the_order_is_the_lists(count: int) -> None:
    order = Order(count, shuffle=False)
    assert order.items(np.arange(2 * count)).tolist() == [*range(count), *range(count)]


def over_noise(table: np.ndarray, free: int) -> float:
    """Chi-square of counts that should all be equal, as a number of standard deviations over its mean."""
    expected = table.mean()
    return (((table - expected) ** 2).sum() / expected - free) / math.sqrt(2 * free)


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 30, 100, 257])
def test_every_item_comes_equally_often_at_every_position(count: int, seed: int) -> None:
    """The chi-square of (position, item) over 3,000 epochs; 5 deviations happen once in three million tests."""
    rounds = 3000
    items = Order(count, seed).items(np.arange(count * rounds)).reshape(rounds, count)
    table = np.stack([np.bincount(column, minlength=count) for column in items.T])
    assert over_noise(table, (count - 1) ** 2) < 5


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_items_is_equally_likely(count: int) -> None:
    rounds = 100 * math.factorial(count)
    items = Order(count, seed=9).items(np.arange(count * rounds)).reshape(rounds, count)
    _, seen = np.unique(items @ count ** np.arange(count), return_counts=True)
    assert len(seen) == math.factorial(count)
    assert over_noise(seen, len(seen) - 1) < 5


@pytest.mark.parametrize("distance", [1, 2, 64])
def test_neighbours_in_the_list_do_not_stay_neighbours(distance: int) -> None:
    """The differences of items `distance` positions apart are spread evenly."""
    count = 1000
    items = Order(count, seed=2).items(np.arange(count * 400)).reshape(400, count)
    apart = (items[:, distance:] - items[:, :-distance]) % count
    assert over_noise(np.bincount(apart.ravel(), minlength=count)[1:], count - 2) < 5


def test_a_block_may_span_any_epochs() -> None:
    positions = np.array([5, 10**9, 3, 999])
    order = Order(7, seed=3)
    assert order.items(positions).tolist() == [int(order.items(np.array([p]))[0]) for p in positions]


@pytest.mark.parametrize(
    ("crops", "batch", "size", "steps"), [(100, 10, 1, 10), (101, 10, 1, 11), (101, 10, 4, 3), (1, 64, 64, 1)]
)
def test_steps_cover_an_epoch(crops: int, batch: int, size: int, steps: int) -> None:
    assert steps_per_epoch(crops, batch, size) == steps


def test_the_order_needs_no_tensorflow() -> None:
    code = "import sys, numpy, tfpipe.data.order.stream as s; from tfpipe.data.order.permutation import Order\n"
    code += "Order(9).items(numpy.arange(9)); sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
