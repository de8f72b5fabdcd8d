"""Formats the lines of tables, and opens and writes figures, for the reports of the tools."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Control characters but line ends, and parts of pairs of UTF-16: neither SVG nor a font has them.
UNSHOWN = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def line(widths: Sequence[int], *cells: object) -> str:
    """Returns a line of a table: the first cell at the left of its column, the others at the right of theirs.

    Cells beyond the columns follow as they are.
    """
    first, *others = map(str, cells)
    columns = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False)]
    return "".join([f"{first:{widths[0]}}", *columns, *others[len(columns) :]]).rstrip()


def extent(value: tuple[float, float, float], digits: int = 0) -> tuple[str, str]:
    """Returns two cells for a median, a low and a high value: the median, and the range."""
    median, low, high = value
    return f"{median:.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}"


def autotuned(choices: Iterable[tuple[str, str, float]]) -> str:
    """Returns AUTOTUNE's choices in words; each has a stage, "parallelism" or "buffer_size", and a value."""
    units = {"parallelism": "at once", "buffer_size": "buffered"}
    return ", ".join(f"{stage} {value:.0f} {units.get(parameter, parameter)}" for stage, parameter, value in choices)


def open_figure(width: float, height: float, option: str) -> "Figure":
    """Returns an empty figure of that size in inches.

    Raises ConfigError, on behalf of a command's `option`, if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"{option} needs matplotlib ({error}): pip install 'tfpipe[profile]'") from error
    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: str) -> str:
    """Returns a text, e.g. a class's name, as a picture or a page can show it: what no font has becomes U+FFFD."""
    return UNSHOWN.sub("\ufffd", text)


def finish_figure(figure: "Figure", ax: "Axes") -> None:
    """Hides the upper and right edges of the axes, and makes all texts `plain`, also those between dollar signs."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator

    ax.spines[["top", "right"]].set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        names = [label.get_text() for label in axis.get_ticklabels()]
        shown = list(map(plain, names))
        if shown != names and isinstance(axis.get_major_locator(), FixedLocator):
            axis.set_ticklabels(shown)
    for text in figure.findobj(Text):
        assert isinstance(text, Text), "no other artist is asked for"
        text.set_parse_math(False)
        text.set_text(plain(text.get_text()))
