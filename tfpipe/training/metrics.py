"""metrics.jsonl: the figures of a run, a line for each epoch, interval and stall."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line in one write, since the watch for stalls writes from a thread of its own."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def is_epoch(line: Mapping[str, Any]) -> bool:
    """Whether a line is of a whole epoch."""
    return "interval" not in line and "stall" not in line
