"""Plots the timeline of a trace: a lane per thread, a colour per stage."""

from collections.abc import Sequence
from pathlib import Path

from tfpipe.errors import ConfigError
from tfpipe.tools.output import open_figure, save_figure
from tfpipe.tools.report.runs import Run
from tfpipe.tools.report.trace import TRAIN, WAIT, Span, Trace

COLOURS = {
    WAIT: "#d9d9d9",
    TRAIN: "#4c72b0",
    "visit": "#8c613c",
    "read": "#55a868",
    "parse": "#ccb974",
    "crop": "#937860",
    "decode": "#dd8452",
    "flip": "#da8bc3",
    "gather": "#e5ae38",
    "service": "#64b5cd",
    "finish": "#8172b3",
    "transform": "#c44e52",
    "tf.data": "#8c8c8c",
}
LANE_INCH, WIDTH_INCH = 0.16, 11
MOST_LANES = 31
# The beginning of the trace that is drawn; with more, spans would be too thin to see.
SECONDS = 1.0


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draws the beginning of each run's trace, on a common time axis.

    Raises ConfigError if a run has no trace, matplotlib is not installed, or `path` cannot be written.
    """
    without = [str(run.folder) for run in runs if run.trace is None]
    if without:
        raise ConfigError(f"--plot draws traces, and there is none in {', '.join(without)}: record one with --profile")
    traces = [run.trace for run in runs if run.trace is not None]
    seconds = min(SECONDS, max(trace.seconds for trace in traces))
    lanes = [_lanes(trace, seconds) for trace in traces]
    heights = [max(3, len(threads)) for threads in lanes]
    figure = open_figure(WIDTH_INCH, LANE_INCH * sum(heights) + 1.1 * len(runs) + 0.5)
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    drawn: dict[str, None] = {}
    for run, trace, threads, ax in zip(runs, traces, lanes, axes, strict=True):
        _draw(ax, threads, seconds)
        drawn |= dict.fromkeys(span.stage for spans in threads for span in spans)
        ax.set_title(_title(run.folder.name, trace, len(threads) - 1), loc="left", size=10)
    axes[-1].set_xlabel("seconds")
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=stage) for stage, colour in COLOURS.items() if stage in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    save_figure(figure, list(axes), path)


def _title(name: str, trace: Trace, drawn: int) -> str:
    threads = len({span.lane for span in trace.spans if span.stage not in (TRAIN, WAIT)})
    facts = [f"{100 * trace.wait_fraction:.0f} % input wait"]
    facts += [f"{trace.images / trace.seconds:.0f} images/s"] if trace.images else []
    facts.append(f"{threads} pipeline thread{'' if threads == 1 else 's'}")
    return f"{name}: {', '.join(facts)}{f', the busiest {drawn} drawn' if drawn < threads else ''}"


def _lanes(trace: Trace, seconds: float) -> list[list[Span]]:
    """Returns the spans of each thread: the training loop first, then the busiest."""
    lanes: dict[str, list[Span]] = {}
    for span in trace.spans:
        if span.start_s < seconds:
            lanes.setdefault(span.lane, []).append(span)
    return sorted(
        lanes.values(), key=lambda spans: (spans[0].stage not in (TRAIN, WAIT), -sum(span.seconds for span in spans))
    )[:MOST_LANES]


def _draw(ax, lanes: list[list[Span]], seconds: float) -> None:
    for number, spans in enumerate(lanes):
        ax.broken_barh(
            [(span.start_s, span.seconds) for span in spans],
            (number - 0.42, 0.84),
            facecolors=[COLOURS[span.stage] for span in spans],
            linewidth=0,
        )
    ax.set_xlim(0, seconds)
    ax.set_ylim(len(lanes) - 0.4, -0.6)
    ax.set_yticks([0], ["training"])
