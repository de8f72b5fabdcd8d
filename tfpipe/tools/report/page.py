"""A run as one HTML page: the verdict, what was slow, its figures, its config."""

import base64
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.config import load_config
from tfpipe.errors import TfpipeError
from tfpipe.tools.page.figures import (
    GRAY,
    RANKS,
    RED,
    AxisMark,
    Figure,
    Line,
    chosen_ranks,
    line_figure,
    number,
)
from tfpipe.tools.page.page import Finding, Page, TableSection, write
from tfpipe.tools.report.diagnosis import Use, diagnose_run, uses
from tfpipe.tools.report.runs import CONFIG, Run, trace_paths
from tfpipe.tools.report.slowest import WorstBatch, timeline, worst_batches
from tfpipe.tools.report.text import us_per_image
from tfpipe.tools.report.trace import Trace, read_trace
from tfpipe.training.monitor.events import EVENTS
from tfpipe.training.monitor.metrics import METRICS, is_epoch, lines, parse, read
from tfpipe.training.monitor.stragglers import describe_stragglers

PICTURES = 16
# Stalls, and resumes, that figures mark.
MARKS = 20


class RunParts(NamedTuple):
    """The parts that only the page of a run has."""

    batches: Sequence[WorstBatch]
    timeline: Figure | None
    traced: Sequence[int]  # ranks
    stages: Sequence[Mapping[str, Any]]
    uses: Sequence[Use]
    picture: str  # data URL; "" if there is none
    picture_text: str  # what it shows, or why there is none


def write_page(run: Run, path: Path) -> None:
    """Writes the page of a run to `path`.

    Raises ConfigError if Jinja2 or matplotlib is not installed, or `path` cannot be written.
    """
    write(page_of(run), path)


def page_of(run: Run) -> Page:
    """Returns everything that the page of a run shows."""
    record = [] if not (run.folder / METRICS).exists() else list(read(run.folder / METRICS))
    intervals = [(line["epoch"], line["step"], line["interval"]) for line in record if "interval" in line]
    # A stall is reported again and again while it lasts: the last report has its length.
    stalls = list({(line["epoch"], line["step"]): line for line in record if "stall" in line}.values())
    epochs = [line for line in record if is_epoch(line)]
    paths = trace_paths(run.folder)
    traces = [run.trace if run.trace and run.trace.path == path else read_trace(path) for path in paths]
    batches = worst_batches([trace.recording for trace in traces])
    events = read_events(run.folder / EVENTS)
    config = (run.folder if (run.folder / CONFIG).exists() else run.folder.parent) / CONFIG
    verdict = diagnose_run(run)
    parts = RunParts(
        batches,
        timeline(batches),
        [trace.recording.rank for trace in traces],
        stage_rows(run),
        uses(run),
        *sample_pictures(config),
    )
    return Page(
        "report",
        run.folder.absolute().name,
        str(run.folder),
        verdict.headline,
        (("because", verdict.because), ("change", verdict.advice)),
        findings=list(findings(run, intervals, stalls, batches, events)),
        facts=facts(run, epochs, events),
        figures=[*epoch_figures(epochs), *interval_figures(intervals, marks(stalls, events))],
        tables=[events_table(events)],
        config=config.read_text() if config.exists() else "",
        versions=next((event["versions"] for event in reversed(events) if "versions" in event), {}),
        run=parts,
    )


def read_events(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a run, each with its time as text; a start after no end or stop says so. [] if none."""
    events: list[dict[str, Any]] = []
    running = False
    for line in lines(path) if path.exists() else []:
        try:
            event = {**parse(line)}
        except ValueError:
            continue
        if event["event"] == "start":
            event["note"] = "the process before ended without a word: killed, or with its host" if running else ""
        event["kind"] = "resume" if event["event"] == "start" and event["step"] > 0 else event["event"]
        # Of one failure, the rank that failed and rank 0 may both write.
        event["first"] = running
        running = event["event"] in ("start", "checkpoint")
        event["when"] = f"{datetime.fromtimestamp(event['time'], timezone.utc):%Y-%m-%d %H:%M:%S}"
        events.append(event)
    return events


def events_table(events: Sequence[Mapping[str, Any]]) -> TableSection:
    """Returns the table of starts, checkpoints and signals."""
    rows = [(event["when"], event["kind"], event["step"], _about(event)) for event in events]
    text = "" if rows else "None is recorded: training writes them to events.jsonl."
    return TableSection("events", "Checkpoints and signals", text, ("time (UTC)", "event", "step", ""), rows)


def _about(event: Mapping[str, Any]) -> str:
    if event["event"] == "start":
        ranks = "1 rank" if event["ranks"] == 1 else f"{event['ranks']} ranks"
        note = f"; {event['note']}" if event["note"] else ""
        return f"{ranks}, host {event['host']}, process {event['pid']}{note}"
    if event["event"] == "checkpoint":
        return f"{event['file']}, written in {event['seconds']} s"
    return str(event.get("by") or event.get("reason", ""))


def marks(stalls: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[AxisMark]:
    """Returns the stalls and resumes as marks of figures over steps."""
    found = [
        AxisMark(line["step"], f"stall of {line['stall']['seconds']:.0f} s in step {line['step']}", RED)
        for line in stalls[:MARKS]
    ]
    resumed = [event["step"] for event in events if event["kind"] == "resume"]
    return [*found, *(AxisMark(step, f"resumed after step {step}", GRAY) for step in resumed[:MARKS])]


def facts(run: Run, epochs: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the facts of a run for its head: rate, wait, ranks, hosts, steps, accuracy."""
    found = {"input wait": f"{100 * run.wait_fraction:.1f} % of a step"} if run.measured else {}
    if run.intervals:
        ranks = run.intervals[-1]["ranks"]
        hosts = sorted({rank["host"] for rank in ranks if "host" in rank})
        found["images/s"] = f"{run.mean('images_per_second'):.0f}"
        named = f" on {'host' if len(hosts) == 1 else f'{len(hosts)} hosts:'} {', '.join(hosts[:4])}"
        found["ranks"] = f"{len(ranks)}{named if hosts else ''}"
        found["steps"] = f"{sum(interval['steps'] for interval in run.intervals)} in {len(run.intervals)} intervals"
        found["CPU of rank 0"] = f"{100 * run.mean('cpu_fraction'):.0f} % of {run.intervals[-1]['cores']}"
    if run.trace is not None:
        first, last = run.trace.steps[0].number, run.trace.steps[-1].number
        found["traced"] = f"steps {first} to {last}"
    last_epoch = epochs[-1] if epochs else {}
    for name, text in (("loss", "loss"), ("top1", "top-1"), ("test_loss", "test loss"), ("test_top1", "test top-1")):
        if isinstance(last_epoch.get(name), int | float):
            found[f"{text}, epoch {last_epoch['epoch']}"] = f"{last_epoch[name]:.4f}"
    starts = [event for event in events if event["event"] == "start"]
    if starts:
        found["starts"] = f"{len(starts)}, the first at {starts[0]['when']} UTC"
    return found


def findings(
    run: Run,
    intervals: Sequence[tuple[int, int, Mapping[str, Any]]],
    stalls: Sequence[Mapping[str, Any]],
    batches: Sequence[WorstBatch],
    events: Sequence[Mapping[str, Any]],
) -> Iterator[Finding]:
    """Yields what was slow or broken, the most important first, by rank, batch and file."""
    straggling = describe_stragglers(run.intervals)
    if straggling is not None:
        yield Finding("straggler", str(straggling), "wait-by-rank")
    for stall in sorted(stalls, key=lambda line: -line["stall"]["seconds"])[:3]:
        seconds, part, rank = (stall["stall"][key] for key in ("seconds", "in", "rank"))
        text = f"rank {rank}: step {stall['step']} of epoch {stall['epoch']} was open for {seconds:.0f} s"
        where = "waiting for its input" if part == "input" else "in the training step, or waiting for other ranks"
        yield Finding("stall", f"{text}, {where}{_slowest_rank(intervals, stall)}", "wait-by-rank")
    slowest = [batch for batch in batches if batch.slowest is not None and batch.file]
    for batch in slowest[:1]:
        assert batch.slowest is not None
        yield Finding(
            "slowest batch",
            f"rank {batch.rank} (host {batch.host}) waited {batch.wait_ms:.1f} ms for batch {batch.number}; its "
            f"slowest sample took {1000 * batch.slowest.seconds:.1f} ms to {batch.slowest.stage}: {batch.file}",
            batch.anchor,
        )
    if not slowest and batches:
        batch = batches[0]
        yield Finding(
            "slowest batch", f"rank {batch.rank} waited {batch.wait_ms:.1f} ms for batch {batch.number}", batch.anchor
        )
    for event in events:
        if event["event"] == "stop":
            yield Finding("stopped", f"by {event['by']} after step {event['step']}, {event['when']} UTC", "events")
        elif event["event"] == "failure" and event["first"]:
            yield Finding("failed", f"{event['reason']}, {event['when']} UTC", "events")
        elif event.get("note"):
            yield Finding("killed", f"before the start at {event['when']} UTC: {event['note']}", "events")


def _slowest_rank(intervals: Sequence[tuple[int, int, Mapping[str, Any]]], stall: Mapping[str, Any]) -> str:
    """Returns which rank waited longest in the interval of a stall, if its wait was a large part of that."""
    ranks = next((interval["ranks"] for _, step, interval in intervals if step >= stall["step"]), ())
    waits = {rank["rank"]: rank["wait_ms"] for rank in ranks if "wait_ms" in rank}
    if len(waits) < 2 or max(waits.values()) < 2 * sorted(waits.values())[-2]:
        return ""
    slowest = max(waits, key=waits.__getitem__)
    return f"; rank {slowest} waited longest for its input then, {number(waits[slowest])} ms a step"


def epoch_figures(epochs: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """Yields the figures of loss and accuracy by epoch."""
    for name, title, unit, keys in (
        ("loss", "Loss", "loss", {"training": "loss", "test": "test_loss"}),
        ("accuracy", "Accuracy", "share", {"top-1": "top1", "test top-1": "test_top1", "test top-5": "test_top5"}),
    ):
        found = []
        for label, key in keys.items():
            pairs = [(line["epoch"], line[key]) for line in epochs if _finite(line.get(key))]
            if pairs:
                found.append(Line(label, *zip(*pairs, strict=True)))
        if found:
            yield line_figure(name, title, found, "epoch", unit)


def interval_figures(
    intervals: Sequence[tuple[int, int, Mapping[str, Any]]], marks: Sequence[AxisMark]
) -> Iterator[Figure]:
    """Yields the figures over time: images/s, and wait, delay and own time by rank."""
    if not intervals:
        return
    steps = [step for _, step, _ in intervals]
    rates = [interval["images_per_second"] for *_, interval in intervals]
    yield line_figure(
        "images-per-second", "Images/s of all ranks", [Line("all ranks", steps, rates)], "step", "images/s", marks
    )
    for name, key, title in (
        ("wait-by-rank", "wait_ms", "Wait for input, by rank"),
        ("delay-by-rank", "delay_ms", "Delay of ready batches, by rank"),
        ("own-by-rank", "own_ms", "Step without the allreduce, by rank"),
    ):
        found = _by_rank(intervals, key)
        if found:
            yield line_figure(name, title, found, "step", "ms")


def _by_rank(intervals: Sequence[tuple[int, int, Mapping[str, Any]]], key: str) -> list[Line]:
    lines_of: dict[int, tuple[list[float], list[float]]] = {}
    for _, step, interval in intervals:
        for rank in interval["ranks"]:
            if key in rank:
                steps, values = lines_of.setdefault(rank["rank"], ([], []))
                steps.append(step)
                values.append(rank[key])
    complete = [Line(f"rank {rank}", *of_rank) for rank, of_rank in sorted(lines_of.items())]
    longest = max((len(line.x) for line in complete), default=0)
    # A resumed run may have fewer ranks: the median needs lines of one length.
    even = [line for line in complete if len(line.x) == longest]
    return chosen_ranks(even) if len(complete) > RANKS else complete


def stage_rows(run: Run) -> list[dict[str, Any]]:
    """Returns the stages of the trace with what each takes and may take; of the intervals, if there is no trace."""
    rows: list[dict[str, Any]] = []
    trace: Trace | None = run.trace
    for stage in () if trace is None else trace.stages:
        assert trace is not None
        us = us_per_image(trace, stage.name)
        busy, limit = stage.busy_s / trace.seconds, run.at_once.get(stage.name)
        note = "in Python, one thread at a time" if stage.by_python else ""
        rows.append(_stage_row(stage.name, f"{stage.calls or ''}", us, busy, limit, note))
    if trace is None and run.intervals:
        seconds = run.total("seconds")
        images = sum(interval["images"] for interval in run.intervals)
        for name, limit in run.at_once.items():
            stages = [stage for interval in run.intervals for stage in interval["stages"] if stage["stage"] == name]
            busy_s = 1e-3 * sum(stage["elements"] * stage["busy_ms"] for stage in stages)
            calls = sum(stage["elements"] for stage in stages)
            us = 1e6 * busy_s / images if images else None
            rows.append(_stage_row(name, str(calls), us, busy_s / seconds, limit, ""))
    return rows


def _stage_row(name: str, calls: str, us: float | None, busy: float, limit: int | None, note: str) -> dict[str, Any]:
    used = None if not limit else busy / limit
    return {
        "name": name,
        "calls": calls,
        "us": "" if us is None else f"{us:.1f}",
        "busy": f"{busy:.2f}",
        "limit": "" if limit is None else limit,
        "used": used,
        "note": note,
    }


def sample_pictures(config_path: Path) -> tuple[str, str]:
    """Returns a picture of training crops as a data URL, "" if they cannot be drawn, and what it shows or why not."""
    if not config_path.exists():
        return "", "There is no config.json: the crops cannot be drawn."
    from tfpipe.tools.view.view import ViewRequest, view

    try:
        config = load_config(config_path).at(None)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "crops.jpg"
            text = view(config, ViewRequest("batch", "train", PICTURES, 0), out)
            picture = base64.b64encode(out.read_bytes()).decode()
    except (TfpipeError, OSError, ValueError) as error:
        return "", f"The crops cannot be drawn here: {str(error).splitlines()[0]}"
    return f"data:image/jpeg;base64,{picture}", text.partition(": ")[2] or text


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
