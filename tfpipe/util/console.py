"""Console output besides the results: log lines, and a filter for TensorFlow's start-up messages."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Lines that TensorFlow 2.21 writes to stderr at every start, regardless of TF_CPP_MIN_LOG_LEVEL.
CHATTER = (
    r"^(WARNING: All log messages before absl|To enable the following instructions|[IW][0-9]{4} |E[0-9]{4} .*cuInit)"
)


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
    stderr = os.dup(2)
    try:
        keep = ["grep", "--line-buffered", "--text", "--invert-match", "--extended-regexp", CHATTER]
        filtering = subprocess.Popen(keep, stdin=subprocess.PIPE, stdout=stderr, env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError:
        os.close(stderr)
        yield
        return
    assert filtering.stdin is not None, "a pipe"
    os.dup2(filtering.stdin.fileno(), 2)
    before = sys.stderr
    if os.isatty(stderr) and before is sys.__stderr__:
        sys.stderr = open(stderr, "w", buffering=1, errors="backslashreplace", closefd=False)
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = before
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        filtering.stdin.close()
        # A process started in the meantime, e.g. by MPI, may still hold the pipe: the filter then runs on for it.
        with suppress(subprocess.TimeoutExpired):
            filtering.wait(timeout=1)
