"""Computes from a recording how long each sample was read and decoded, on which thread, and for which batch."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.runtime.recording import Recording
from tfpipe.native import EventKind
from tfpipe.tools.report.runs import Ranks
from tfpipe.tools.report.trace import Span, Trace
from tfpipe.util.atomic_write import atomic_write, writing

PARQUET = ".parquet"
# Share of a thread's events that have to be within the calls of a lane for the lane to be the thread's.
ENOUGH = 0.6


class SampleTime(NamedTuple):
    """A time that a sample spent in a stage."""

    position: int  # in the stream
    stage: str  # "read", or "decode" with the resize
    seconds: float


class DecodedImage(NamedTuple):
    """An image that the decoder in C has decoded; times in nanoseconds, the first since 1970."""

    position: int | None  # in the stream; None if the call was not marked
    thread: int
    start_ns: int
    parts_ns: tuple[int, int, int]
    """Header; decode; resize, which includes the conversion of colours and mirroring."""

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
        if kind == EventKind.READ:
            began_ns[position] = when_ns
        elif kind == EventKind.READ_END and position in began_ns:
            seconds = 1e-9 * (when_ns - began_ns.pop(position))
            result.setdefault(position, []).append(SampleTime(position, "read", seconds))
    for image in decoded_images(recording.events):
        if image.position is not None:
            result.setdefault(image.position, []).append(SampleTime(image.position, "decode", 1e-9 * image.ns))
    return result


def decoded_images(events: np.ndarray) -> Iterator[DecodedImage]:
    """Yields the IMAGE events; a refused image, which another decoder decodes, is left out."""
    # An address belongs to another call later: the samples handed over last with it count, all at the same time.
    handed: dict[int, tuple[int, list[int]]] = {}
    for when_ns, sample, call, thread, *parts_ns, kind, refused in events.tolist():
        if kind == EventKind.DECODE:
            if call not in handed or handed[call][0] != when_ns:
                handed[call] = (when_ns, [])
            handed[call][1].append(sample)
        elif kind == EventKind.IMAGE and not refused:
            _, positions = handed.get(call, (0, []))
            yield DecodedImage(positions[sample] if sample < len(positions) else None, thread, when_ns, tuple(parts_ns))


class NestedCalls(NamedTuple):
    """Outermost calls of a lane, in their order; times in nanoseconds since 1970."""

    spans: Sequence[Span]
    starts_ns: np.ndarray
    ends_ns: np.ndarray

    def containing(self, times_ns: np.ndarray) -> np.ndarray:
        """Returns the number of the span that contains each time (int64 [n]), -1 for none."""
        numbers = np.searchsorted(self.starts_ns, times_ns, "right") - 1
        inside = (numbers >= 0) & (times_ns <= self.ends_ns[numbers])
        return np.where(inside, numbers, -1)


def outermost(trace: Trace) -> dict[str, NestedCalls]:
    """Returns the outermost calls of each lane of the pipeline."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(trace.calls, key=lambda span: (span.start_s, -span.seconds)):
        outer = spans[span.lane]
        if not outer or span.start_s >= outer[-1].end_s:
            outer.append(span)
    calls = {}
    for lane, outer in spans.items():
        times_s = np.array([(span.start_s, span.end_s) for span in outer])
        calls[lane] = NestedCalls(outer, *(trace.origin_ns + np.round(1e9 * times_s.T).astype(np.int64)))
    return calls


def lanes_of_threads(trace: Trace, calls: dict[str, NestedCalls]) -> dict[int, str]:
    """Returns the lane of each thread of the recorded events.

    The profiler and the recording name threads differently: a thread's lane is the one whose calls contain most of
    the thread's events, beyond those that lie within them by chance: a lane may be busy all the time.
    """
    if not trace.origin_ns:
        return {}
    events = trace.recording.events
    begin_ns, end_ns = trace.origin_ns, trace.origin_ns + round(1e9 * trace.seconds)
    events = events[(events["when_ns"] >= begin_ns) & (events["when_ns"] <= end_ns)]
    busy = {lane: sum(span.seconds for span in nested.spans) / trace.seconds for lane, nested in calls.items()}
    result = {}
    for thread in np.unique(events["thread"]).tolist():
        times_ns = events["when_ns"][events["thread"] == thread]
        shares = {lane: float((nested.containing(times_ns) >= 0).mean()) for lane, nested in calls.items()}
        best = max(shares, key=lambda lane: shares[lane] - busy[lane], default="")
        if shares.get(best, 0.0) >= ENOUGH:
            result[thread] = best
    return result


def reads(trace: Trace, calls: dict[str, NestedCalls], lanes: dict[int, str]) -> dict[str, int]:
    """Returns the stream positions of the samples that were read, by the id of the function's run.

    Either mark of a read tells, its first or its last: TensorFlow runs some marks outside the calls that the profiler
    sees. A sample whose two marks are both outside is not known.
    """
    events, result = trace.recording.events, {}
    for event in events[np.isin(events["kind"], (EventKind.READ, EventKind.READ_END))]:
        nested = calls.get(lanes.get(int(event["thread"]), ""))
        number = -1 if nested is None else int(nested.containing(event["when_ns"][None])[0])
        if nested is not None and number >= 0 and nested.spans[number].stage == "read":
            result[nested.spans[number].run] = int(event["sample"])
    return result


def locate(
    decoded: Iterable[DecodedImage], calls: dict[str, NestedCalls], lanes: dict[int, str]
) -> Iterator[tuple[str, DecodedImage]]:
    """Yields the work of the decoder that lies within the calls of a lane, with the lane."""
    for work in decoded:
        lane = lanes.get(work.thread, "")
        if lane and calls[lane].containing(np.array([work.start_ns]))[0] >= 0:
            yield lane, work


class BatchRow(NamedTuple):
    """A traced batch; the last four are None if no time of its samples was recorded."""

    batch: int  # number of its step, from 0 at the start of the process
    rank: int
    host: str
    ready_s: float  # when the pipeline had made it, in seconds since 1970
    taken_s: float  # when the step took it, in seconds since 1970
    wait_ms: float  # time that the step waited for it
    delay_ms: float  # time from ready to taken
    compute_ms: float  # the step without the wait and the allreduce
    reduce_ms: float  # the allreduce, with the wait for slower ranks
    crops: int
    positions: str  # stream positions of its samples, separated by spaces
    slowest_ms: float | None  # the longest time that one of its samples spent in a stage
    slowest_stage: str | None  # "read" or "decode"
    slowest_position: int | None
    slowest_file: str | None


def write_batches(runs: Sequence[Ranks], path: Path) -> None:
    """Writes the batches of all ranks to `path`, as Parquet if its name ends with PARQUET, otherwise as CSV.

    The rows are in the order of the steps. Raises ConfigError if `path` cannot be written.
    """
    recordings = (trace.recording for ranks in runs for trace in ranks.traces)
    unordered = (row for recording in recordings for row in batch_rows(recording, sample_times(recording)))
    rows = sorted(unordered, key=lambda row: (row.batch, row.rank))
    with writing(path), atomic_write(path) as partial:
        if path.suffix == PARQUET:
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row._asdict() for row in rows]), partial)
            return
        with partial.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(BatchRow._fields)
            table.writerows(rows)


def batch_rows(recording: Recording, times: dict[int, list[SampleTime]]) -> Iterator[BatchRow]:
    """Yields the rows of a rank's batches; `times` are those of `sample_times`."""

    def ms(seconds: float) -> float:
        return round(1000 * float(seconds), 3)

    for batch in recording.batches:
        positions = list(dict.fromkeys(batch.positions[:, 0].tolist()))
        sample_times = (time for position in positions for time in times.get(position, []))
        slowest = max(sample_times, key=lambda time: time.seconds, default=None)
        yield BatchRow(
            batch.number,
            recording.rank,
            recording.host,
            ready_s=round(batch.ready_s, 6),
            taken_s=round(batch.taken_s, 6),
            wait_ms=ms(batch.wait_s),
            delay_ms=ms(batch.delay_s),
            compute_ms=ms(batch.ended_s - batch.taken_s - float(batch.reduce_s)),
            reduce_ms=ms(batch.reduce_s),
            crops=len(batch.positions),
            positions=" ".join(map(str, positions)),
            slowest_ms=None if slowest is None else ms(slowest.seconds),
            slowest_stage=None if slowest is None else slowest.stage,
            slowest_position=None if slowest is None else slowest.position,
            slowest_file=None if slowest is None else recording.files.get(slowest.position),
        )
