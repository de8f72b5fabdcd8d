"""Assigns a trace's events to the pipeline's stages, by the name scopes of data/pipeline.py."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# The name scopes of data/pipeline.py, in its order. "batch": tf.data copies elements into batches; "tf.data": its calls
# that cannot be assigned to a stage.
SCOPES = ("visit", "read", "parse", "crop", "decode", "flip", "gather", "service", "finish", "transform")
# Scopes whose Python calls run code that releases the GIL.
NATIVE = ("read", "decode", "gather", "service")
CROP, BATCH, OTHER = "crop", "batch", "tf.data"
STAGES = ("visit", "read", "parse", "crop", "decode", "flip", "gather", "service", BATCH, "finish", "transform", OTHER)
ROOT = "Iterator::Root"
# Gaps between two ops of a stage on a thread below this are invisible in a plot.
GAP_S = 2e-4


class Span(NamedTuple):
    """A time span in which a thread was busy with one stage."""

    lane: str  # thread
    stage: str
    start_s: float  # since the first step's beginning
    seconds: float
    op: str = ""  # name of TensorFlow's op or call, if it is a single one

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


class Piece(NamedTuple):
    """An event, and its time without the events within it."""

    span: Span
    self_s: float


def pieces(lane: str, events: list[Event], runs: dict[str, str]) -> list[Piece]:
    """Returns a thread's pieces of work with their stages; leaves out waits for other threads."""
    found: list[Piece] = []
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
            span = Span(lane, stage, 1e-9 * event.start, seconds, event.name)
            found.append(Piece(span, max(0.0, seconds - within_s.total())))

    for event in events:
        while nest and nest[-1][0].end <= event.start:
            close()
        nest.append((event, Counter()))
    while nest:
        close()
    return found


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
    for piece in pieces:
        busy_s[piece.span.stage] += piece.self_s
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
            yield StageTime(name, _usual(ops[name].values()), busy_s[name], name in python)


def _usual(counts: Iterable[int]) -> int:
    """Returns the most common count; the largest of several, 0 if there are none."""
    return max(statistics.multimode(counts), default=0)


def merged(pieces: Iterable[Piece]) -> list[Span]:
    """Merges neighbouring and nested spans of one stage on a thread."""
    result: list[Span] = []
    spans = [piece.span._replace(op="") for piece in pieces if piece.span.stage != BATCH]
    for span in sorted(spans, key=lambda span: (span.lane, span.start_s)):
        last = result[-1] if result else None
        if last and (last.lane, last.stage) == (span.lane, span.stage) and span.start_s - last.end_s < GAP_S:
            result[-1] = last._replace(seconds=max(last.end_s, span.end_s) - last.start_s)
        else:
            result.append(span)
    return result
