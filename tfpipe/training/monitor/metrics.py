"""metrics.jsonl: the figures of a run, one line per epoch, interval and stall."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfpipe.util.json_text import to_json
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
# Only "\n" ends a line; the last one may lack it, if a crash cut it off.
LINE = re.compile(r"[^\n]*\n|[^\n]+")


@retried
def append(path: Path, line: Mapping[str, Any]) -> None:
    """Appends a line in a single write, since StallWatch writes from another thread."""
    with path.open("ab", buffering=0) as file:
        file.write(to_json(line).encode() + b"\n")


def parse(line: str) -> dict[str, Any]:
    """Returns the figures of a line. Raises ValueError if it is damaged: cut off, or not one of a run's."""
    figures = json.loads(line)
    if not (
        line.endswith("\n") and isinstance(figures, dict) and {int} == {type(figures.get(k)) for k in ("epoch", "step")}
    ):
        raise ValueError("no object with an epoch and a step")
    return figures


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines' figures, and names the damaged ones in warnings. Raises OSError if the file cannot be read."""
    for number, line in enumerate(lines(path), start=1):
        try:
            figures = parse(line)
        except ValueError:
            warn_damaged(path, number, line)
        else:
            yield figures


def lines(path: Path) -> list[str]:
    """Returns the lines of a run's record, which may be damaged, with their ends. Raises OSError."""
    return LINE.findall(path.read_text(errors="surrogateescape"))


def warn_damaged(path: Path, number: int, line: str) -> None:
    """Warns that line `number`, from 1, is damaged, e.g. by a kill or a full disk, and left out."""
    logger.warning("%s: line %d is damaged, and left out: %s", path, number, ascii(line.rstrip("\n")[:60]))


def is_epoch(line: Mapping[str, Any]) -> bool:
    """Returns whether a line describes an epoch."""
    return "interval" not in line and "stall" not in line
