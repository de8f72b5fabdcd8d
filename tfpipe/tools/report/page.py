"""A run as one HTML page that needs no network: the verdict, what was slow, its figures, its config."""

import base64
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe import __version__
from tfpipe.config import load_config
from tfpipe.data.runtime.recording import Recording, TracedBatch
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.tools.report.diagnosis import diagnose_run, uses
from tfpipe.tools.report.figures import RANKS, Bar, Line, chosen_ranks, draw_lines, draw_rows
from tfpipe.tools.report.runs import CONFIG, Run, trace_paths
from tfpipe.tools.report.samples import SampleTime, sample_times, slowest_sample
from tfpipe.tools.report.text import us_per_image
from tfpipe.tools.report.trace import Trace, read_trace
from tfpipe.training.monitor.events import EVENTS
from tfpipe.training.monitor.metrics import METRICS, is_epoch, lines, parse, read
from tfpipe.training.monitor.stragglers import describe_stragglers
from tfpipe.util.atomic_write import atomic_write, writing

# Batches in the table of those that waited longest, rows in other tables, and samples of a batch.
WORST, ROWS, SAMPLES = 20, 60, 12
WAIT, COMPUTE, REDUCE, READY = "wait for input", "compute", "reduce", "ready, not taken"
PARTS = {WAIT: "#c4514f", COMPUTE: "#3b82c4", REDUCE: "#e07b39", READY: "#8f9aa3"}
PICTURES = 16


class Figure(NamedTuple):
    """A figure of the page."""

    name: str  # identifier on the page
    title: str
    text: str  # what it shows, with its numbers, in words
    svg: str
    heading: Sequence[str]  # of the table of its numbers
    rows: Sequence[Sequence[object]]


class WorstBatch(NamedTuple):
    """A traced batch that its step waited for."""

    anchor: str
    rank: int
    host: str
    number: int
    wait_ms: float
    delay_ms: float
    compute_ms: float
    slowest: SampleTime | None
    file: str | None
    samples: Sequence[tuple[str, str, str]]  # file, stage and milliseconds of its slowest samples
    batch: TracedBatch


class Finding(NamedTuple):
    """A line of the page's beginning: what was slow or broken, and where the page says more."""

    kind: str
    text: str
    anchor: str


def write_page(run: Run, path: Path) -> None:
    """Writes the page of a run to `path`.

    Raises ConfigError if Jinja2 or matplotlib is not installed, or `path` cannot be written.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ConfigError(f"--html needs Jinja2 ({error}): pip install 'tfpipe[profile]'") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((files("tfpipe.tools.report") / "page.html").read_text(encoding="utf-8"))
    text = template.render(contents(run))
    with writing(path), atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")


def contents(run: Run) -> dict[str, Any]:
    """Returns everything that the page shows, by the names of its template."""
    record = [] if not (run.folder / METRICS).exists() else list(read(run.folder / METRICS))
    intervals = [(line["epoch"], line["step"], line["interval"]) for line in record if "interval" in line]
    # A stall is reported again and again while it lasts: the last report has its length.
    stalls = list({(line["epoch"], line["step"]): line for line in record if "stall" in line}.values())
    epochs = [line for line in record if is_epoch(line)]
    paths = trace_paths(run.folder)
    traces = [run.trace if run.trace and run.trace.path == path else read_trace(path) for path in paths]
    batches = worst_batches([trace.recording for trace in traces])
    events = read_events(run.folder / EVENTS)
    run_dir = run.folder if (run.folder / CONFIG).exists() else run.folder.parent
    pictures = sample_pictures(run_dir / CONFIG)
    return {
        "name": run.folder.absolute().name,
        "folder": str(run.folder),
        "version": __version__,
        "verdict": diagnose_run(run),
        "facts": facts(run, epochs, events),
        "findings": list(findings(run, stalls, batches, events)),
        "figures": [*epoch_figures(epochs), *interval_figures(intervals, stalls)],
        "stages": stage_rows(run),
        "uses": uses(run),
        "batches": batches,
        "timeline": timeline(batches),
        "traced": [trace.recording.rank for trace in traces],
        "events": events,
        "config": (run_dir / CONFIG).read_text() if (run_dir / CONFIG).exists() else "",
        "versions": next((event["versions"] for event in reversed(events) if "versions" in event), {}),
        "picture": pictures[0],
        "picture_text": pictures[1],
    }


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
            event["note"] = "the process before ended without a word: killed, or by an error" if running else ""
        event["kind"] = "resume" if event["event"] == "start" and event["step"] > 0 else event["event"]
        running = event["event"] in ("start", "checkpoint")
        event["when"] = f"{datetime.fromtimestamp(event['time'], timezone.utc):%Y-%m-%d %H:%M:%S}"
        events.append(event)
    return events


def facts(run: Run, epochs: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the facts of a run for its head: rate, wait, ranks, hosts, steps, accuracy."""
    found = {"input wait": f"{100 * run.wait_fraction:.1f} % of a step"}
    if run.intervals:
        ranks = run.intervals[-1]["ranks"]
        hosts = sorted({rank["host"] for rank in ranks if "host" in rank})
        found["images/s"] = f"{run.mean('images_per_second'):.0f}"
        named = f" on {len(hosts)} host(s): " + ", ".join(hosts[:4])
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
    run: Run, stalls: Sequence[Mapping[str, Any]], batches: Sequence[WorstBatch], events: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Yields what was slow or broken, the most important first, by rank, batch and file."""
    straggling = describe_stragglers(run.intervals)
    if straggling is not None:
        yield Finding("straggler", str(straggling), "wait-by-rank")
    for stall in sorted(stalls, key=lambda line: -line["stall"]["seconds"])[:3]:
        seconds, part, rank = (stall["stall"][key] for key in ("seconds", "in", "rank"))
        text = f"rank {rank}: step {stall['step']} of epoch {stall['epoch']} was open for {seconds:.0f} s"
        where = "waiting for its input" if part == "input" else "in the training step, or waiting for other ranks"
        yield Finding("stall", f"{text}, {where}", "images-per-second")
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
        elif event.get("note"):
            yield Finding("killed", f"before the start at {event['when']} UTC: {event['note']}", "events")


def worst_batches(recordings: Sequence[Recording]) -> list[WorstBatch]:
    """Returns the batches of all ranks that were waited for longest, at most WORST, the longest wait first."""
    every = [(recording, batch) for recording in recordings for batch in recording.batches]
    every.sort(key=lambda pair: -pair[1].wait_s)
    times = {recording.rank: sample_times(recording) for recording in recordings}
    return [_worst(recording, batch, times[recording.rank]) for recording, batch in every[:WORST]]


def _worst(recording: Recording, batch: TracedBatch, times: dict[int, list[SampleTime]]) -> WorstBatch:
    slowest = slowest_sample(batch, times)
    positions = list(dict.fromkeys(batch.positions[:, 0].tolist()))
    known = sorted((time for position in positions for time in times.get(position, [])), key=lambda time: -time.seconds)

    def name(position: int) -> str:
        return recording.files.get(position, f"position {position}")

    samples = [(name(time.position), time.stage, f"{1000 * time.seconds:.2f}") for time in known[:SAMPLES]]
    samples = samples or [(name(position), "", "") for position in positions[:SAMPLES]]
    return WorstBatch(
        f"batch-{recording.rank}-{batch.number}",
        recording.rank,
        recording.host,
        batch.number,
        1000 * batch.wait_s,
        1000 * batch.delay_s,
        1000 * (batch.ended_s - batch.taken_s - float(batch.reduce_s)),
        slowest,
        None if slowest is None else recording.files.get(slowest.position),
        samples,
        batch,
    )


def timeline(batches: Sequence[WorstBatch]) -> Figure | None:
    """Returns the figure of the worst batches: what their steps did, from the wait for the batch to the step's end."""
    if not batches:
        return None
    rows: dict[str, list[Bar]] = {}
    for worst in batches:
        name = f"rank {worst.rank}, batch {worst.number}"
        rows[name] = list(_bars(worst, f"{name}, {worst.file}" if worst.file else name))
    text = (
        f"The {len(batches)} traced batches that were waited for longest, from {batches[0].wait_ms:.1f} to "
        f"{batches[-1].wait_ms:.1f} ms, each from the beginning of the wait to the end of its step."
    )
    svg = draw_rows(rows, "ms since the step asked for its batch", PARTS, "timeline")
    return Figure("timeline", "The batches that were waited for longest", text, svg, (), ())


def _bars(worst: WorstBatch, title: str) -> Iterator[Bar]:
    began_s, ready_s, taken_s, ended_s = worst.batch[1:5]
    computed_s = ended_s - float(worst.batch.reduce_s)
    # A batch may have been ready for long before the step asked for it: at most a step's length of that is drawn.
    ready_s = max(ready_s, began_s - (ended_s - began_s))
    spans = (
        (ready_s, began_s, READY),
        (began_s, taken_s, WAIT),
        (taken_s, computed_s, COMPUTE),
        (computed_s, ended_s, REDUCE),
    )
    for start_s, end_s, part in spans:
        if end_s > start_s:
            ms = 1000 * (end_s - start_s)
            yield Bar(1000 * (start_s - began_s), ms, PARTS[part], f"{title}: {part} {ms:.1f} ms")


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
            yield _line_figure(name, title, found, "epoch", unit)


def interval_figures(
    intervals: Sequence[tuple[int, int, Mapping[str, Any]]], stalls: Sequence[Mapping[str, Any]]
) -> Iterator[Figure]:
    """Yields the figures over time: images/s, and wait, delay and own time by rank."""
    if not intervals:
        return
    steps = [step for _, step, _ in intervals]
    marks = {line["step"]: f"stall of {line['stall']['seconds']:.0f} s in step {line['step']}" for line in stalls[:20]}
    rates = [interval["images_per_second"] for *_, interval in intervals]
    all_ranks = [Line("all ranks", steps, rates)]
    yield _line_figure("images-per-second", "Images/s of all ranks", all_ranks, "step", "images/s", marks)
    for name, key, title in (
        ("wait-by-rank", "wait_ms", "Wait for input, by rank"),
        ("delay-by-rank", "delay_ms", "Delay of ready batches, by rank"),
        ("own-by-rank", "own_ms", "Step without the allreduce, by rank"),
    ):
        found = _by_rank(intervals, key)
        if found:
            yield _line_figure(name, title, found, "step", "ms")


def _by_rank(intervals: Sequence[tuple[int, int, Mapping[str, Any]]], key: str) -> list[Line]:
    lines_of: dict[int, tuple[list[float], list[float]]] = {}
    for _, step, interval in intervals:
        for rank in interval["ranks"]:
            if key in rank:
                steps, values = lines_of.setdefault(rank["rank"], ([], []))
                steps.append(step)
                values.append(rank[key])
    if not lines_of and key in intervals[0][2]:
        # Runs of earlier versions have the delay of rank 0 alone.
        values = [interval[key]["mean"] for *_, interval in intervals]
        return [Line("rank 0", [step for _, step, _ in intervals], values)]
    complete = [Line(f"rank {rank}", *of_rank) for rank, of_rank in sorted(lines_of.items())]
    longest = max((len(line.x) for line in complete), default=0)
    # A resumed run may have fewer ranks: the median needs lines of one length.
    even = [line for line in complete if len(line.x) == longest]
    return chosen_ranks(even) if len(complete) > RANKS else complete


def _line_figure(
    name: str, title: str, drawn: Sequence[Line], x_label: str, unit: str, marks: Mapping[float, str] | None = None
) -> Figure:
    parts = [f"{line.name} from {line.y[0]:.4g} to {line.y[-1]:.4g}, at most {max(line.y):.4g}" for line in drawn]
    text = f"{title}, {unit} by {x_label}: {'; '.join(parts)}."
    if marks:
        text += f" Dashed: {'; '.join(marks.values())}."
    steps = sorted({x for line in drawn for x in line.x})
    values = [dict(zip(line.x, line.y, strict=True)) for line in drawn]
    stride = max(1, math.ceil(len(steps) / ROWS))
    rows = [[f"{x:g}", *(f"{of_line[x]:.4g}" if x in of_line else "-" for of_line in values)] for x in steps[::stride]]
    svg = draw_lines(drawn, x_label, unit, name, marks)
    return Figure(name, title, text, svg, (x_label, *(line.name for line in drawn)), rows)


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
