"""Stragglers: finds the rank that the others wait for in an interval, and whether it is the same in most intervals.

It uses the lines of metrics.jsonl, and needs no TensorFlow.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tfpipe.errors import counted

# SPDL's threshold is twice the average. With few ranks the straggler itself raises the average (of two ranks, none can
# take twice as long), so the threshold here is 1.5 times the median of the other ranks.
AT_LEAST_TIMES = 1.5
# A straggler is fixed if the same rank is it in this share of the intervals with a straggler, and at least this often.
FIXED_SHARE, FIXED_AT_LEAST = 0.75, 2

Cause = Literal["input", "transfer", "compute", "callbacks", "rest"]
# The figure of a rank that a cause is, what it does if it is always the same rank, and if it is another each time.
CAUSES: dict[Cause, tuple[str, str, str]] = {
    "input": ("wait_ms", "waits for input", "loading is too slow everywhere"),
    "transfer": (
        "transfer_ms",
        "copies batches to its device more slowly",
        "copies to the devices are uneven everywhere",
    ),
    "compute": ("compute_ms", "computes more slowly", "computing is uneven everywhere"),
    "callbacks": ("callbacks_ms", "spends longer in callbacks", "callbacks are uneven everywhere"),
    "rest": ("rest_ms", "spends longer in Keras' loop", "Keras' loop is uneven everywhere"),
}


class Straggler(NamedTuple):
    """The slowest rank of an interval."""

    rank: int
    host: str
    times: float  # its own time as a multiple of the median of the others'
    because: Cause  # which part of its time exceeds the others' the most


class Straggling(NamedTuple):
    """The stragglers of several intervals."""

    fixed: Straggler | None
    """The rank that nearly always is the straggler, with its median `times`; None if the rank changes."""
    counts: dict[int, int]  # number of intervals in which a rank was the straggler, by rank; the most frequent first
    intervals: int  # number of intervals, with stragglers and without
    because: Cause  # the most frequent cause

    def __str__(self) -> str:
        if self.fixed is None:
            ranks = ", ".join(
                f"rank {rank} {'once' if count == 1 else f'{count} times'}" for rank, count in self.counts.items()
            )
            return f"stragglers wander ({ranks}): {CAUSES[self.because][2]}"
        rank, host, times, because = self.fixed
        return (
            f"rank {rank} (host {host}) is {times:.1f} times slower than the others in {self.counts[rank]} of "
            f"{counted(self.intervals, 'interval')}: {CAUSES[because][1]}"
        )


def find_straggler(ranks: Sequence[Mapping[str, Any]]) -> Straggler | None:
    """Returns the rank with the longest own time, if it is at least AT_LEAST_TIMES the others' median, else None.

    `ranks` is the "ranks" of an interval: rank, host, and means of own_ms and of its parts.
    """
    if len(ranks) < 2:
        return None
    slowest = max(ranks, key=lambda rank: rank["own_ms"])
    others = [rank for rank in ranks if rank is not slowest]

    def excess_ms(cause: Cause) -> float:
        part = CAUSES[cause][0]
        return slowest[part] - statistics.median(rank[part] for rank in others)

    usual_ms = statistics.median(rank["own_ms"] for rank in others)
    if usual_ms <= 0 or slowest["own_ms"] < AT_LEAST_TIMES * usual_ms:
        return None
    return Straggler(slowest["rank"], slowest["host"], slowest["own_ms"] / usual_ms, max(CAUSES, key=excess_ms))


def describe_stragglers(intervals: Sequence[Mapping[str, Any]]) -> Straggling | None:
    """Returns the stragglers of several intervals, and the fixed one if any; None if fewer than two had a straggler.

    `intervals` are the "interval" entries of metrics.jsonl.
    """
    stragglers = [Straggler(**entry["straggler"]) for entry in intervals if entry["straggler"] is not None]
    if len(stragglers) < FIXED_AT_LEAST:
        return None
    counts = dict(Counter(straggler.rank for straggler in stragglers).most_common())
    rank = next(iter(counts))
    fixed = None
    if counts[rank] >= max(FIXED_AT_LEAST, FIXED_SHARE * len(stragglers)):
        same = [straggler for straggler in stragglers if straggler.rank == rank]
        times = statistics.median(straggler.times for straggler in same)
        fixed = Straggler(rank, same[-1].host, times, _most(same))
    return Straggling(fixed, counts, len(intervals), _most(stragglers))


def _most(stragglers: Sequence[Straggler]) -> Cause:
    return Counter(straggler.because for straggler in stragglers).most_common(1)[0][0]
