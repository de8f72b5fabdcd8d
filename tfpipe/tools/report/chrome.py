"""Writes traces in Chrome's trace event format, which Perfetto, chrome://tracing and speedscope open.

A process is a rank. Its first lane has the training steps, its second one the batches that are ready, with an arrow to
the step that takes each; then come the pipeline's threads and the GPUs.
"""

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.data.runtime.recording import Recording
from tfpipe.errors import ConfigError
from tfpipe.tools.report import samples
from tfpipe.tools.report.runs import Ranks
from tfpipe.tools.report.samples import DecodedImage
from tfpipe.tools.report.trace import CROP, WAIT, Span, Trace
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.json_text import to_json

STEPS, READY, FIRST_THREAD = 1, 2, 10
# Half a nanosecond, in microseconds: ends and beginnings that are equal differ by less when they are floats.
HALF_NS = 5e-4
IMAGE_PARTS = ("header", "decode", "resize")
# The op that calls the decoder in C; its images and their parts lie within it.
DECODE_OP = "decode + resize"
# The end of a function's run: tf.data takes its result and frees its input.
DONE = "ExecutorDoneCallback"
# Scopes of the function that `crop` of data/pipeline.py maps.
OF_CROP = (CROP, "parse", "decode", "flip")

Event = dict[str, Any]


class Process(NamedTuple):
    """A rank in the trace: its number there, and its clock's zero."""

    pid: int
    base_ns: int  # nanoseconds from 1970 to the trace's zero

    def slice(self, tid: int, name: str, start_ns: int, end_ns: int, **args: Any) -> Event:
        """Returns a span of a lane, between nanoseconds since 1970."""
        times = {"ts": self._us(start_ns), "dur": max(0, end_ns - start_ns) / 1000}
        return {"ph": "X", "pid": self.pid, "tid": tid, "name": name, **times, **({"args": args} if args else {})}

    def flow(self, phase: str, tid: int, number: int, at_ns: int) -> Event:
        """Returns the begin ("s") or the end ("f") of an arrow, at nanoseconds since 1970."""
        where = {"pid": self.pid, "tid": tid, "ts": self._us(at_ns), **({"bp": "e"} if phase == "f" else {})}
        return {"ph": phase, "name": "batch", "cat": "batch", "id": f"{self.pid}-{number}", **where}

    def label(self, tid: int, kind: str, value: Any) -> Event:
        """Returns the name or the place of the process, or of a lane: `kind` is e.g. "thread_name"."""
        key = "sort_index" if kind.endswith("sort_index") else "name"
        return {"ph": "M", "pid": self.pid, "tid": tid, "name": kind, "args": {key: value}}

    def _us(self, ns: int) -> float:
        return (ns - self.base_ns) / 1000


def write_chrome(runs: Sequence[Ranks], path: Path) -> None:
    """Writes the traces of all ranks of the runs to `path`, compressed if its name ends with .gz.

    Raises ConfigError if `path` cannot be written.
    """
    text = to_json({"traceEvents": list(chrome_events(runs)), "displayTimeUnit": "ms"}, separators=(",", ":"))
    with writing(path), atomic_write(path) as partial:
        partial.write_bytes(gzip.compress(text.encode(), 9, mtime=0) if path.suffix == ".gz" else text.encode())


def chrome_events(runs: Sequence[Ranks]) -> Iterator[Event]:
    """Yields the events of all ranks on one clock, the time of day of their hosts, from the first step's beginning."""
    traces = [(ranks, trace) for ranks in runs for trace in ranks.traces]
    base_ns = min(trace.origin_ns for _, trace in traces)
    if not base_ns and len(traces) > 1:
        raise ConfigError("--trace cannot put these traces on one clock: one of them does not say when it began")
    for pid, (ranks, trace) in enumerate(traces):
        process, recording = Process(pid, base_ns), trace.recording
        yield process.label(0, "process_name", f"{ranks.folder.name}: rank {recording.rank} on {recording.host}")
        yield process.label(0, "process_sort_index", pid)
        yield process.label(STEPS, "thread_name", "training steps")
        yield process.label(READY, "thread_name", "batches ready")
        yield from _batches(process, recording)
        yield from _nest(_threads(process, trace))


def _nest(events: Iterable[Event]) -> list[Event]:
    """Returns the events in the order of their times, and cuts each span where the one that it lies in ends.

    The profiler's clock is read a few microseconds before or after a call begins; spans that cross would be dropped.
    """
    spans: dict[int, list[Event]] = {}
    ordered = sorted(events, key=lambda event: (event.get("ts", -1.0), -event.get("dur", 0.0)))
    for event in ordered:
        if event["ph"] != "X":
            continue
        around = spans.setdefault(event["tid"], [])
        while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"] + HALF_NS:
            around.pop()
        if around:
            event["dur"] = min(event["dur"], round(around[-1]["ts"] + around[-1]["dur"] - event["ts"], 3))
        around.append(event)
    return ordered


def _batches(process: Process, recording: Recording) -> Iterator[Event]:
    """Yields the steps with their parts, the ready batches, and an arrow from each to its step."""
    rows = samples.batch_rows(recording, samples.sample_times(recording))
    batches = recording.batches
    for batch, following, row in zip(batches, [*batches[1:], None], rows, strict=True):
        args = {name: getattr(row, name) for name in ("batch", "positions", "wait_ms", "delay_ms")}
        if row.slowest_ms is not None:
            slowest = f"{row.slowest_stage} of {row.slowest_position}, {row.slowest_ms:.1f} ms"
            args["slowest"] = f"{slowest}: {row.slowest_file or ''}"
        began, ready, taken, ended = (
            round(1e9 * seconds) for seconds in (batch.began_s, batch.ready_s, batch.taken_s, batch.ended_s)
        )
        reduced = max(taken, ended - round(1e9 * batch.reduce_s))
        yield process.slice(STEPS, f"step {batch.number}", began, ended, **args)
        yield process.slice(STEPS, WAIT, began, taken)
        yield process.slice(STEPS, "compute", taken, reduced)
        if reduced < ended:
            yield process.slice(STEPS, "reduce", reduced, ended)
        # Several batches may be ready: a batch's span ends where the next one's begins, so that none overlap.
        end = taken if following is None else min(taken, round(1e9 * following.ready_s))
        yield process.slice(READY, f"batch {batch.number} ready", ready, max(end, ready + 1000), **args)
        yield process.flow("s", READY, batch.number, ready)
        yield process.flow("f", STEPS, batch.number, min(taken + 1000, ended))


def _threads(process: Process, trace: Trace) -> Iterator[Event]:
    """Yields the lanes of the pipeline's threads, those of a stage one below the other, and of the GPUs."""
    calls = samples.outermost(trace)
    lanes = samples.lanes_of_threads(trace, calls)
    positions = samples.reads(trace, calls, lanes)
    decoded = list(samples.locate(samples.decoded_images(trace.recording.events), calls, lanes))
    inside = {lane for lane, _ in decoded}
    tids = {}
    for tid, (lane, name) in enumerate(_names(trace), FIRST_THREAD):
        tids[lane] = tid
        yield process.label(tid, "thread_name", name)
        yield process.label(tid, "thread_sort_index", tid)

    def draw(span: Span, name: str, **args: Any) -> Event:
        start_ns, end_ns = (trace.origin_ns + round(1e9 * seconds) for seconds in (span.start_s, span.end_s))
        return process.slice(tids[span.lane], name, start_ns, end_ns, **args)

    for span in trace.calls:
        args = _sample(trace, positions.get(span.run) if span.run else None)
        yield draw(span, _name(span, span.lane in inside), op=span.op, **args)
    for lane, image in decoded:
        yield from _image(process, trace, tids[lane], image)
    yield from (draw(span, span.stage) for span in trace.devices)


def _name(span: Span, with_images: bool) -> str:
    if span.op == DONE:
        return "hand over"
    if span.op.startswith("Executor"):
        return f"{_function(span.stage)} call"
    return DECODE_OP if with_images and span.op.endswith("TfpipeCrops") else span.stage


def _function(stage: str) -> str:
    """Returns the name of the mapped function that has a stage's ops."""
    return CROP if stage in OF_CROP else stage


def _names(trace: Trace) -> list[tuple[str, str]]:
    """Returns the lanes and their names, e.g. "read 3" for the third thread that mostly reads."""
    busy_s: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in trace.calls:
        busy_s[span.lane][span.stage] += span.seconds
    mostly = {lane: _function(max(stages, key=stages.__getitem__)) for lane, stages in busy_s.items()}
    counts, names = Counter[str](), list[tuple[str, str]]()
    for lane in sorted(mostly, key=lambda lane: (mostly[lane] == "read", mostly[lane], -sum(busy_s[lane].values()))):
        counts[mostly[lane]] += 1
        names.append((lane, f"{mostly[lane]} thread {counts[mostly[lane]]}"))
    return names + [(lane, lane) for lane in dict.fromkeys(span.lane for span in trace.devices)]


def _sample(trace: Trace, position: int | None) -> dict[str, Any]:
    """Returns what is known of a sample, as arguments of its events."""
    arguments = {"position": position, "file": None if position is None else trace.recording.files.get(position)}
    return {name: value for name, value in arguments.items() if value is not None}


def _image(process: Process, trace: Trace, tid: int, image: DecodedImage) -> Iterator[Event]:
    """Yields a decoded image and its parts, which take turns row by row: each is drawn as one span with its sum."""
    yield process.slice(tid, "image", image.start_ns, image.start_ns + image.ns, **_sample(trace, image.position))
    at_ns = image.start_ns
    for part, ns in zip(IMAGE_PARTS, image.parts_ns, strict=True):
        yield process.slice(tid, part, at_ns, at_ns + ns)
        at_ns += ns
