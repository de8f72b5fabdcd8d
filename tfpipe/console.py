"""What a terminal sees beside the results: log lines, and TensorFlow's own chatter kept away."""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# What TensorFlow 2.21 writes to stderr at every start, whatever TF_CPP_MIN_LOG_LEVEL says.
CHATTER = re.compile(rb"^(WARNING: All log messages before absl|To enable the following instructions|[IWE]\d{4} )")


def configure_logging(rank: int, debug: bool = False) -> None:
    """Log lines to stderr: everything from rank 0, warnings with their rank from the others."""
    form = "%(message)s" if rank == 0 else f"rank {rank}: %(message)s"
    level = logging.DEBUG if debug else logging.INFO if rank == 0 else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("tfpipe").setLevel(level)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Holds stderr back, also what C++ writes to it, and lets through what is not TensorFlow's start-up chatter."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not CHATTER.match(line):
                    os.write(2, line)
