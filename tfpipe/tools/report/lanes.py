"""Finds the thread of the profiler's trace on which a sample was read or decoded, and the events that are on it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfpipe.native import EventKind
from tfpipe.tools.report.samples import Decoded
from tfpipe.tools.report.stages import Span
from tfpipe.tools.report.trace import Trace

# Share of a thread's events that have to be within the calls of a lane for the lane to be the thread's.
ENOUGH = 0.6


class Nested(NamedTuple):
    """Outermost calls of a lane, in their order; times in nanoseconds since 1970."""

    spans: Sequence[Span]
    starts_ns: np.ndarray
    ends_ns: np.ndarray

    def containing(self, times_ns: np.ndarray) -> np.ndarray:
        """Returns the number of the span that contains each time (int64 [n]), -1 for none."""
        numbers = np.searchsorted(self.starts_ns, times_ns, "right") - 1
        inside = (numbers >= 0) & (times_ns <= self.ends_ns[numbers])
        return np.where(inside, numbers, -1)


def outermost(trace: Trace) -> dict[str, Nested]:
    """Returns the outermost calls of each lane of the pipeline."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(trace.calls, key=lambda span: (span.start_s, -span.seconds)):
        own = spans[span.lane]
        if not own or span.start_s >= own[-1].end_s:
            own.append(span)

    def ns(seconds: list[float]) -> np.ndarray:
        return trace.origin_ns + np.round(1e9 * np.array(seconds)).astype(np.int64)

    return {
        lane: Nested(own, ns([span.start_s for span in own]), ns([span.end_s for span in own]))
        for lane, own in spans.items()
    }


def lanes_of_threads(trace: Trace, calls: dict[str, Nested]) -> dict[int, str]:
    """Returns the lane of each thread of the recorded events.

    The profiler and the recording name threads differently: a thread's lane is the one whose calls contain most of
    the thread's events, beyond those that lie within them by chance: a lane may be busy all the time.
    """
    if trace.recording is None or not trace.origin_ns:
        return {}
    events = trace.recording.events
    begin_ns, end_ns = trace.origin_ns, trace.origin_ns + round(1e9 * trace.seconds)
    events = events[(events["when_ns"] >= begin_ns) & (events["when_ns"] <= end_ns)]
    busy = {lane: sum(span.seconds for span in own.spans) / trace.seconds for lane, own in calls.items()}
    result = {}
    for thread in np.unique(events["thread"]).tolist():
        times_ns = events["when_ns"][events["thread"] == thread]
        shares = {lane: float((own.containing(times_ns) >= 0).mean()) for lane, own in calls.items()}
        best = max(shares, key=lambda lane: shares[lane] - busy[lane], default="")
        if shares.get(best, 0.0) >= ENOUGH:
            result[thread] = best
    return result


def reads(trace: Trace, calls: dict[str, Nested], lanes: dict[int, str]) -> dict[str, int]:
    """Returns the stream positions of the samples that were read, by the id of the function's run.

    Either mark of a read tells, its first or its last: TensorFlow runs some marks outside the calls that the profiler
    sees. A sample whose two marks are both outside is not known.
    """
    if trace.recording is None:
        return {}
    events, result = trace.recording.events, {}
    for event in events[np.isin(events["kind"], (EventKind.READ, EventKind.READ_END))]:
        own = calls.get(lanes.get(int(event["thread"]), ""))
        number = -1 if own is None else int(own.containing(event["when_ns"][None])[0])
        if own is not None and number >= 0 and own.spans[number].stage == "read":
            result[own.spans[number].run] = int(event["sample"])
    return result


def located(
    decoded: Iterable[Decoded], calls: dict[str, Nested], lanes: dict[int, str]
) -> Iterator[tuple[str, Decoded]]:
    """Yields the work of the decoder that lies within the calls of a lane, with the lane."""
    for work in decoded:
        lane = lanes.get(work.thread, "")
        if lane and calls[lane].containing(np.array([work.start_ns]))[0] >= 0:
            yield lane, work
