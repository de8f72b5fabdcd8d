"""`data.on_error` "skip": what can be used is, and what cannot leaves a gap that tells which it was."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ranks import Ranks
from tfpipe import Stream, World
from tfpipe.data.failures.missing import MissingSamples
from tfpipe.data.order.permutation import Order
from tfpipe.data.runtime.stage import skip_failed_elements


def test_only_what_fails_is_left_out_and_the_rest_keeps_its_order() -> None:
    def work(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Each number as often as it says; none may be 3."""
        tf.debugging.assert_none_equal(numbers, 3)
        repeated = tf.repeat(numbers, numbers)
        return repeated, 10 * repeated

    dataset = tf.data.Dataset.from_tensor_slices([[1, 2, 0, 4], [2, 3, 1, 3], [3, 3, 3, 3], [0, 0, 0, 0], [3, 0, 0, 1]])
    dataset = dataset.map(skip_failed_elements(work), num_parallel_calls=2)
    got = [(one.tolist(), ten.tolist()) for one, ten in dataset.as_numpy_iterator()]
    expected = [[1, 2, 2, 4, 4, 4, 4], [2, 2, 1], [], [], [1]]
    assert got == [(each, [10 * number for number in each]) for each in expected]


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=60).filter(any),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_gaps_are_the_visits_that_gave_no_crop(counts: list[int], runs: list[tuple[int, int]], batch: int) -> None:
    order, counts = Order(len(counts), seed=4), np.array(counts)
    stream = Stream.start(runs[0][0])
    for size, steps in runs:
        stream = stream.over(size)
        ranks = Ranks(stream, order, counts, batch)
        ran = ranks.steps(steps)
        for rank in range(size):
            gaps, world = MissingSamples(stream, order, World(rank, size)), World(rank, size)
            found = []
            for start in range(0, len(ran[rank]), batch):
                visit, gaps = gaps.find_missing([np.array(ran[rank][start : start + batch])])
                found += visit.position.tolist()
                np.testing.assert_array_equal(visit.item, order.items(visit.position, world))
            seen = {position for position, _ in ran[rank]}
            last = ran[rank][-1][0] if ran[rank] else None
            expected = []
            visits = stream.visits(order, world, (last or 0) + len(stream.pending) + 1)
            for position, item, first in zip(*(each.tolist() for each in visits), strict=True):
                if last is None:
                    break
                assert (position in seen) == (counts[item] > first)
                expected += [] if position in seen else [position]
                last = None if position == last else last
            assert found == expected and last is None
        stream = ranks.interrupted(ran)


def test_without_batches_nothing_is_passed() -> None:
    gaps = MissingSamples(Stream.start(1), Order(5), World())
    assert gaps.find_missing([])[0].position.size == 0
