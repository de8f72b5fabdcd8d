"""Formats the lines of tables, and texts of figures, for the reports of the tools."""

import re
from collections.abc import Iterable, Sequence

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


def plain(text: str) -> str:
    """Returns a text, e.g. a class's name, as a picture or a page can show it: what no font has becomes U+FFFD."""
    return UNSHOWN.sub("\ufffd", text)
