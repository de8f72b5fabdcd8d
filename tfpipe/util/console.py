"""Console output: log lines, a filter for TensorFlow's start-up messages, and lines of tables."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tfpipe.util.process import redirect

# Lines that TensorFlow 2.21 writes to stderr at every start, regardless of TF_CPP_MIN_LOG_LEVEL.
CHATTER = (
    r"^(WARNING: All log messages before absl|To enable the following instructions|[IW][0-9]{4} |E[0-9]{4} .*cuInit)"
)
# Control characters but line ends, and parts of pairs of UTF-16: neither SVG nor a font has them.
UNSHOWN = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def configure_logging(rank: int, debug: bool = False) -> None:
    """Logs to stderr: INFO and above on rank 0, only warnings, with their rank, on the others."""
    form = "%(message)s" if rank == 0 else f"rank {rank}: %(message)s"
    level = logging.DEBUG if debug else logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("tfpipe").setLevel(level)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Removes TensorFlow's start-up messages from stderr, including what C++ writes to it.

    The filter is a separate process, so that the last lines of a crash are not lost. On a terminal, Python writes past
    the filter, which would hold back redrawn lines such as progress bars.
    """
    sys.stderr.flush()
    try:
        keep = ["grep", "--line-buffered", "--text", "--invert-match", "--extended-regexp", CHATTER]
        filtering = subprocess.Popen(keep, stdin=subprocess.PIPE, stdout=2, env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError:
        yield
        return
    assert filtering.stdin is not None, "a pipe"
    before = sys.stderr
    try:
        with redirect(2, filtering.stdin.fileno()) as stderr:
            if os.isatty(stderr) and before is sys.__stderr__:
                sys.stderr = open(stderr, "w", buffering=1, errors="backslashreplace", closefd=False)
            try:
                yield
            finally:
                sys.stderr.flush()
                sys.stderr = before
                sys.stderr.flush()
    finally:
        filtering.stdin.close()
        # A process started in the meantime, e.g. by MPI, may still hold the pipe: the filter then runs on for it.
        with suppress(subprocess.TimeoutExpired):
            filtering.wait(timeout=1)


def line(widths: Sequence[int], *cells: object) -> str:
    """Returns a line of a table: the first cell at the left of its column, the others at the right of theirs.

    Cells beyond the columns follow as they are.
    """
    first, *others = map(str, cells)
    columns = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False)]
    return "".join([f"{first:{widths[0]}}", *columns, *others[len(columns) :]]).rstrip()


def figure(value: float) -> str:
    """Returns a number as a whole one, or below 10 with two digits that count: "1234", "3.2", "0.045"."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def extent(value: tuple[float, float, float], digits: int = 0) -> tuple[str, str]:
    """Returns two cells for a median, a low and a high value: the median, and the range."""
    median, low, high = value
    return f"{median:.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}"


def describe_autotune(choices: Iterable[tuple[str, str, float]]) -> str:
    """Returns AUTOTUNE's choices in words; each has a stage, "parallelism" or "buffer_size", and a value."""
    units = {"parallelism": "at once", "buffer_size": "buffered"}
    return ", ".join(f"{stage} {value:.0f} {units.get(parameter, parameter)}" for stage, parameter, value in choices)


def plain(text: str) -> str:
    """Returns a text, e.g. a class's name, as a picture or a page can show it: what no font has becomes U+FFFD."""
    return UNSHOWN.sub("\ufffd", text)
