"""The stream: whatever the ranks, batches, crops and interruptions, each crop of an epoch is trained exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ranks import Ranks, check_interrupted
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.stream import BLOCK, Cursor, SampleRef, Stream
from tfpipe.data.runtime.samples import sample_blocks
from tfpipe.distributed import World

scopes = st.sampled_from(["global", "shard"])


crop_counts = st.integers(1, 60).flatmap(
    lambda count: st.lists(st.integers(0, 13), min_size=count, max_size=count).filter(any).map(np.array)
)
batches = st.integers(1, 9)


@settings(max_examples=examples(150))
@given(crop_counts, st.lists(st.tuples(st.integers(1, 64), st.integers(0, 7)), min_size=1, max_size=4), batches)
def test_nothing_is_lost_or_trained_twice_however_often_and_with_how_many_ranks_it_goes_on(
    crops: np.ndarray, runs: list[tuple[int, int]], batch: int
) -> None:
    order = Order(len(crops), seed=3)
    check_interrupted(order, crops, runs, batch, ahead=2 * len(crops))


@settings(max_examples=examples(100))
@given(crop_counts, st.integers(1, 64), batches, st.lists(st.integers(0, 6), min_size=1, max_size=3), scopes)
def test_the_tail_after_a_resume_is_the_uninterrupted_one(
    crops: np.ndarray, size: int, batch: int, stops: list[int], scope: str
) -> None:
    """On the same ranks, also after a second and a third resume; in both scopes."""
    order = Order(len(crops), seed=5, scope=scope)
    if scope == "shard":
        size = min(size, len(crops))
        # Every rank's share must hold a crop, or it would search forever.
        crops = np.maximum(crops, 1)
    whole = Ranks(Stream.start(size), order, crops, batch).steps(sum(stops) + 4)
    stream, done = Stream.start(size), 0
    for steps in stops:
        ranks = Ranks(stream.over(size), order, crops, batch)
        ran = ranks.steps(steps)
        assert ran == [places[done * batch : (done + steps) * batch] for places in whole]
        stream, done = ranks.interrupted(ran), done + steps
    assert Ranks(stream, order, crops, batch).steps(4) == [places[done * batch :] for places in whole]


@settings(max_examples=examples(100))
@given(st.integers(1, 3000), st.integers(1, 64), st.integers(1, 64), st.integers(0, 400), st.integers(1, 64))
def test_with_a_crop_an_image_another_number_of_ranks_trains_the_same_global_batches(
    count: int, size: int, batch: int, steps: int, other: int
) -> None:
    """Holds if ranks times batch size stays: the ranks are level, so that nothing is late."""
    order = Order(count, seed=1)
    ends = [Cursor(size * batch * steps + rank) for rank in range(size)]
    stream = Stream.start(size).at(ends).over(other)
    assert len(stream.pending) == 0
    visits = [stream.visits(order, World(rank, other), 20).position for rank in range(other)]
    first = size * batch * steps
    assert np.stack(visits, axis=1).ravel().tolist() == list(range(first, first + 20 * other))


def test_late_places_come_first_and_are_few() -> None:
    """Rank 1 of two has trained further than rank 0, which was in the middle of an image."""
    stream = Stream.start(2).at([Cursor(4, 2), Cursor(9)]).over(3)
    assert stream.pending.tolist() == [[4, 2], [6, 0]]
    assert stream.rest == 8
    assert stream.cursors == (Cursor(4, 2), Cursor(6), Cursor(8))
    assert stream.at([Cursor(4, 3), Cursor(10), Cursor(11)]).over(1).pending.tolist() == [[4, 3]]


def test_a_cursor_must_be_on_its_ranks_stream() -> None:
    for position in (1, -2):
        with pytest.raises(ValueError, match=rf"position {position} is not on the stream of rank 0 of 2"):
            Stream.start(2).at([Cursor(position), Cursor(1)])
    late = Stream.start(2).at([Cursor(0), Cursor(7)]).over(3)
    with pytest.raises(ValueError, match="position 1 is not on the stream of rank 0 of 3"):
        late.at([Cursor(1), *late.cursors[1:]])


@settings(max_examples=examples(20))
@given(st.integers(1, 3000), st.integers(1, 64), st.data(), scopes)
def test_the_dataset_is_the_twin_of_the_arrays(count: int, size: int, data: st.DataObject, scope: str) -> None:
    """Also with pending places, and over the bounds of its blocks."""
    count = max(count, size)
    order = Order(count, seed=data.draw(st.integers(0, 2**63)), scope=scope)
    stream = Stream.start(size)
    if scope == "global":
        ahead = data.draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))
        ends = [Cursor(rank + size * places, places % 3) for rank, places in enumerate(ahead)]
        stream = stream.at(ends).over(data.draw(st.integers(1, 5)))
    world = World(data.draw(st.integers(0, stream.size - 1)), stream.size)
    wanted = stream.visits(order, world, BLOCK + 9)
    batch = next(iter(sample_blocks(stream, order, world).unbatch().batch(BLOCK + 9)))
    for got, expected in zip(batch, wanted, strict=True):
        np.testing.assert_array_equal(got, expected)
    # And one that ends, as a pass over test data does.
    rest = stream.count(world.rank, count)
    positions = [int(visit.position) for visit in sample_blocks(stream, order, world, end=count).unbatch()]
    assert positions == stream.visits(order, world, rest).position.tolist() and max(positions, default=0) < count
    assert stream.visits(order, world, rest + 1).position[-1] >= count


def test_a_dataset_ends_where_it_is_told_to() -> None:
    shares = [
        [
            SampleRef(*map(int, visit))
            for visit in sample_blocks(Stream.start(3), Order(7, shuffle=False), World(rank, 3), end=7).unbatch()
        ]
        for rank in range(3)
    ]
    assert [[visit.item for visit in share] for share in shares] == [[0, 3, 6], [1, 4], [2, 5]]
    long = sample_blocks(Stream.start(2), Order(3 * BLOCK), World(1, 2), end=3 * BLOCK).unbatch()
    assert [int(visit.position) for visit in long] == list(range(1, 3 * BLOCK, 2))
