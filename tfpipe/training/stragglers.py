"""Stragglers: the rank that the others wait for, in one interval, and whether it is the same in all of them.

Works on the lines of metrics.jsonl, and needs no TensorFlow.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

# SPDL calls a straggler what takes twice the average; with few ranks the straggler itself raises the average (of two
# ranks, none can take twice it), so it is the median of the others here, and at half the distance.
AT_LEAST_TIMES = 1.5
# Of the intervals with a straggler, the share in which a fixed one is it, and how often at the least.
FIXED_SHARE, FIXED_AT_LEAST = 0.75, 2

Part = Literal["input", "compute"]


class Straggler(NamedTuple):
    """The slowest rank of an interval."""

    rank: int
    host: str
    times: float
    """Its own time as a multiple of the median of the others'."""
    because: Part
    """Which part of its time exceeds the others' the most."""


class Straggling(NamedTuple):
    """The stragglers of several intervals."""

    fixed: Straggler | None
    """The one that it nearly always is, with its median `times`; None where they wander."""
    counts: dict[int, int]
    """In how many intervals each rank was it; the most frequent first."""
    intervals: int
    """How many there are, with stragglers and without."""
    because: Part
    """In most of them."""

    def __str__(self) -> str:
        if self.fixed is None:
            ranks = ", ".join(f"rank {rank} {_times(count)}" for rank, count in self.counts.items())
            what = {"input": "loading is too slow everywhere", "compute": "computing is uneven everywhere"}
            return f"stragglers wander ({ranks}): {what[self.because]}"
        rank, host, times, because = self.fixed
        what = {"input": "waits for input", "compute": "computes more slowly"}
        return (
            f"rank {rank} (host {host}) is {times:.1f} times slower than the others in {self.counts[rank]} of "
            f"{self.intervals} intervals: {what[because]}"
        )


def find_straggler(ranks: Sequence[Mapping[str, Any]]) -> Straggler | None:
    """The rank whose own time is the furthest above the others', if it is by AT_LEAST_TIMES.

    Args:
        ranks: "ranks" of an interval: rank, host, and means of wait_ms, own_ms and compute_ms.
    """
    if len(ranks) < 2:
        return None
    slowest = max(ranks, key=lambda each: each["own_ms"])
    others = [each for each in ranks if each is not slowest]

    def excess_ms(part: str) -> float:
        return slowest[part] - statistics.median(each[part] for each in others)

    usual_ms = statistics.median(each["own_ms"] for each in others)
    if usual_ms <= 0 or slowest["own_ms"] < AT_LEAST_TIMES * usual_ms:
        return None
    because: Part = "input" if excess_ms("wait_ms") >= excess_ms("compute_ms") else "compute"
    return Straggler(slowest["rank"], slowest["host"], slowest["own_ms"] / usual_ms, because)


def describe_stragglers(intervals: Sequence[Mapping[str, Any]]) -> Straggling | None:
    """Whether the stragglers of some intervals are one and the same; None for fewer than two of them.

    Args:
        intervals: what metrics.jsonl has under "interval", line by line.
    """
    found = [Straggler(**each["straggler"]) for each in intervals if each["straggler"] is not None]
    if len(found) < FIXED_AT_LEAST:
        return None
    counts = dict(Counter(each.rank for each in found).most_common())
    rank = next(iter(counts))
    fixed = None
    if counts[rank] >= max(FIXED_AT_LEAST, FIXED_SHARE * len(found)):
        its = [each for each in found if each.rank == rank]
        times = statistics.median(each.times for each in its)
        fixed = Straggler(rank, its[-1].host, times, _most(its))
    return Straggling(fixed, counts, len(intervals), _most(found))


def _most(found: Sequence[Straggler]) -> Part:
    return Counter(each.because for each in found).most_common(1)[0][0]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
