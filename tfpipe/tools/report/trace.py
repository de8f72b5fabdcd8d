"""Reads a profiler's trace through xprof: the time of each stage and thread, and the steps' wait for input."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.runtime.recording import Recording, read_recording
from tfpipe.errors import ConfigError
from tfpipe.native import EVENT
from tfpipe.tools.report.stages import ROOT, Event, Span, StageTime, merged, pieces, stage_of_runs, stage_times

# Spans of the main thread.
TRAIN, WAIT = "training step", "wait for input"
STEP_MARK = "train"
# Prefix of the profiler's planes of GPUs, and the stat with the time of its start.
DEVICE, STARTED = "/device:", "profile_start_time"
# Stands for the recording of a trace that neither train.py nor tfpipe bench has taken.
UNRECORDED = Recording(0, "", (), {}, np.zeros(0, EVENT))


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
    spans: tuple[Span, ...]
    """Neighbouring and nested calls of a stage on a thread as one."""
    calls: tuple[Span, ...] = ()
    """All ops of the stages, and the functions' runs that contain them."""
    devices: tuple[Span, ...] = ()
    """Work of GPUs; a span's `stage` is the kernel's name."""
    origin_ns: int = 0
    """Nanoseconds from 1970 to the first step's beginning; 0 if the trace does not say."""
    recording: Recording = UNRECORDED
    """Batches and samples."""

    @property
    def wait_fraction(self) -> float:
        """Share of the steps' time that they waited for batches."""
        return sum(step.wait_s for step in self.steps) / sum(step.seconds for step in self.steps)

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
        raise ConfigError(f"reading a trace needs xprof ({error}): pip install 'tfpipe[profile]'") from error
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
    main, steps = _steps(lines)
    if not steps:
        raise ConfigError(f"{path} marks no step; record it with --profile of train.py or of tfpipe bench")
    begin_s, end_s = steps[0].start_s, steps[-1].start_s + steps[-1].seconds
    inside = {name: _within(events, begin_s, end_s) for name, events in lines.items() if name.startswith("tf_data")}
    runs = stage_of_runs(inside.values())
    found = [piece for name, events in inside.items() for piece in pieces(name, events, runs)]
    kernels = (
        Span(name, event.name, 1e-9 * event.start, 1e-9 * (event.end - event.start))
        for name, events in devices.items()
        for event in _within(events, begin_s, end_s)
    )

    def shifted(spans: Iterable[Span]) -> tuple[Span, ...]:
        return tuple(span._replace(start_s=span.start_s - begin_s) for span in spans)

    return Trace(
        path,
        end_s - begin_s,
        tuple(step._replace(start_s=step.start_s - begin_s) for step in steps),
        tuple(stage_times(found, inside.values())),
        shifted([*_main_spans(main, steps), *merged(found)]),
        shifted(piece.span for piece in found),
        shifted(kernels),
        started_ns and started_ns + round(1e9 * begin_s),
        read_recording(path.parent) or UNRECORDED,
    )


def _within(events: Iterable[Event], begin_s: float, end_s: float) -> list[Event]:
    return [event for event in events if 1e-9 * event.end > begin_s and 1e-9 * event.start < end_s]


def _steps(lines: dict[str, list[Event]]) -> tuple[str, list[Step]]:
    """Returns the thread with the step marks, and the steps."""
    for name, events in lines.items():
        marks = [event for event in events if event.name == STEP_MARK and "step_num" in event.stats]
        if marks:
            waits = [event for event in events if event.name == ROOT]
            steps = []
            for mark in marks:
                wait = sum(wait.end - wait.start for wait in waits if mark.start <= wait.start < mark.end)
                times = (1e-9 * ns for ns in (mark.start, mark.end - mark.start, wait))
                steps.append(Step(int(mark.stats["step_num"]), *times))
            return name, steps
    return "", []


def _main_spans(lane: str, steps: Iterable[Step]) -> Iterator[Span]:
    # A step first takes its batch, then trains it.
    for step in steps:
        yield Span(lane, WAIT, step.start_s, step.wait_s)
        yield Span(lane, TRAIN, step.start_s + step.wait_s, step.seconds - step.wait_s)
