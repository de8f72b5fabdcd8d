"""The figures of a run's page, as SVG that takes the page's colours and tells the numbers below the pointer."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from lxml import etree

from tfpipe.tools.output import open_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
OPTION = "--html"
# Readable on white and on black.
COLOURS = ("#3b82c4", "#e07b39", "#3f9e5f", "#c4514f", "#8d6cc0", "#a5803d", "#c766a8", "#5f8f98")
# Points of a line: longer runs are averaged over neighbouring intervals.
POINTS = 120
# Ranks that are drawn each by itself; of more, those that wait longest, and the median of all.
RANKS = 8


class Line(NamedTuple):
    """A line of a figure."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Bar(NamedTuple):
    """A part of a row of a timeline."""

    start: float
    length: float
    colour: str
    title: str  # shown below the pointer


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


def draw_lines(
    lines: Sequence[Line], x_label: str, y_label: str, name: str, marks: Mapping[float, str] | None = None
) -> str:
    """Draws lines over a common axis from 0 on; returns the SVG.

    `name` is the figure's identifier; `marks` are texts at places of the x axis, e.g. of stalls.
    """
    figure = open_figure(5.4, 2.6, OPTION)
    from matplotlib.ticker import MaxNLocator

    ax = figure.subplots()
    titles: dict[str, list[str]] = {}
    for number, line in enumerate(map(thinned, lines)):
        colour = COLOURS[number % len(COLOURS)]
        ax.plot(line.x, line.y, color=colour, linewidth=1.4, label=line.name)
        points = ax.scatter(line.x, line.y, s=16, color=colour, linewidths=0)
        points.set_gid(f"points-{number}")
        titles[f"points-{number}"] = [
            f"{line.name}, {x_label} {x:g}: {y:.4g} {y_label}" for x, y in zip(line.x, line.y, strict=True)
        ]
    for number, (place, text) in enumerate((marks or {}).items()):
        mark = ax.axvline(place, color="#c4514f", linewidth=1.2, linestyle="--")
        mark.set_gid(f"mark-{number}")
        titles[f"mark-{number}"] = [text]
    highest = max(max(line.y) for line in lines)
    ax.set_ylim(min(0.0, *(1.08 * min(line.y) for line in lines)), 1.08 * highest if highest > 0 else None)
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    if len(lines) > 1:
        figure.legend(loc="outside upper left", ncols=5, frameon=False, fontsize=8)
    return to_svg(figure, [ax], titles, name)


def draw_rows(rows: Mapping[str, Sequence[Bar]], x_label: str, colours: Mapping[str, str], name: str) -> str:
    """Draws rows of bars over a common time axis, the first at the top; `colours` are the legend's. Returns the SVG."""
    figure = open_figure(7.6, 0.9 + 0.27 * len(rows), OPTION)
    ax = figure.subplots()
    titles: dict[str, list[str]] = {}
    for number, bars in enumerate(rows.values()):
        for place, bar in enumerate(bars):
            patch = ax.barh(number, bar.length, left=bar.start, height=0.72, color=bar.colour, linewidth=0)[0]
            patch.set_gid(f"bar-{number}-{place}")
            titles[f"bar-{number}-{place}"] = [bar.title]
    ax.set_yticks(range(len(rows)), list(rows), fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel(x_label)
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=text) for text, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8)
    return to_svg(figure, [ax], titles, name)


def to_svg(figure: "Figure", axes: Sequence["Axes"], titles: Mapping[str, Sequence[str]], name: str) -> str:
    """Returns a figure as an SVG element of a page: black becomes the text's colour, and `titles` come below the
    pointer, by the identifier of an artist and the number of its point; `name` makes identifiers unique on the page."""
    import matplotlib

    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
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
            title.text = "".join(letter if letter.isprintable() else "?" for letter in text)  # XML has no others
            part.insert(0, title)
