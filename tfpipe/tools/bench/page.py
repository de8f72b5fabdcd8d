"""The pages of bench and of its sweep."""

from tfpipe.tools.bench.bench import LIMIT, PIPELINE, SERIAL, Report
from tfpipe.tools.bench.headspace import TRAINING
from tfpipe.tools.bench.ranks import RanksReport
from tfpipe.tools.bench.sweep import MEMORY, Sweep, conclusions, name_of
from tfpipe.tools.bench.sweep import render as render_sweep
from tfpipe.tools.bench.text import facts, render
from tfpipe.tools.measure import Spread, spread, spread_of
from tfpipe.tools.page.figures import COLOURS, GRAY, Figure, Value, bar_figure
from tfpipe.tools.page.page import Given, Page
from tfpipe.tools.report.diagnosis import diagnose_chains

BLUE, ORANGE, GREEN = COLOURS[:3]
MEDIANS = "Bars are medians over the turns, lines their range."


def page(report: Report | RanksReport | Sweep, given: Given) -> Page:
    """Returns the page of a report: its verdict, its figures, its text."""
    if isinstance(report, Sweep):
        headline, *others = conclusions(report)
        points = [(word, text) for word, _, text in (line.partition(": ") for line in others)]
        return given.page(f"knee: {headline.removeprefix('knee').strip()}")._replace(
            points=points, figures=[_swept(report)], printed=render_sweep(report)
        )
    if isinstance(report, RanksReport):
        size = len(report.turns[0])
        headline = f"{size} ranks read {report.ratio.median:.2f} times as many images as one rank"
        return given.page(headline)._replace(facts=facts(report), figures=[_ranks(report)], printed=render(report))
    verdict = diagnose_chains(report.figures)
    return given.page(f"bound {verdict.headline}")._replace(
        points=(("because", verdict.because), ("change", verdict.advice)),
        facts=facts(report),
        figures=_figures(report),
        printed=render(report),
    )


def _value(name: str, found: Spread, colour: str = BLUE) -> Value:
    return Value(name, found.median, (found.low, found.high), colour)


def _figures(report: Report) -> list[Figure]:
    limit = Spread(*(report.machine.cpus * rate for rate in report.spread(LIMIT)))
    rates = [_value(PIPELINE, report.spread(PIPELINE)), _value(LIMIT, limit, GRAY)]
    if SERIAL in report.segments:
        rates.append(_value(SERIAL, report.spread(SERIAL), ORANGE))
    text = f"The limit is libjpeg-turbo on whole files in memory, and a resize, on every CPU. {MEDIANS}"
    figures = [bar_figure("rates", "Images/s", rates, "images/s", text, {})]
    if report.stages:
        costs = [Value(f"{cost.name}, {kind}", us, None, colour)
                 for cost in report.costs
                 for kind, us, colour in (("wall", cost.us, BLUE), ("CPU", cost.cpu_us, ORANGE))]  # fmt: skip
        text = "A stage's own time for an image: this chain less the one before it, median of the turns."
        legend = {"wall time": BLUE, "CPU time of all threads": ORANGE}
        figures.append(bar_figure("costs", "Cost of a stage", costs, "us an image", text, legend))
    if TRAINING in report.segments:
        room = report.headspace
        steps = [_value("fed by the pipeline", room.step_ms), _value("fed from memory", room.replay_ms, GRAY)]
        figures.append(bar_figure("headspace", "Training step", steps, "ms", f"{room.meaning}. {MEDIANS}", {}))
    return figures


def _ranks(report: RanksReport) -> Figure:
    size = len(report.turns[0])
    together = [
        _value(f"rank {rank} of {size}", spread([segment.images_per_second for segment in segments]), ORANGE)
        for rank, segments in enumerate(zip(*report.turns, strict=True))
    ]
    rates = [
        _value("1 rank alone", spread_of(report.alone), GRAY),
        _value(f"{size} ranks", spread(report.totals)),
        *together,
    ]
    return bar_figure("rates", "Images/s", rates, "images/s", f"All ranks together, in turns with one. {MEDIANS}", {})


def _swept(sweep: Sweep) -> Figure:
    unit = "steps/s" if sweep.trained else "crops/s"
    values = [
        _value(name_of(sweep, setting), sweep.rate(setting), GREEN if setting == sweep.knee else BLUE)
        for setting in sweep.threads
    ]
    if sweep.trained:
        values.append(_value("from memory", sweep.rate(MEMORY), GRAY))
    return bar_figure("rates", f"{unit} of each setting", values, unit, MEDIANS, {"knee": GREEN, "setting": BLUE})
