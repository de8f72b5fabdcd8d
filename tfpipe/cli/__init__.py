"""The command line: `tfpipe COMMAND` and `python train.py`."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code, as program.main does; Ctrl-C may come while that is imported."""
    try:
        from tfpipe.cli.program import main as run

        return run(argv)
    except KeyboardInterrupt:
        print("tfpipe: error: interrupted", file=sys.stderr, flush=True)
        return 130
