"""Reads a profiler's trace through xprof: the time of each stage and thread, and the steps' wait for input.

The name scopes of data/pipeline.py tell which stage of the pipeline an event belongs to.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tfpipe.data.runtime.recording import Recording, empty_recording, read_recording
from tfpipe.errors import ConfigError

# The name scopes of data/pipeline.py, in its order. "batch": tf.data copies elements into batches; "tf.data": its calls
# that cannot be assigned to a stage.
SCOPES = ("visit", "read", "parse", "crop", "decode", "flip", "gather", "service", "finish", "transform")
# Scopes whose Python calls run code that releases the GIL.
NATIVE = ("read", "decode", "gather", "service")
CROP, BATCH, OTHER = "crop", "batch", "tf.data"
STAGES = ("visit", "read", "parse", "crop", "decode", "flip", "gather", "service", BATCH, "finish", "transform", OTHER)
ROOT = "Iterator::Root"
# Part of a step.
WAIT = "wait for input"
STEP_MARK = "train"
XPROF = "pip install 'tfpipe[profile]'"
# Prefix of the profiler's planes of GPUs, and the stat with the time of its start.
DEVICE, STARTED = "/device:", "profile_start_time"


class Span(NamedTuple):
    """A time span in which a thread was busy with one stage."""

    lane: str  # thread
    stage: str
    start_s: float  # since the first step's beginning
    seconds: float
    op: str = ""  # name of TensorFlow's op or call, if it is a single one
    run: str = ""  # id of the function's run, which may take several calls of the executor

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds


class StageTime(NamedTuple):
    """Time of a stage over all threads, between the first step's beginning and the last step's end."""

    name: str
    calls: int
    busy_s: float
    by_python: bool
    """True if its ops call Python, which runs one thread at a time; NATIVE stages release the GIL and do not count."""


class Event(NamedTuple):
    """An event of the trace, times in nanoseconds; `stats` serves to find its stage."""

    name: str
    start: float
    end: float
    stats: dict[str, str]


Piece = tuple[Span, float]
"""An event's span, and its seconds without the events within it."""


class Step(NamedTuple):
    """A step marked in the trace."""

    number: int
    start_s: float
    seconds: float
    wait_s: float  # part of `seconds` spent waiting for its batch


@dataclass(frozen=True)
class Trace:
    """The traced part of a run."""

    path: Path
    seconds: float  # duration from the first step's beginning to the last step's end
    steps: tuple[Step, ...]
    stages: tuple[StageTime, ...]  # stages with busy time, in the pipeline's order
    calls: tuple[Span, ...] = ()  # all ops of the stages, and the functions' runs that contain them
    devices: tuple[Span, ...] = ()  # work of GPUs; a span's `stage` is the kernel's name
    origin_ns: int = 0  # nanoseconds from 1970 to the first step's beginning; 0 if the trace does not say
    recording: Recording = field(default_factory=empty_recording)  # batches and samples

    @property
    def wait_fraction(self) -> float:
        """Share of the steps' time that they waited for batches."""
        return sum(step.wait_s for step in self.steps) / sum(step.seconds for step in self.steps)

    def us_per_image(self, stage: StageTime) -> float | None:
        """Returns a stage's microseconds per image, over all threads; None if no image was read."""
        return 1e6 * stage.busy_s / self.images if self.images else None

    @property
    def images(self) -> int:
        """Number of images read; 0 if none was read, or workers made the batches."""
        return next((stage.calls for stage in self.stages if stage.name == "read"), 0)


def find_trace(run_dir: Path) -> Path | None:
    """Returns the newest trace of a run's directory, or of a rank's folder in it; None if there is none."""
    return max(run_dir.glob("plugins/profile/*/*.xplane.pb"), default=None)


def read_trace(path: Path) -> Trace:
    """Reads an .xplane.pb. Raises ConfigError if xprof is not installed, or the file holds no marked step."""
    try:
        from xprof.profile_data import ProfileData
    except ImportError as error:
        raise ConfigError(f"reading a trace needs xprof ({error}): {XPROF}") from error
    lines: dict[str, list[Event]] = {}
    devices: dict[str, list[Event]] = {}
    started_ns = 0
    for plane in ProfileData.from_file(str(path)).planes:
        started_ns = int(dict(plane.stats).get(STARTED, started_ns))
        for number, line in enumerate(plane.lines):
            events = [Event(e.name, e.start_ns, e.start_ns + e.duration_ns, dict(e.stats)) for e in line.events]
            on_device = plane.name.startswith(DEVICE)
            name = f"{plane.name.removeprefix(DEVICE)} {line.name}" if on_device else f"{line.name} {number}"
            # Threads may share a name. Of events that begin together, the longest comes first: it contains the others.
            (devices if on_device else lines)[name] = sorted(events, key=lambda event: (event.start, -event.end))
    recording = read_recording(path.parent) or empty_recording()
    waits = {batch.number: batch.wait_s for batch in recording.batches}
    # The profiler sees a wait only where the thread that steps takes the batches itself, as in other programs.
    steps = [step._replace(wait_s=waits.get(step.number, step.wait_s)) for step in _steps(lines)]
    if not steps:
        raise ConfigError(f"{path} marks no step; record it with --profile of train.py or of tfpipe bench")
    begin_s, end_s = steps[0].start_s, steps[-1].start_s + steps[-1].seconds
    inside = {name: _during(events, begin_s, end_s) for name, events in lines.items() if name.startswith("tf_data")}
    runs = stage_of_runs(inside.values())
    work = [piece for name, events in inside.items() for piece in pieces(name, events, runs)]
    kernels = (
        Span(name, event.name, 1e-9 * event.start, 1e-9 * (event.end - event.start))
        for name, events in devices.items()
        for event in _during(events, begin_s, end_s)
    )

    def shift(spans: Iterable[Span]) -> tuple[Span, ...]:
        return tuple(span._replace(start_s=span.start_s - begin_s) for span in spans)

    return Trace(
        path,
        end_s - begin_s,
        tuple(step._replace(start_s=step.start_s - begin_s) for step in steps),
        tuple(stage_times(work, inside.values())),
        shift(span for span, _ in work),
        shift(kernels),
        started_ns and started_ns + round(1e9 * begin_s),
        recording,
    )


def _during(events: Iterable[Event], begin_s: float, end_s: float) -> list[Event]:
    return [event for event in events if 1e-9 * event.end > begin_s and 1e-9 * event.start < end_s]


def _steps(lines: dict[str, list[Event]]) -> list[Step]:
    """Returns the steps that a thread has marked; [] if none has."""
    for events in lines.values():
        marks = [event for event in events if event.name == STEP_MARK and "step_num" in event.stats]
        if marks:
            waits = [event for event in events if event.name == ROOT]
            steps = []
            for mark in marks:
                wait = sum(wait.end - wait.start for wait in waits if mark.start <= wait.start < mark.end)
                times = (1e-9 * ns for ns in (mark.start, mark.end - mark.start, wait))
                steps.append(Step(int(mark.stats["step_num"]), *times))
            return steps
    return []


def pieces(lane: str, events: list[Event], runs: dict[str, str]) -> list[Piece]:
    """Returns a thread's pieces of work with their stages; leaves out waits for other threads."""
    result: list[Piece] = []
    nest: list[tuple[Event, Counter[str]]] = []  # with the seconds of the events within, by stage

    def close() -> None:
        event, within_s = nest.pop()
        seconds = 1e-9 * (event.end - event.start)
        stage = _stage(event, within_s, runs)
        if nest and not stage and _scope(nest[-1][0].name):
            # A detail of the enclosing op, such as a library call.
            nest[-1][1].update(within_s)
        elif nest:
            nest[-1][1][stage] += seconds  # type: ignore[assignment]
        if stage:
            span = Span(lane, stage, 1e-9 * event.start, seconds, event.name, event.stats.get("id", ""))
            result.append((span, max(0.0, seconds - within_s.total())))

    for event in events:
        while nest and nest[-1][0].end <= event.start:
            close()
        nest.append((event, Counter()))
    while nest:
        close()
    return result


def _stage(event: Event, within_s: Counter[str], runs: dict[str, str]) -> str:
    """Returns the stage of an event; "" if it is no work, such as a wait for another thread."""
    scope = _scope(event.name)
    if scope:
        return scope
    if event.name.startswith(ROOT):
        # The thread that requests a batch only waits, except that it copies crops into the batch.
        return BATCH if event.name.endswith("::RebatchV2") else ""
    if event.name.startswith("Executor"):
        stages = [stage for stage, _ in within_s.most_common() if stage]
        return stages[0] if stages else runs.get(event.stats.get("id", ""), OTHER)
    return ""


def _scope(name: str) -> str | None:
    """Returns the innermost scope in `name`, since stages call each other."""
    return next((part for part in reversed(name.split("/")[:-1]) if part in SCOPES), None)


def stage_of_runs(lines: Iterable[list[Event]]) -> dict[str, str]:
    """Returns, by the id of a function's run, the stage of its ops; CROP if they are of several stages."""
    scopes_of: dict[str, set[str]] = defaultdict(set)
    for events in lines:
        current = None
        for event in events:
            if event.name == "ExecutorState::Process":
                current = event
            scope = _scope(event.name)
            if scope and current is not None and event.end <= current.end:
                scopes_of[current.stats.get("id", "")].add(scope)
    return {run: scopes.pop() if len(scopes) == 1 else CROP for run, scopes in scopes_of.items()}


def stage_times(pieces: list[Piece], lines: Iterable[list[Event]]) -> Iterator[StageTime]:
    busy_s: dict[str, float] = defaultdict(float)
    for span, self_s in pieces:
        busy_s[span.stage] += self_s
    # Runs of each op: most ops run once a call, but not those in a loop or a branch.
    ops: dict[str, Counter[str]] = defaultdict(Counter)
    python = set()
    for events in lines:
        for event in events:
            scope = _scope(event.name)
            if scope:
                ops[scope][event.name] += 1
                if "PyFunc" in event.name and scope not in NATIVE:
                    python.add(scope)
            elif event.name.endswith("::RebatchV2"):
                ops[BATCH][event.name] += 1
    for name in STAGES:
        if busy_s[name] > 0:
            usual = max(statistics.multimode(ops[name].values()), default=0)
            yield StageTime(name, usual, busy_s[name], name in python)
