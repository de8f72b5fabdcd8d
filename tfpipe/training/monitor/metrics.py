"""metrics.jsonl: the figures of a run, one line per epoch, interval and stall."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfpipe.util.json_text import to_json
from tfpipe.util.retry import retried

METRICS = "metrics.jsonl"


@retried
def append(path: Path, line: Mapping[str, Any]) -> None:
    """Appends a line in a single write, since StallWatch writes from another thread."""
    with path.open("ab", buffering=0) as file:
        file.write(to_json(line).encode() + b"\n")


def is_epoch(line: Mapping[str, Any]) -> bool:
    """Returns whether a line describes an epoch."""
    return "interval" not in line and "stall" not in line
