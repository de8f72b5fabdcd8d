"""What a terminal sees beside the results: log lines, and TensorFlow's own chatter kept away."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# What TensorFlow 2.21 writes to stderr at every start, whatever TF_CPP_MIN_LOG_LEVEL says.
CHATTER = (
    r"^(WARNING: All log messages before absl|To enable the following instructions|[IW][0-9]{4} |E[0-9]{4} .*cuInit)"
)


def configure_logging(rank: int, debug: bool = False) -> None:
    """Log lines to stderr: everything from rank 0, warnings with their rank from the others."""
    form = "%(message)s" if rank == 0 else f"rank {rank}: %(message)s"
    level = logging.DEBUG if debug else logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("tfpipe").setLevel(level)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Filters stderr, also what C++ writes to it, of TensorFlow's start-up chatter.

    Through another process, so that the last words of one that dies here are not lost. A terminal gets what Python
    writes at once: lines that are drawn anew, as progress is, would not pass the filter.
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
        # A process started meanwhile, as by MPI, may still hold the other end: then the filter stays with it.
        with suppress(subprocess.TimeoutExpired):
            filtering.wait(timeout=1)
