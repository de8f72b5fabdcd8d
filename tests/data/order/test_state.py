"""The state of a Loader: what was written is read, and anything else is refused by name."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe import make_config
from tfpipe.data.order.state import LoaderState
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.errors import ConfigError


def state(**changes: Any) -> dict[str, Any]:
    """A state of two ranks that have used 3 and 2 batches of 8 crops."""
    stream = Stream.start(2).at([Cursor(10, 2), Cursor(9, 0)])
    return {**LoaderState("train", stream, ((0, 8),), (3, 2), 40, False, {"seed": 1}).to_dict(), **changes}


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), min_size=5, max_size=5),
    st.integers(1, 5),
)
def test_what_is_written_is_read(size: int, ranks: list[tuple[int, int]], other: int) -> None:
    cursors = [Cursor(rank + size * steps, crop) for rank, (steps, crop) in enumerate(ranks[:size])]
    stream = Stream.start(size).at(cursors).over(other)
    written = LoaderState("test", stream, ((0, 4),), tuple(range(other)), 1000, True, {"a": [1]}).to_dict()
    read = LoaderState.from_dict(json.loads(json.dumps(written)))
    assert read.to_dict() == written


def test_steps_are_each_ranks_own_or_else_those_of_the_crops() -> None:
    loaded = LoaderState.from_dict(state())

    def steps(rank: int, size: int, batch_size: int) -> int:
        data = make_config({"data": {"train_filelist": "unused.txt", "batch_size": batch_size}}).data
        return loaded.steps(rank, size, data, lambda _: pytest.fail("no steps of epochs are needed"))

    assert [steps(rank, 2, 8) for rank in range(2)] == [3, 2]
    assert steps(0, 3, 8) == 1 and steps(0, 1, 16) == 2


@pytest.mark.parametrize("missing", state())
def test_a_truncated_state_is_refused(missing: str) -> None:
    values = state()
    del values[missing]
    with pytest.raises(ConfigError, match=rf"no whole state of a Loader: it has no '{missing}'; expected the value of"):
        LoaderState.from_dict(values)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"frontiers": [[0, 0], [2**31 - 1, 0]]},
            "a rank is at position 2147483647, more than 16777216 ahead of another",
        ),
        ({"format": 1}, "its format is 1, and this version of tfpipe reads 2"),
        ({"crops": -8}, "crops is -8, expected at least 0"),
        ({"crops": "40"}, "crops is '40', not a whole number"),
        ({"crops": True}, "crops is True, not a whole number"),
        ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
        ({"batch_size": []}, r"batch_size is \[\], not a number or \[epoch, number\] of each phase"),
        ({"batch_size": [[0, 8], [2]]}, r"batch_size is \[\[0, 8\], \[2\]\], not a number or"),
        ({"batches": [3]}, "batches of 1 rank and frontiers of 2"),
        ({"batches": [], "frontiers": []}, "batches of 0 ranks and frontiers of 0"),
        ({"frontiers": [[10, 1_000_000], [9, 0]]}, r"crop at position 10 is 1000000, expected 0 to 40"),
        ({"frontiers": [[10, -1], [9, 0]]}, r"crop at position 10 is -1"),
        ({"frontiers": [[2**62, 0], [9, 0]]}, r"position is 4611686018427387904, expected 0 to"),
        ({"frontiers": [[11, 0], [9, 0]]}, "position 11 is not on the stream of rank 0 of 2"),
        ({"frontiers": [10, 9]}, r"a cursor is 10, not \[position, crop\]"),
        ({"frontiers": [[10], [9, 0]]}, r"a cursor is \[10\], not \[position, crop\]"),
        ({"rest": -1}, "rest is -1"),
        ({"rest": 8, "pending": [[6, 0], [4, 0]]}, "pending positions are not in ascending order below rest"),
        ({"pending": [[0, 0]]}, "pending positions are not in ascending order below rest"),
        ({"contract": None}, "its contract is no dictionary"),
        ({"ended": 0}, "ended is 0, not true or false"),
    ],
)
def test_an_impossible_state_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"no whole state of a Loader: {problem}"):
        LoaderState.from_dict(state(**changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"crops": 10}, "crops is 10, and before its frontiers and pending positions are 11 to 47"),
        ({"crops": 48}, "crops is 48, and before its frontiers and pending positions are 11 to 47"),
        ({"frontiers": [[0, 0], [1, 0]]}, "crops is 40, and before its frontiers and pending positions are 0 to 0"),
        ({"frontiers": [[2000, 0], [9, 0]]}, "crops is 40, and before its .* are 1004 to 5020"),
        ({"rest": 100, "frontiers": [[100, 0], [101, 0]], "pending": []}, "crops is 40, and before its .* are 100 to"),
        ({"batches": [3, 3]}, "crops is 40, and its batches, 6, have 48 to 63"),
        ({"batches": [1, 2]}, "crops is 40, and its batches, 3, have 24 to 39"),
        ({"ended": True}, "ended is true, and training data never end"),
        ({"split": "test", "ended": True}, "ended is true, and crops is 40 of 45"),
        ({"split": "test", "crops": 45, "ended": False}, "ended is false, and crops is 45 of 45"),
        ({"split": "test", "batches": [1, 2]}, "crops is 40, and its batches, 3, have 0 to 39"),
    ],
)
def test_counts_that_do_not_belong_to_each_other_are_refused(changes: dict[str, Any], problem: str) -> None:
    """Samples have one to five crops, and a test pass has 45."""
    whole = 45 if changes.get("split") == "test" else None
    LoaderState.from_dict(state()).check_counts(1, 5, None)
    with pytest.raises(ConfigError, match=f"no whole state of a Loader: {problem}"):
        LoaderState.from_dict(state(**changes)).check_counts(1, 5, whole)


@given(
    st.lists(st.integers(0, 3), min_size=30, max_size=30),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=4),
)
def test_the_counts_of_any_real_state_are_accepted(counts: list[int], runs: list[tuple[int, int]]) -> None:
    """Ranks in turn use the crops of their samples one by one, and the number of ranks changes from run to run."""
    stream, crops = Stream.start(runs[0][0]), 0
    for size, steps in runs:
        stream = stream.over(size)
        for rank in range(size):
            index = stream.index(rank)
            for _ in range(steps):
                # The next sample with a crop that is left.
                positions, firsts = stream.at_indices(
                    np.arange(index, index + 200 * size, size), index, stream.cursors[rank]
                )
                left = [(p, f) for p, f in zip(positions.tolist(), firsts.tolist(), strict=True) if f < counts[p % 30]]
                if not left:
                    break
                stream, crops = stream.moved(rank, Cursor(left[0][0], left[0][1] + 1)), crops + 1
                index = stream.index(rank)
    batches = (0,) * stream.size
    state = LoaderState("train", stream, ((0, 10**6),), batches, crops, False, {})
    state.check_counts(min(counts), max(counts), None)


def test_another_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is of the type list"):
        LoaderState.from_dict([1, 2])
