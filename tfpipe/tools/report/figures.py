"""The figures of a run's page, as SVG that takes the page's colours and shows the numbers below the pointer."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from tfpipe.errors import counted
from tfpipe.util.console import plain

# Readable on white and on black.
COLOURS = ("#3b82c4", "#e07b39", "#3f9e5f", "#c4514f", "#8d6cc0", "#a5803d", "#c766a8", "#5f8f98")
RED, GRAY = "#c4514f", "#8f9aa3"
# Pixels of a figure of lines and of a timeline, of the margins below and at the right, of a line of text and a letter.
LINES, TIMELINE, HEIGHT, BELOW, RIGHT = 540, 760, 200, 38, 14
TEXT, LETTER = 16, 6.8
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


def thin(line: Line) -> Line:
    """Returns a line of at most POINTS points, each the mean of as many neighbouring ones."""
    if len(line.x) <= POINTS:
        return line
    x, y = ([float(np.mean(part)) for part in np.array_split(values, POINTS)] for values in (line.x, line.y))
    return Line(line.name, x, y)


def chosen_ranks(lines: Sequence[Line]) -> list[Line]:
    """Returns the lines of all ranks or, of many, those with the highest means, and the median of all."""
    if len(lines) <= RANKS:
        return list(lines)
    highest = sorted(lines, key=lambda line: -float(np.mean(line.y)))[: RANKS - 1]
    median = np.median([line.y for line in lines], axis=0).tolist()
    return [*highest, Line(f"median of {counted(len(lines), 'rank')}", lines[0].x, median)]


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


class Scale(NamedTuple):
    """A way from values to pixels, with round values between its ends."""

    pixel: Callable[[float], float]
    ticks: Sequence[float]


def linear(low: float, high: float, start: float, end: float, *, whole: bool = False) -> Scale:
    """Returns the axis of the values from `low` to `high` between two pixels, with about five ticks."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(power * digit for digit in (1, 2, 5, 10) if 6 * power * digit >= span)
    step = max(1.0, step) if whole else step
    ticks = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Scale(lambda value: start + (end - start) * (value - low) / span, ticks)


def peak_scale(values: Sequence[float], start: float, end: float) -> Scale | None:
    """Returns a logarithmic axis from 0 on, if the values have a high peak and none is negative."""
    positive = [value for value in values if value > 0]
    if min(values) < 0 or not positive or max(values) <= PEAKED * float(np.median(values)):
        return None
    # Values below the smallest decade are drawn between 0 and it.
    decade = 10.0 ** math.ceil(math.log10(max(min(positive), max(values) / 1e4)))

    def place(value: float) -> float:
        return value / decade if value < decade else 1 + math.log10(value / decade)

    top = place(1.6 * max(values))
    ticks = [0.0, *(decade * 10**power for power in range(6) if decade * 10**power <= max(values))]
    return Scale(lambda value: start + (end - start) * place(value) / top, ticks)


def draw_lines(lines: Sequence[Line], x_label: str, y_label: str, name: str, marks: Sequence[AxisMark] = ()) -> str:
    """Draws lines over a common axis, from 0 on or, if one has a high peak, on a logarithmic scale; returns the SVG.

    `name` is the figure's identifier.
    """
    colours = COLOURS * len(lines)
    top, parts = _legend([(line.name, colours[row]) for row, line in enumerate(lines)] if len(lines) > 1 else [], LINES)
    xs, ys = ([each for line in lines for each in getattr(line, axis)] for axis in ("x", "y"))
    left, right, bottom = 72, LINES - RIGHT, top + HEIGHT
    across = linear(min(xs), max(xs), left + 8, right - 8, whole=True)
    logarithmic = peak_scale(ys, bottom, top)
    down = logarithmic or linear(min(0.0, 1.08 * min(ys)), 1.08 * max(ys) if max(ys) > 0 else 0.0, bottom, top)
    for tick in down.ticks:
        parts.append(_text(left - 6, down.pixel(tick) + 4, number(tick), "end"))
        parts.append(_rule(left - 4, down.pixel(tick), left, down.pixel(tick)))
    middle, label = (top + bottom) / 2, f"{y_label}, logarithmic" if logarithmic else y_label
    parts.append(_text(12, middle, label, more=f' transform="rotate(-90 12 {middle})"'))
    parts += [_rule(left, top, left, bottom), *_across(across, left, right, bottom, x_label)]
    for mark in marks:
        x = across.pixel(mark.place)
        path = f'd="M{x:.1f} {top}V{bottom}" stroke="{mark.colour}" stroke-dasharray="4 3" stroke-width="1.4"'
        parts.append(_with_title("path", path, mark.text))
    for row, line in enumerate(map(thin, lines)):
        points = [(across.pixel(x), down.pixel(y)) for x, y in zip(line.x, line.y, strict=True)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colours[row]}" stroke-width="1.6"/>')
        for (x, y), step, value in zip(points, line.x, line.y, strict=True):
            title = f"{line.name}, {x_label} {step:g}: {number(value)} {y_label}"
            parts.append(_with_title("circle", f'cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colours[row]}"', title))
    return _svg(parts, LINES, bottom + BELOW, name)


def draw_rows(rows: Mapping[str, Sequence[Bar]], x_label: str, legend: Mapping[str, str], name: str) -> str:
    """Draws named rows of bars over a common axis, the first at the top; returns the SVG.

    `legend` has the colour of each text that it shows.
    """
    top, parts = _legend(legend.items(), TIMELINE)
    left, right, bottom = 12 + LETTER * max(map(len, rows)), TIMELINE - RIGHT, top + 20 * len(rows)
    bars = [bar for row in rows.values() for bar in row]
    ends = [0.0, *(bar.start for bar in bars), *(bar.start + bar.length for bar in bars)]
    across = linear(min(ends), max(ends), left, right)
    for row, (text, of_row) in enumerate(rows.items()):
        parts.append(_text(left - 6, top + 20 * row + 14, text, "end"))
        for bar in of_row:
            x, width = across.pixel(bar.start), across.pixel(bar.start + bar.length) - across.pixel(bar.start)
            place = f'x="{x:.1f}" y="{top + 20 * row + 3}" width="{width:.2f}" height="14"'
            parts.append(_with_title("rect", f'{place} fill="{bar.colour}"', bar.title))
    return _svg([*parts, *_across(across, left, right, bottom, x_label)], TIMELINE, bottom + BELOW, name)


def _across(axis: Scale, left: float, right: float, bottom: float, label: str) -> list[str]:
    parts = [_rule(left, bottom, right, bottom), _text((left + right) / 2, bottom + 33, label)]
    for tick in axis.ticks:
        x = axis.pixel(tick)
        parts += [_rule(x, bottom, x, bottom + 4), _text(x, bottom + 17, number(tick))]
    return parts


def _legend(texts: Iterable[tuple[str, str]], width: float) -> tuple[int, list[str]]:
    """Returns the height of a legend of texts with their colours, and its parts."""
    parts = list[str]()
    x, y = 72.0, 14
    for text, colour in texts:
        length = 26 + LETTER * len(text)
        if x > 72 and x + length > width:
            x, y = 72.0, y + TEXT
        parts.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, y, text, "start"))
        x += length
    return (y + 8 if parts else 8), parts


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(plain(text))}</text>'


def _with_title(shape: str, attributes: str, title: str) -> str:
    """Returns a shape with a text below the pointer."""
    return f"<{shape} {attributes}><title>{escape(plain(title))}</title></{shape}>"


def _rule(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="currentColor"/>'


def _svg(parts: Sequence[str], width: int, height: float, name: str) -> str:
    """Returns the SVG element of a page; its text is the element NAME-caption."""
    head = f'viewBox="0 0 {width} {height}" font-size="12" role="img" aria-labelledby="{name}-caption"'
    return f"<svg {head}>{''.join(parts)}</svg>"
