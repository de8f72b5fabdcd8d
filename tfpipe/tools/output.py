"""Formats the lines of tables, and opens and writes figures, for the reports of the tools."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def open_figure(width: float, height: float, option: str = "--plot") -> "Figure":
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


def save_figure(figure: "Figure", axes: Sequence["Axes"], path: Path) -> None:
    """Writes a figure without the upper and right edges of its axes. Raises ConfigError if `path` cannot be written."""
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
