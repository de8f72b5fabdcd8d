"""A run as one HTML page: the verdict, what was slow, its figures, its config.

The batches that were waited for longest have their slowest samples, and a timeline.
"""

import base64
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe import __version__
from tfpipe.config import load_config
from tfpipe.config.model import without_options
from tfpipe.data.runtime.recording import Recording
from tfpipe.errors import ConfigError, counted
from tfpipe.tools.report import figures
from tfpipe.tools.report.diagnosis import diagnose_run, uses
from tfpipe.tools.report.figures import GRAY, RED, AxisMark, Bar, Figure, Line
from tfpipe.tools.report.runs import CONFIG, Run, trace_paths
from tfpipe.tools.report.samples import BatchRow, batch_rows, sample_times
from tfpipe.tools.report.text import measured_steps
from tfpipe.tools.report.trace import read_trace
from tfpipe.training.monitor.metrics import EVENTS, METRICS, is_epoch, lines, parse, read
from tfpipe.training.monitor.stragglers import describe_stragglers
from tfpipe.util.atomic_write import atomic_write, writing

PICTURES = 16
# Stalls, and resumes, that figures mark.
MARKS = 20
# Batches in the table of those that waited longest, and samples of a batch.
WORST, SAMPLES = 20, 12
PART_COLOURS = {"wait for input": RED, "compute": "#3b82c4", "reduce": "#e07b39", "ready, not taken": GRAY}


class Finding(NamedTuple):
    """A line of the page's beginning: what was slow or broken, and where the page says more."""

    kind: str
    text: str
    anchor: str


class StageRow(NamedTuple):
    """A stage's calls, and those that it may have under way at once."""

    name: str
    calls: int
    us: float | None  # microseconds an image; None if no image was read
    busy: float  # calls under way on average
    limit: int | None
    note: str = ""


class WorstBatch(NamedTuple):
    """A traced batch that its step waited for, with file, stage and milliseconds of its slowest samples."""

    row: BatchRow
    samples: Sequence[tuple[str, str, str]]

    @property
    def anchor(self) -> str:
        """Identifier on the page."""
        return f"batch-{self.row.rank}-{self.row.batch}"


def write_page(run: Run, path: Path) -> None:
    """Writes the page of a run to `path`.

    Raises ConfigError if Jinja2 is not installed, or `path` cannot be written.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ConfigError(f"--html needs Jinja2 ({error}): pip install 'tfpipe[profile]'") from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = environment.from_string((files("tfpipe.tools.report") / "page.html").read_text(encoding="utf-8"))
    text = template.render(page_of(run), version=__version__)
    with writing(path), atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")


def page_of(run: Run) -> dict[str, Any]:
    """Returns everything that the page of a run shows, by the template's names."""
    record = [] if not (run.folder / METRICS).exists() else list(read(run.folder / METRICS))
    intervals = [(line["step"], line["interval"]) for line in record if "interval" in line]
    # A stall is reported again and again while it lasts: the last report has its length.
    stalls = list({(line["epoch"], line["step"]): line for line in record if "stall" in line}.values())
    epochs = [line for line in record if is_epoch(line)]
    paths = trace_paths(run.folder)
    traces = [run.trace if run.trace and run.trace.path == path else read_trace(path) for path in paths]
    batches = worst_batches([trace.recording for trace in traces])
    events = read_events(run.folder / EVENTS)
    config = (run.folder if (run.folder / CONFIG).exists() else run.folder.parent) / CONFIG
    picture, picture_text = sample_pictures(config)
    return {
        "name": run.folder.absolute().name,
        "place": run.folder,
        "verdict": diagnose_run(run),
        "findings": list(findings(run, stalls, batches, events)),
        "facts": facts(run, epochs, events),
        "figures": [*epoch_figures(epochs), *interval_figures(intervals, marks(stalls, events))],
        "batches": batches,
        "timeline": timeline(batches),
        "traced": [trace.recording.rank for trace in traces],
        "stages": list(stage_rows(run)),
        "uses": uses(run),
        "events": [(event["when"], event["kind"], event["step"], _about(event)) for event in events],
        "picture": picture,
        "picture_text": picture_text,
        "config": _shown(config),
        "versions": next((event["versions"] for event in reversed(events) if "versions" in event), {}),
    }


def _shown(path: Path) -> str:
    """Returns the text of a run's config for a page that others may get; "" if there is none."""
    config = json.loads(path.read_text()) if path.exists() else {}
    shown = {**config, "data": without_options(config["data"])} if "data" in config else config
    return json.dumps(shown, indent=2, ensure_ascii=False) if shown else ""


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


def _about(event: Mapping[str, Any]) -> str:
    if event["event"] == "start":
        note = f"; {event['note']}" if event["note"] else ""
        return f"{counted(event['ranks'], 'rank')}, host {event['host']}, process {event['pid']}{note}"
    if event["event"] == "checkpoint":
        return f"{event['file']}, written in {event['seconds']} s"
    return str(event.get("by") or event.get("reason", ""))


def marks(stalls: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[AxisMark]:
    """Returns the stalls and resumes as marks of figures over steps."""
    stall_marks = [
        AxisMark(line["step"], f"stall of {line['stall']['seconds']:.0f} s in step {line['step']}", RED)
        for line in stalls[:MARKS]
    ]
    resumed = [event["step"] for event in events if event["kind"] == "resume"]
    return [*stall_marks, *(AxisMark(step, f"resumed after step {step}", GRAY) for step in resumed[:MARKS])]


def facts(run: Run, epochs: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the facts of a run for its head: rate, wait, ranks, hosts, steps, accuracy."""
    texts = {"input wait": f"{100 * run.wait_fraction:.1f} % of a step"} if run.has_figures else {}
    if run.intervals:
        ranks = run.intervals[-1]["ranks"]
        hosts = sorted({rank["host"] for rank in ranks if "host" in rank})
        texts["images/s"] = f"{run.mean('images_per_second'):.0f}"
        named = f" on {'host' if len(hosts) == 1 else f'{len(hosts)} hosts:'} {', '.join(hosts[:4])}"
        texts["ranks"] = f"{len(ranks)}{named if hosts else ''}"
        texts["CPU of rank 0"] = f"{100 * run.mean('cpu_fraction'):.0f} % of {run.intervals[-1]['cores']}"
    if run.has_figures:
        texts["measured"] = measured_steps(run)
    last_epoch = epochs[-1] if epochs else {}
    for name, text in (("loss", "loss"), ("top1", "top-1"), ("test_loss", "test loss"), ("test_top1", "test top-1")):
        if isinstance(last_epoch.get(name), int | float):
            texts[f"{text}, epoch {last_epoch['epoch']}"] = f"{last_epoch[name]:.4f}"
    starts = [event for event in events if event["event"] == "start"]
    if starts:
        texts["starts"] = f"{len(starts)}, the first at {starts[0]['when']} UTC"
    return texts


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
        yield Finding("stall", f"{text}, {where}", "wait-by-rank")
    worst = next((batch for batch in batches if batch.row.slowest_file), next(iter(batches), None))
    if worst is not None:
        row = worst.row
        text = f"rank {row.rank} (host {row.host}) waited {row.wait_ms:.1f} ms for batch {row.batch}"
        if row.slowest_file:
            text += f"; its slowest sample took {row.slowest_ms:.1f} ms to {row.slowest_stage}: {row.slowest_file}"
        yield Finding("slowest batch", text, worst.anchor)
    for event in events:
        if event["event"] == "stop":
            yield Finding("stopped", f"by {event['by']} after step {event['step']}, {event['when']} UTC", "events")
        elif event["event"] == "failure" and event["first"]:
            yield Finding("failed", f"{event['reason']}, {event['when']} UTC", "events")
        elif event.get("note"):
            yield Finding("killed", f"before the start at {event['when']} UTC: {event['note']}", "events")


def epoch_figures(epochs: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """Yields the figures of loss and accuracy by epoch."""
    for name, title, unit, keys in (
        ("loss", "Loss", "loss", {"training": "loss", "test": "test_loss"}),
        ("accuracy", "Accuracy", "share", {"top-1": "top1", "test top-1": "test_top1", "test top-5": "test_top5"}),
    ):
        lines = []
        for label, key in keys.items():
            pairs = [(line["epoch"], line[key]) for line in epochs if _finite(line.get(key))]
            if pairs:
                lines.append(Line(label, *zip(*pairs, strict=True)))
        if lines:
            yield figures.line_figure(name, title, lines, "epoch", unit)


def interval_figures(intervals: Sequence[tuple[int, Mapping[str, Any]]], marks: Sequence[AxisMark]) -> Iterator[Figure]:
    """Yields the figures over time: images/s, and wait, delay and own time by rank."""
    if not intervals:
        return
    points = [(step, interval["images_per_second"]) for step, interval in intervals]
    rates = Line("all ranks", *zip(*points, strict=True))
    yield figures.line_figure("images-per-second", "Images/s of all ranks", [rates], "step", "images/s", marks)
    for name, key, title in (
        ("wait-by-rank", "wait_ms", "Wait for input, by rank"),
        ("delay-by-rank", "delay_ms", "Delay of ready batches, by rank"),
        ("own-by-rank", "own_ms", "Step without the allreduce, by rank"),
    ):
        lines = _by_rank(intervals, key)
        if lines:
            yield figures.line_figure(name, title, lines, "step", "ms")


def _by_rank(intervals: Sequence[tuple[int, Mapping[str, Any]]], key: str) -> list[Line]:
    points: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step, interval in intervals:
        for rank in interval["ranks"]:
            if key in rank:
                points[rank["rank"]].append((step, rank[key]))
    complete = [Line(f"rank {rank}", *zip(*of_rank, strict=True)) for rank, of_rank in sorted(points.items())]
    longest = max((len(line.x) for line in complete), default=0)
    # A resumed run may have fewer ranks: the median needs lines of one length.
    even = [line for line in complete if len(line.x) == longest]
    return figures.chosen_ranks(even) if len(complete) > figures.RANKS else complete


def stage_rows(run: Run) -> Iterator[StageRow]:
    """Yields the stages of the trace with what each takes and may take; of the intervals, if there is no trace."""
    if run.trace is not None:
        for stage in run.trace.stages:
            us, limit = run.trace.us_per_image(stage), run.at_once.get(stage.name)
            note = "in Python, one thread at a time" if stage.by_python else ""
            yield StageRow(stage.name, stage.calls, us, stage.busy_s / run.trace.seconds, limit, note)
    elif run.intervals:
        calls, busy_ms = run.sum_stages(), run.sum_stages("busy_ms")
        seconds, images = run.total("seconds"), run.total("images")
        for name, limit in run.at_once.items():
            busy_s = 1e-3 * busy_ms[name]
            yield StageRow(name, calls[name], 1e6 * busy_s / images if images else None, busy_s / seconds, limit)


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
    except Exception as error:  # also what a transform of the user's raises
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # Of a transform AutoGraph tells the lines of code before the error itself.
        reason = lines[-1 if lines[0] == "in user code:" else 0].strip()
        return "", f"The crops cannot be drawn here: {reason}"
    return f"data:image/jpeg;base64,{picture}", text.partition(": ")[2] or text


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def worst_batches(recordings: Sequence[Recording]) -> list[WorstBatch]:
    """Returns the batches of all ranks that were waited for longest, at most WORST, the longest wait first."""
    batches: list[WorstBatch] = []
    for recording in recordings:
        times = sample_times(recording)
        for row in sorted(batch_rows(recording, times), key=lambda row: -row.wait_ms)[:WORST]:
            positions = list(map(int, row.positions.split()))
            slow = sorted((time for each in positions for time in times.get(each, [])), key=lambda time: -time.seconds)
            shown = [(time.position, time.stage, f"{1000 * time.seconds:.2f}") for time in slow]
            shown = (shown or [(position, "", "") for position in positions])[:SAMPLES]
            samples = [(recording.files.get(place, f"position {place}"), stage, ms) for place, stage, ms in shown]
            batches.append(WorstBatch(row, samples))
    return sorted(batches, key=lambda worst: -worst.row.wait_ms)[:WORST]


def timeline(batches: Sequence[WorstBatch]) -> Figure | None:
    """Returns the figure of the worst batches: what their steps did, from the wait for the batch to the step's end."""
    if not batches:
        return None
    rows = {f"rank {row.rank}, batch {row.batch}": list(_bars(row)) for row, _ in batches}
    text = (
        f"The {counted(len(batches), 'traced batch')} with the longest waits, from {batches[0].row.wait_ms:.1f} to "
        f"{batches[-1].row.wait_ms:.1f} ms, each from the beginning of the wait to the end of its step."
    )
    svg = figures.draw_rows(rows, "ms since the step asked for its batch", PART_COLOURS, "timeline")
    return Figure("timeline", "The batches that were waited for longest", text, svg, (), ())


def _bars(row: BatchRow) -> Iterator[Bar]:
    title = f"rank {row.rank}, batch {row.batch}{f', {row.slowest_file}' if row.slowest_file else ''}"
    computed_ms = row.wait_ms + row.compute_ms
    ended_ms = computed_ms + row.reduce_ms
    # A batch may have been ready for long before the step asked for it: at most a step's length of that is drawn.
    ready_ms = max(row.wait_ms - row.delay_ms, -ended_ms)
    starts = 0.0, row.wait_ms, computed_ms, ready_ms
    ends = row.wait_ms, computed_ms, ended_ms, 0.0
    for (part, colour), start_ms, end_ms in zip(PART_COLOURS.items(), starts, ends, strict=True):
        if end_ms > start_ms:
            ms = end_ms - start_ms
            yield Bar(start_ms, ms, colour, f"{title}: {part} {ms:.1f} ms")
