"""How many examples Hypothesis tries: a fifth in `make test`, all in `make test-full`."""

import os

FULL = os.environ.get("TFPIPE_TESTS") == "full"


def examples(count: int) -> int:
    """Returns `count` in the full run, otherwise a fifth of it, at least 10."""
    return count if FULL else max(10, count // 5)
