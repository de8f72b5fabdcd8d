"""A straggler is found in an interval, and over a run it is always the same or not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.training.monitor.stragglers import AT_LEAST_TIMES, CAUSES, Straggler, describe_stragglers, find_straggler


def rank(number: int, wait_ms: float = 10, compute_ms: float = 90, **more_ms: float) -> dict[str, Any]:
    parts = {
        **{"wait_ms": wait_ms, "compute_ms": compute_ms, "transfer_ms": 0, "callbacks_ms": 0, "rest_ms": 0},
        **more_ms,
    }
    return {"rank": number, "host": f"n{number}", **parts, "own_ms": sum(parts.values())}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], None),
        ([rank(0, wait_ms=900)], None),
        ([rank(0), rank(1), rank(2)], None),
        ([rank(0), rank(1, wait_ms=59)], None),
        ([rank(0), rank(1, wait_ms=60)], Straggler(1, "n1", 1.5, "input")),
        # Of two ranks none can take twice their average.
        ([rank(0, compute_ms=990), rank(1)], Straggler(0, "n0", 10.0, "compute")),
        # Waits most of all, but no more than the others do.
        ([rank(0, 400, 100), rank(1, 400, 100), rank(2, 400, 600)], Straggler(2, "n2", 2.0, "compute")),
        # Half of the ranks are slow: what the others wait for is not one rank.
        ([rank(0, 210), rank(1, 210), rank(2, 210), rank(3)], None),
        ([rank(0, 0, 0), rank(1, 0, 0, rest_ms=5)], None),
        # Each part of a step is a cause.
        *(
            ([rank(0), rank(1), rank(2, 20, 100, **{part: 80})], Straggler(2, "n2", 2.0, cause))
            for cause, (part, *_) in CAUSES.items()
            if cause not in ("input", "compute")
        ),
    ],
)
def test_the_straggler_of_an_interval(ranks: list[dict[str, Any]], expected: Straggler | None) -> None:
    assert find_straggler(ranks) == expected


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=9), st.floats(AT_LEAST_TIMES * 1.001, 50), st.data())
def test_one_rank_that_is_slower_than_all_others_is_found_wherever_it_is(
    own_ms: list[float], times: float, data: st.DataObject
) -> None:
    slow = data.draw(st.integers(0, len(own_ms) - 1))
    ranks = [rank(number, 0, each) for number, each in enumerate(own_ms)]
    ranks[slow] = rank(slow, times * max(own_ms), 1)
    found = find_straggler(ranks)
    assert found is not None and found[:2] == (slow, f"n{slow}") and found.times >= times * 0.99


def intervals(*stragglers: int | None, because: str = "input", times: float = 2.0) -> list[dict[str, Any]]:
    return [
        {"straggler": None if each is None else {"rank": each, "host": f"n{each}", "times": times, "because": because}}
        for each in stragglers
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], None),
        ([None] * 9, None),
        ([2, *[None] * 9], None),
        ([2, 2], "rank 2 (host n2) is 2.0 times slower than the others in 2 of 2 intervals: waits for input"),
        (
            [2] * 9 + [None],
            "rank 2 (host n2) is 2.0 times slower than the others in 9 of 10 intervals: waits for input",
        ),
        ([5, 2, 2, 2], "rank 2 (host n2) is 2.0 times slower than the others in 3 of 4 intervals: waits for input"),
        ([5, 5, 2, 2, 2], "stragglers wander (rank 2 3 times, rank 5 2 times): loading is too slow everywhere"),
        ([0, None, 1], "stragglers wander (rank 0 once, rank 1 once): loading is too slow everywhere"),
    ],
)
def test_a_fixed_straggler_is_told_from_wandering_ones(found: list[int | None], said: str | None) -> None:
    straggling = describe_stragglers(intervals(*found))
    assert (straggling and str(straggling)) == said


def test_the_reason_is_that_of_most_intervals() -> None:
    mixed = intervals(1, because="input", times=9) + intervals(1, 1, because="compute", times=3)
    assert str(describe_stragglers(mixed)) == (
        "rank 1 (host n1) is 3.0 times slower than the others in 3 of 3 intervals: computes more slowly"
    )


@given(st.lists(st.none() | st.integers(0, 3), max_size=30))
def test_fixed_or_wandering_as_defined(found: list[int | None]) -> None:
    straggling = describe_stragglers(intervals(*found))
    some = [each for each in found if each is not None]
    if len(some) < 2:
        assert straggling is None
        return
    most = max(some.count(each) for each in some)
    assert (straggling.fixed is not None) == (most >= 2 and 4 * most >= 3 * len(some))
    assert sum(straggling.counts.values()) == len(some) and straggling.intervals == len(found)
