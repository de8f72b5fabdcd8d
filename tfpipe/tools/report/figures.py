"""The figures of a run's page, as SVG that takes the page's colours and shows the numbers below the pointer."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from lxml import etree

from tfpipe.tools.output import finish_figure, open_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
# Readable on white and on black.
COLOURS = ("#3b82c4", "#e07b39", "#3f9e5f", "#c4514f", "#8d6cc0", "#a5803d", "#c766a8", "#5f8f98")
RED, GRAY = "#c4514f", "#8f9aa3"
# Rows of a table of numbers.
ROWS = 60
# A line whose highest value is this many times its median is drawn on a logarithmic axis, or the others lie flat on 0.
PEAKED = 30
# Points of a line: longer runs are averaged over neighbouring intervals.
POINTS = 120
# Ranks that are drawn each by itself; of more, those that wait longest, and the median of all.
RANKS = 8


class Figure(NamedTuple):
    """A figure of a page."""

    name: str  # identifier on the page
    title: str
    text: str  # what it shows, with its numbers, in words
    svg: str
    heading: Sequence[str]  # of the table of its numbers
    rows: Sequence[Sequence[object]]


class Line(NamedTuple):
    """A line of a figure."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class AxisMark(NamedTuple):
    """A place of the x axis with a text, e.g. of a stall."""

    place: float
    text: str
    colour: str = RED


class Bar(NamedTuple):
    """A part of a row of a timeline."""

    start: float
    length: float
    colour: str
    title: str  # shown below the pointer


def number(value: float) -> str:
    """Returns a number as a reader writes it: four digits, thousands in groups, no exponent."""
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"


def thinned(line: Line) -> Line:
    """Returns a line of at most POINTS points, each the mean of as many neighbouring ones."""
    if len(line.x) <= POINTS:
        return line
    ends = np.array_split(np.arange(len(line.x)), POINTS)
    return Line(line.name, *([float(np.mean(np.take(values, part))) for part in ends] for values in (line.x, line.y)))


def chosen_ranks(lines: Sequence[Line]) -> list[Line]:
    """Returns the lines of all ranks or, of many, those with the highest means, and the median of all."""
    if len(lines) <= RANKS:
        return list(lines)
    highest = sorted(lines, key=lambda line: -float(np.mean(line.y)))[: RANKS - 1]
    median = np.median([line.y for line in lines], axis=0).tolist()
    return [*highest, Line(f"median of {len(lines)} ranks", lines[0].x, median)]


def line_figure(
    name: str, title: str, drawn: Sequence[Line], x_label: str, unit: str, marks: Sequence[AxisMark] = ()
) -> Figure:
    """Returns a figure of lines over a common axis, with a text and a table of its numbers."""
    text = f"{unit[0].upper()}{unit[1:]} by {x_label}: {'; '.join(map(_extent, drawn))}."
    if marks:
        text += f" Dashed: {'; '.join(mark.text for mark in marks)}."
    steps = sorted({x for line in drawn for x in line.x})
    values = [dict(zip(line.x, line.y, strict=True)) for line in drawn]
    stride = max(1, math.ceil(len(steps) / ROWS))
    rows = [[f"{x:g}", *(number(of_line[x]) if x in of_line else "-" for of_line in values)] for x in steps[::stride]]
    svg = draw_lines(drawn, x_label, unit, name, marks)
    return Figure(name, title, text, svg, (x_label, *(line.name for line in drawn)), rows)


def _extent(line: Line) -> str:
    if len(line.y) == 1:
        return f"{line.name} {number(line.y[0])}"
    return f"{line.name} from {number(line.y[0])} to {number(line.y[-1])}, at most {number(max(line.y))}"


def draw_lines(lines: Sequence[Line], x_label: str, y_label: str, name: str, marks: Sequence[AxisMark] = ()) -> str:
    """Draws lines over a common axis, from 0 on or, if one has a high peak, on a logarithmic scale; returns the SVG.

    `name` is the figure's identifier.
    """
    figure = open_figure(5.4, 2.6, "--html")
    from matplotlib.ticker import MaxNLocator

    ax = figure.subplots()
    titles: dict[str, list[str]] = {}
    lines = [thinned(line) for line in lines]
    for order, line in enumerate(lines):
        colour = COLOURS[order % len(COLOURS)]
        ax.plot(line.x, line.y, color=colour, linewidth=1.4, label=line.name)
        points = ax.scatter(line.x, line.y, s=16, color=colour, linewidths=0)
        points.set_gid(f"points-{order}")
        titles[f"points-{order}"] = [
            f"{line.name}, {x_label} {x:g}: {number(y)} {y_label}" for x, y in zip(line.x, line.y, strict=True)
        ]
    for order, mark in enumerate(marks):
        drawn = ax.axvline(mark.place, color=mark.colour, linewidth=1.2, linestyle="--")
        drawn.set_gid(f"mark-{order}")
        titles[f"mark-{order}"] = [mark.text]
    logarithmic = _scale(ax, [y for line in lines for y in line.y])
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    ax.set_xlabel(x_label)
    ax.set_ylabel(f"{y_label}, logarithmic" if logarithmic else y_label)
    if len(lines) > 1:
        figure.legend(loc="outside upper left", ncols=5, frameon=False, fontsize=9)
    return to_svg(figure, ax, titles, name)


def _scale(ax: "Axes", values: Sequence[float]) -> bool:
    """Scales the y axis; returns whether its scale is logarithmic."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    highest, lowest = max(values), min(values)
    positive = [value for value in values if value > 0]
    logarithmic = lowest >= 0 and bool(positive) and highest > PEAKED * float(np.median(values))
    if logarithmic:
        # Values below the smallest decade are drawn between 0 and it.
        decade = math.ceil(math.log10(max(min(positive), highest / 1e4)))
        ax.set_yscale("symlog", linthresh=10**decade)
        ax.yaxis.set_major_locator(FixedLocator([0, *(10**power for power in range(decade, decade + 6))]))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    margin = 1.6 if logarithmic else 1.08
    ax.set_ylim(min(0.0, 1.08 * lowest), margin * highest if highest > 0 else None)
    return logarithmic


def draw_rows(rows: Mapping[str, Sequence[Bar]], x_label: str, legend: Mapping[str, str], name: str) -> str:
    """Draws named rows of bars over a common axis, the first at the top; returns the SVG.

    `legend` has the colour of each text that it shows.
    """
    figure = open_figure(7.6, 0.9 + 0.27 * len(rows), "--html")
    from matplotlib.patches import Patch

    ax = figure.subplots()
    titles: dict[str, list[str]] = {}
    for row, bars in enumerate(rows.values()):
        for place, bar in enumerate(bars):
            patch = ax.barh(row, bar.length, left=bar.start, height=0.72, color=bar.colour, linewidth=0)[0]
            patch.set_gid(f"bar-{row}-{place}")
            titles[f"bar-{row}-{place}"] = [bar.title]
    ax.set_yticks(range(len(rows)), [*rows], fontsize=9)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel(x_label)
    handles = [Patch(color=colour, label=text) for text, colour in legend.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    return to_svg(figure, ax, titles, name)


def to_svg(figure: "Drawing", ax: "Axes", titles: Mapping[str, Sequence[str]], name: str) -> str:
    """Returns a figure as an SVG element of a page: black becomes the text's colour, and `titles` come below the
    pointer, by the identifier of an artist and the number of its point; `name` makes identifiers unique on the page."""
    import matplotlib

    finish_figure(figure, ax)
    ax.set_facecolor("none")
    figure.patch.set_alpha(0.0)
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    root = etree.fromstring(out.getvalue())
    for part in root.findall(f"{SVG}metadata"):
        root.remove(part)
    _add_titles(root, titles)
    for element in root.iter():
        if "style" in element.attrib:
            element.attrib["style"] = element.attrib["style"].replace("#000000", "currentColor")
        for key, value in element.attrib.items():
            if key == "id":
                element.attrib[key] = f"{name}-{value}"
            elif key == LINK:
                element.attrib["href"] = value.replace("#", f"#{name}-")
                del element.attrib[key]
            elif "url(#" in value:
                element.attrib[key] = value.replace("url(#", f"url(#{name}-")
    for key in ("width", "height"):
        del root.attrib[key]
    root.attrib.update({"role": "img", "aria-labelledby": f"{name}-caption"})
    return etree.tostring(root, encoding="unicode")


def _add_titles(root: etree._Element, titles: Mapping[str, Sequence[str]]) -> None:
    groups = {group.get("id"): group for group in root.iter(f"{SVG}g")}
    for key, texts in titles.items():
        group = groups.get(key)
        if group is None:
            continue
        parts = list(group.iter(f"{SVG}use")) or [group]
        for part, text in zip(parts, texts, strict=False):
            title = etree.Element(f"{SVG}title")
            title.text = plain(text)
            part.insert(0, title)
