"""Formats reports as text and as JSON."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tfpipe.config.model import without_options
from tfpipe.errors import counted
from tfpipe.tools.report.diagnosis import diagnose_run
from tfpipe.tools.report.runs import Run
from tfpipe.tools.report.trace import Trace
from tfpipe.util.console import describe_autotune, figure, line

LABEL, COLUMN = 24, 22


def render(runs: Sequence[Run]) -> str:
    """Returns the text for one run in full, or for several side by side."""
    return _one(runs[0]) if len(runs) == 1 else _side_by_side(runs)


def as_json(run: Run) -> dict[str, Any]:
    """Returns the report without the timeline's spans; times are in seconds unless a name gives another unit."""
    trace = run.trace
    return {
        "run": str(run.folder),
        "verdict": diagnose_run(run)._asdict(),
        "input_wait_fraction": run.wait_fraction,
        "at_once": dict(run.at_once),
        "intervals": list(run.intervals),
        "trace": None
        if trace is None
        else {
            "path": str(trace.path),
            "seconds": trace.seconds,
            "images": trace.images,
            "steps": [step._asdict() for step in trace.steps],
            "stages": [{**stage._asdict(), "us_per_image": trace.us_per_image(stage)} for stage in trace.stages],
        },
        "data": None if run.data is None else without_options(run.data.model_dump(mode="json")),
    }


def _one(run: Run) -> str:
    verdict, trace = diagnose_run(run), run.trace
    parts = [[f"{run.folder}: {measured_steps(run)}"]]
    parts.append([verdict.headline, f"  because  {verdict.because}", f"  change   {verdict.advice}"])
    if run.intervals:
        parts.append(_steps(run))
    elif trace is not None:
        step_ms = 1000 * fmean(step.seconds for step in trace.steps)
        rate = f", {figure(trace.images / trace.seconds)} images/s" if trace.images else ""
        parts.append([f"a step takes {step_ms:.1f} ms, {100 * trace.wait_fraction:.0f} % of it waiting{rate}"])
    if trace is not None and trace.stages:
        parts.append(_stages(trace, run.at_once))
    if run.intervals:
        parts.append(_process(run))
    return "\n\n".join(map("\n".join, parts))


def measured_steps(run: Run) -> str:
    """Returns the numbers of steps that were measured and traced, as text."""
    facts = []
    if run.intervals:
        facts.append(f"{counted(run.total('steps'), 'step')} in {counted(len(run.intervals), 'interval')}")
    if run.trace is not None:
        first, last = run.trace.steps[0].number, run.trace.steps[-1].number
        facts.append(f"steps {first} to {last} traced")
    return ", ".join(facts)


def _steps(run: Run) -> list[str]:
    widths, parts = (LABEL, 9, 9, 9, 9), ("mean", "p50", "p90", "p99")
    lines = [line(widths, "of a step, in ms", *parts)]
    notes = {
        "step": "the sum of the next" if run.parts else "",
        "wait": "for its batch",
        "transfer": "of the batch to the device",
        "compute": "the model",
        "reduce": "in the allreduce, where others are waited for",
        "callbacks": "the config's and tfpipe's own",
        "rest": "Keras' loop",
        "delay": "of a batch, from ready to used",
    }
    for name, note in notes.items():
        earlier = any(f"{name}_ms" not in interval for interval in run.intervals)
        if earlier or (name == "reduce" and len(run.intervals[-1]["ranks"]) == 1):
            continue
        figures = (f"{run.mean(f'{name}_ms', part):.1f}" for part in parts)
        lines.append(line(widths, f"  {name}", *figures, f"   {note}"))
    return lines


def _stages(trace: Trace, at_once: Mapping[str, int]) -> list[str]:
    total_s = sum(stage.busy_s for stage in trace.stages)
    widths = (12, 8, 13, 9, 8, 9, 5)
    lines = [line(widths, "stage", "calls", "us an image", "busy s", "share", "at once", "of")]
    for stage in trace.stages:
        us = trace.us_per_image(stage)
        figures = stage.calls or "", "" if us is None else f"{us:.1f}", f"{stage.busy_s:.3f}"
        shares = f"{100 * stage.busy_s / total_s:.1f}%", f"{stage.busy_s / trace.seconds:.2f}"
        note = "   in Python" if stage.by_python else ""
        lines.append(line(widths, f"  {stage.name}", *figures, *shares, at_once.get(stage.name, ""), note))
    lines.append(
        f"busy: of all threads, in {trace.seconds:.2f} s; at once: busy threads on average, of so many calls allowed"
    )
    return lines


def _process(run: Run) -> list[str]:
    last, seconds = run.intervals[-1], run.total("seconds")
    read, from_storage = (1e-6 * run.total(name) / seconds for name in ("read_bytes", "storage_bytes"))
    tuned = describe_autotune((knob["stage"], knob["parameter"], knob["value"]) for knob in last["autotune"])
    facts = {
        "AUTOTUNE chose": tuned or "nothing",
        "images/s": f"{figure(run.mean('images_per_second'))}, over {counted(len(last['ranks']), 'rank')}",
        "CPU": f"{100 * run.mean('cpu_fraction'):.0f} % of {counted(last['cores'], 'CPU')}; "
        f"{run.mean('queued_fraction') * last['cores']:.1f} more threads could have run",
        "memory": f"{last['memory_bytes'] / 1e9:.2f} GB",
        "read": f"{figure(run.total('files') / seconds)} files/s, {read:.1f} MB/s, {from_storage:.1f} from storage",
    }
    if len(last["ranks"]) > 1:
        for part, what in (("wait_ms", "waits for input, ms"), ("own_ms", "step less allreduce, ms")):
            spreads = [entry["spread"][part] for entry in run.intervals]
            low, mid, high = (fmean(spread[key] for spread in spreads) for key in ("min", "median", "max"))
            facts[what] = f"{low:.1f} min, {mid:.1f} median, {high:.1f} max over ranks"
    return [line((LABEL,), label, fact) for label, fact in facts.items()]


def _side_by_side(runs: Sequence[Run]) -> str:
    tables = [dict(_rows(run)) for run in runs]
    labels = list(dict.fromkeys(label for table in tables for label in table))
    widths = (LABEL, *[COLUMN] * len(runs))
    lines = [line(widths, "", *(str(run.folder)[-COLUMN + 2 :] for run in runs))]
    lines += [line(widths, label, *(table.get(label, "-") for table in tables)) for label in labels]
    for run in runs:
        result = diagnose_run(run)
        lines += ["", f"{run.folder}: {result.headline}", f"  because  {result.because}", f"  change   {result.advice}"]
    return "\n".join(lines)


def _rows(run: Run) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [("verdict", diagnose_run(run).kind)]
    if run.has_figures:
        rows.append(("input wait", f"{100 * run.wait_fraction:.1f} %"))
    if run.intervals:
        rows.append(("images/s", f"{run.mean('images_per_second'):.0f}"))
        parts = {name: run.mean(f"{name}_ms", "mean") for name in ("step", "wait", "compute")} | run.parts
        rows += [(f"{name}, ms a step", f"{mean_ms:.1f}") for name, mean_ms in parts.items()]
        rows.append(("CPU", f"{100 * run.mean('cpu_fraction'):.0f} %"))
    if run.trace is not None:
        trace = run.trace
        if not run.intervals and trace.images:
            rows.append(("images/s", f"{trace.images / trace.seconds:.0f}"))
        for stage in trace.stages:
            at_once = f"{stage.busy_s / trace.seconds:.2f} at once"
            image_us = trace.us_per_image(stage)
            rows.append((f"{stage.name}, us an image", at_once if image_us is None else f"{image_us:.0f} ({at_once})"))
    return rows
