"""A profiler's trace, read through xprof: what each stage took, on which thread, and what the steps waited for."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tfpipe.errors import ConfigError

# The name scopes of data/pipeline.py, in its order. What tf.data itself does to bring elements together is "batch",
# and what it spends on calls that cannot be told apart "tf.data".
SCOPES = ("visit", "read", "parse", "crop", "decode", "flip", "gather", "service", "finish", "transform")
# Of ours, which hand over to code that releases the GIL.
NATIVE = ("read", "decode", "gather", "service")
CROP, BATCH, OTHER = "crop", "batch", "tf.data"
STAGES = ("visit", "read", "parse", "crop", "decode", "flip", "gather", "service", BATCH, "finish", "transform", OTHER)
# Main thread.
TRAIN, WAIT = "training step", "wait for input"
STEP_MARK, ROOT = "train", "Iterator::Root"
# Between two ops of a stage on a thread, in a picture: no gap that could be seen.
GAP_S = 2e-4


class Step(NamedTuple):
    """A marked step."""

    number: int
    start_s: float
    seconds: float
    wait_s: float
    """Of which it waited for its batch."""


class Span(NamedTuple):
    """A stretch in which a thread was busy with one stage."""

    lane: str  # thread
    stage: str
    start_s: float  # after the first step's beginning
    seconds: float


class StageTime(NamedTuple):
    """What a stage took, over all threads, between the first step's beginning and the last one's end."""

    name: str
    calls: int
    busy_s: float
    by_python: bool
    """Whether its ops call Python, which runs one thread at a time; decoding's lets go of it and does not count."""


@dataclass(frozen=True)
class Trace:
    """A stretch of a run."""

    path: Path
    seconds: float
    """From the first step's beginning to the last one's end."""
    steps: tuple[Step, ...]
    stages: tuple[StageTime, ...]
    """Those that did something, in the pipeline's order."""
    spans: tuple[Span, ...]

    @property
    def wait_fraction(self) -> float:
        """Share of the steps' time spent waiting for batches."""
        return sum(step.wait_s for step in self.steps) / sum(step.seconds for step in self.steps)

    @property
    def images(self) -> int:
        """Read in that time; 0 if nothing was read, or the batches were not made here."""
        return next((stage.calls for stage in self.stages if stage.name == "read"), 0)


class _Event(NamedTuple):
    """Of the trace, in nanoseconds; with what is needed to find whose it is."""

    name: str
    start: float
    end: float
    stats: dict[str, str]


def find_trace(run_dir: Path) -> Path | None:
    """The newest trace of a run, or of a rank's folder in it; None if there is none."""
    return max(run_dir.glob("plugins/profile/*/*.xplane.pb"), default=None)


def read_trace(path: Path) -> Trace:
    """Reads an .xplane.pb.

    Raises:
        ConfigError: xprof is not installed, or the file holds no marked step.
    """
    try:
        from xprof.profile_data import ProfileData
    except ImportError as error:
        raise ConfigError(f"reading a trace needs xprof ({error}): pip install 'tfpipe[profile]'") from error
    lines: dict[str, list[_Event]] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        for number, line in enumerate(plane.lines):
            events = [
                _Event(each.name, each.start_ns, each.start_ns + each.duration_ns, dict(each.stats))
                for each in line.events
            ]
            # Threads may share a name. The longer event first where two begin together: the other one is within it.
            lines[f"{line.name} {number}"] = sorted(events, key=lambda event: (event.start, -event.end))
    main, steps = _steps(lines)
    if not steps:
        raise ConfigError(f"{path} marks no step; record it with --profile of train.py or of tfpipe bench")
    begin, end = steps[0].start_s, steps[-1].start_s + steps[-1].seconds
    inside = {
        name: [event for event in events if 1e-9 * event.end > begin and 1e-9 * event.start < end]
        for name, events in lines.items()
        if name.startswith("tf_data")
    }
    runs = _stage_of_runs(inside.values())
    pieces = [piece for name, events in inside.items() for piece in _pieces(name, events, runs)]
    spans = [*_main_spans(main, steps), *_merged(pieces)]
    return Trace(
        path,
        end - begin,
        tuple(step._replace(start_s=step.start_s - begin) for step in steps),
        tuple(_stage_times(pieces, inside.values())),
        tuple(span._replace(start_s=span.start_s - begin) for span in spans),
    )


def _steps(lines: dict[str, list[_Event]]) -> tuple[str, list[Step]]:
    """The thread with the step marks, and the steps."""
    for name, events in lines.items():
        marks = [event for event in events if event.name == STEP_MARK and "step_num" in event.stats]
        if marks:
            waits = [event for event in events if event.name == ROOT]
            return name, [
                Step(
                    int(mark.stats["step_num"]),
                    1e-9 * mark.start,
                    1e-9 * (mark.end - mark.start),
                    1e-9 * sum(each.end - each.start for each in waits if mark.start <= each.start < mark.end),
                )
                for mark in marks
            ]
    return "", []


def _main_spans(lane: str, steps: Iterable[Step]) -> Iterator[Span]:
    # The batch is taken first, then trained.
    for step in steps:
        yield Span(lane, WAIT, step.start_s, step.wait_s)
        yield Span(lane, TRAIN, step.start_s + step.wait_s, step.seconds - step.wait_s)


class _Piece(NamedTuple):
    """An event less those within it."""

    span: Span
    self_s: float


def _pieces(lane: str, events: list[_Event], runs: dict[str, str]) -> list[_Piece]:
    """What a thread did, by stage; waiting for other threads left out."""
    found: list[_Piece] = []
    nest: list[tuple[_Event, Counter[str]]] = []  # and the seconds of what lies within it, by stage

    def close() -> None:
        event, within_s = nest.pop()
        seconds = 1e-9 * (event.end - event.start)
        stage = _stage(event, within_s, runs)
        if nest and not stage and _scope(nest[-1][0].name):
            # A detail of the op that it lies within, such as its library's call.
            nest[-1][1].update(within_s)
        elif nest:
            nest[-1][1][stage] += seconds  # type: ignore[assignment]
        if stage:
            span = Span(lane, stage, 1e-9 * event.start, seconds)
            found.append(_Piece(span, max(0.0, seconds - within_s.total())))

    for event in events:
        while nest and nest[-1][0].end <= event.start:
            close()
        nest.append((event, Counter()))
    while nest:
        close()
    return found


def _stage(event: _Event, within_s: Counter[str], runs: dict[str, str]) -> str:
    """Whose work an event is; "" if it is nobody's, such as a wait for another thread."""
    scope = _scope(event.name)
    if scope:
        return scope
    if event.name.startswith(ROOT):
        # Copying crops into batches is done where the next batch is asked for, which else only waits.
        return BATCH if event.name.endswith("::RebatchV2") else ""
    if event.name.startswith("Executor"):
        stages = [stage for stage, _ in within_s.most_common() if stage]
        return stages[0] if stages else runs.get(event.stats.get("id", ""), OTHER)
    return ""


def _scope(name: str) -> str | None:
    """The innermost: stages call each other."""
    return next((part for part in reversed(name.split("/")[:-1]) if part in SCOPES), None)


def _stage_of_runs(lines: Iterable[list[_Event]]) -> dict[str, str]:
    """By the id of a function's run, the stage that its ops are of: of several, as where crops are made, CROP."""
    found: dict[str, set[str]] = defaultdict(set)
    for events in lines:
        current = None
        for event in events:
            if event.name == "ExecutorState::Process":
                current = event
            scope = _scope(event.name)
            if scope and current is not None and event.end <= current.end:
                found[current.stats.get("id", "")].add(scope)
    return {run: scopes.pop() if len(scopes) == 1 else CROP for run, scopes in found.items()}


def _stage_times(pieces: list[_Piece], lines: Iterable[list[_Event]]) -> Iterator[StageTime]:
    busy_s: dict[str, float] = defaultdict(float)
    for piece in pieces:
        busy_s[piece.span.stage] += piece.self_s
    # How often each op ran: most ops run once a call, those in a loop or a branch do not.
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
            yield StageTime(name, _usual(ops[name].values()), busy_s[name], name in python)


def _usual(counts: Iterable[int]) -> int:
    """The commonest; the largest of several."""
    return max(statistics.multimode(counts), default=0)


def _merged(pieces: Iterable[_Piece]) -> list[Span]:
    """Neighbours of one stage on a thread as one, and what lies within another of its stage left out."""
    result: list[Span] = []
    ordered = sorted((piece.span for piece in pieces if piece.span.stage != BATCH), key=lambda s: (s.lane, s.start_s))
    for span in ordered:
        last = result[-1] if result else None
        if last and (last.lane, last.stage) == (span.lane, span.stage):
            gap_s = span.start_s - (last.start_s + last.seconds)
            if gap_s < GAP_S:
                end_s = max(last.start_s + last.seconds, span.start_s + span.seconds)
                result[-1] = last._replace(seconds=end_s - last.start_s)
                continue
        result.append(span)
    return result
