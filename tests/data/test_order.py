"""The order: shards exclusive and exhaustive, epochs different, the same whatever the number of ranks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.data.order import Frontier, items, start, steps_per_epoch, visits
from tfpipe.distributed import World

counts = st.integers(1, 2000)
sizes = st.integers(1, 64)


def visited(count: int, stream: np.ndarray, **how: bool) -> np.ndarray:
    return items(stream, count, 7, **how).numpy()


def stream(world: World, end: int, frontier: Frontier | None = None) -> list[int]:
    return [int(position) for position, _ in visits(frontier or start(world), world, 1000, seed=7, end=end)]


@settings(deadline=None, max_examples=25)
@given(counts, sizes)
def test_the_ranks_shards_are_exclusive_and_exhaustive_over_every_epoch(count: int, size: int) -> None:
    for epoch in range(2):
        seen = []
        for rank in range(size):
            mine = np.arange(rank, (epoch + 1) * count, size)
            mine = mine[mine >= epoch * count]
            seen.append(visited(count, mine) if mine.size else mine)
        assert sorted(np.concatenate(seen).tolist()) == list(range(count))


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 200), st.integers(1, 9))
def test_a_rank_visits_every_size_th_position_from_its_own_on(count: int, size: int) -> None:
    streams = [stream(World(rank, size), 2 * count) for rank in range(size)]
    assert sorted(itertools.chain(*streams)) == list(range(2 * count))
    assert all(position % size == rank for rank in range(size) for position in streams[rank])


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 100), st.integers(1, 9))
def test_a_resumed_stream_is_the_tail_of_the_uninterrupted_one(taken: int, size: int) -> None:
    world = World(size - 1, size)
    whole = stream(world, 1000)
    assert stream(world, 1000, Frontier(whole[taken])) == whole[taken:]


def test_the_training_stream_never_ends() -> None:
    dataset = visits(Frontier(10**12 + 1), World(1, 2), count=100, seed=7)
    first = list(dataset.take(3).as_numpy_iterator())
    assert [position for position, _ in first] == [10**12 + 1, 10**12 + 3, 10**12 + 5]
    assert [item for _, item in first] == visited(100, np.array([position for position, _ in first])).tolist()


def test_a_frontier_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="not on the stream of rank 1 of 2"):
        visits(Frontier(4), World(1, 2), count=10, seed=7)


def test_epochs_and_seeds_give_different_orders_unless_told_to_repeat() -> None:
    first, second = visited(100, np.arange(100)), visited(100, np.arange(100, 200))
    assert first.tolist() != second.tolist()
    assert first.tolist() != items(np.arange(100), 100, 8).numpy().tolist()
    assert visited(100, np.arange(100, 200), reshuffle=False).tolist() == first.tolist()
    assert visited(100, np.arange(150), shuffle=False).tolist() == [*range(100), *range(50)]


@pytest.mark.parametrize("count", [8, 30, 100])
def test_every_item_is_as_likely_at_every_place(count: int) -> None:
    """Chi-square over epochs, as a multiple of its degrees of freedom; a fair shuffle is near 1."""
    epochs = 2000
    order = visited(count, np.arange(epochs * count)).reshape(epochs, count)
    table = np.stack([np.bincount(order[:, place], minlength=count) for place in range(count)])
    expected = epochs / count
    chi_square = ((table - expected) ** 2 / expected).sum()
    degrees = (count - 1) ** 2
    # Mean 1, standard deviation sqrt(2 / degrees); four of them.
    assert chi_square / degrees < 1 + 4 * np.sqrt(2 / degrees)
    assert len(np.unique(order, axis=0)) > (1900 if count == 8 else 1999)


@given(st.integers(0, 10**7), st.integers(1, 4096), st.integers(1, 4096))
def test_the_steps_of_an_epoch_just_cover_its_crops(crops: int, batch_size: int, size: int) -> None:
    steps = steps_per_epoch(crops, batch_size, size)
    assert steps >= 1
    assert steps * batch_size * size >= crops
    assert steps == 1 or (steps - 1) * batch_size * size < crops
