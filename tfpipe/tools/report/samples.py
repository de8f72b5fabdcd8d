"""Computes from a recording how long each sample was read and decoded, and on which thread of the trace."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfpipe.data.runtime.recording import Recording
from tfpipe.native import Kind
from tfpipe.tools.report.stages import Span
from tfpipe.tools.report.trace import Trace

# Share of a thread's events that have to be within the calls of a lane for the lane to be the thread's.
ENOUGH = 0.6


class SampleTime(NamedTuple):
    """A time that a sample spent in a stage."""

    position: int  # in the stream
    stage: str  # "read", or "decode" with the resize
    seconds: float


class Decoded(NamedTuple):
    """Work of the decoder in C, an image or a whole call; times in nanoseconds, the first since 1970."""

    position: int | None  # in the stream; None for a call, or if the call was not marked
    thread: int
    start_ns: int
    parts_ns: tuple[int, int, int]
    """Parts of an image: header; decode; resize, which includes the conversion of colours and mirroring. Parts of a
    call: allocation of the crops; the images; freeing the JPEGs."""

    @property
    def ns(self) -> int:
        """Sum of the parts."""
        return sum(self.parts_ns)


def sample_times(recording: Recording) -> dict[int, list[SampleTime]]:
    """Returns the known times of the samples, by position."""
    result: dict[int, list[SampleTime]] = {}
    began_ns: dict[int, int] = {}
    for event in recording.events.tolist():
        when_ns, position, kind = event[0], event[1], event[-2]
        if kind == Kind.READ:
            began_ns[position] = when_ns
        elif kind == Kind.READ_END and position in began_ns:
            seconds = 1e-9 * (when_ns - began_ns.pop(position))
            result.setdefault(position, []).append(SampleTime(position, "read", seconds))
    for image in decoded_images(recording.events):
        if image.position is not None:
            result.setdefault(image.position, []).append(SampleTime(image.position, "decode", 1e-9 * image.ns))
    return result


def decoded_images(events: np.ndarray) -> Iterator[Decoded]:
    """Yields the IMAGE events; a refused image, which another decoder decodes, is left out."""
    # An address belongs to another call later: the samples handed over last with it count, all at the same time.
    handed: dict[int, tuple[int, list[int]]] = {}
    for when_ns, sample, call, thread, *parts_ns, kind, refused in events.tolist():
        if kind == Kind.DECODE:
            if call not in handed or handed[call][0] != when_ns:
                handed[call] = (when_ns, [])
            handed[call][1].append(sample)
        elif kind == Kind.IMAGE and not refused:
            _, positions = handed.get(call, (0, []))
            yield Decoded(positions[sample] if sample < len(positions) else None, thread, when_ns, tuple(parts_ns))


def decoder_calls(events: np.ndarray) -> Iterator[Decoded]:
    """Yields the calls of the decoder's op."""
    for when_ns, _, _, thread, *parts_ns, _, _ in events[events["kind"] == Kind.CALL].tolist():
        yield Decoded(None, thread, when_ns, tuple(parts_ns))


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
    if not trace.origin_ns:
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
    events, result = trace.recording.events, {}
    for event in events[np.isin(events["kind"], (Kind.READ, Kind.READ_END))]:
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
