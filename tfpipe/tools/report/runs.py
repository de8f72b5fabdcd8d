"""What a run has left behind: its config, the accounting of its intervals, and a trace."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfpipe.config import DataConfig, load_config
from tfpipe.errors import ConfigError
from tfpipe.tools.report.trace import Trace, find_trace, read_trace

CONFIG, METRICS = "config.json", "metrics.jsonl"
# What tfpipe bench --profile writes in place of the accounting.
PIPELINE = "pipeline.json"

Interval = Mapping[str, Any]
"""What training/accounting.py writes to metrics.jsonl under "interval"."""


@dataclass(frozen=True)
class Run:
    """A run of train.py, or of tfpipe bench --profile, which leaves a trace alone."""

    folder: Path
    data: DataConfig | None
    """None where config.json is missing."""
    trace: Trace | None
    intervals: tuple[Interval, ...]
    at_once: Mapping[str, int]
    """Calls of a stage that may be under way at once; a stage that is not there has one."""

    @property
    def wait_fraction(self) -> float:
        """Share of the steps' time that they waited for input: of all intervals, else of the traced steps."""
        if self.trace is not None and not self.intervals:
            return self.trace.wait_fraction
        return self.mean("input_wait_fraction")

    def mean(self, name: str, part: str | None = None) -> float:
        """Of a figure of the intervals, or a part of it such as "p90", weighted by their seconds or steps."""
        weights = [interval["seconds" if part is None else "steps"] for interval in self.intervals]
        values = [interval[name] if part is None else interval[name][part] for interval in self.intervals]
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)

    def total(self, name: str) -> float:
        """Of a figure of the intervals."""
        return sum(interval[name] for interval in self.intervals)


def load_run(folder: Path) -> Run:
    """Reads what is in a run's directory.

    Raises:
        ConfigError: there is nothing to report on; says what would leave something.
    """
    traced = find_trace(folder)
    intervals = _intervals(folder / METRICS)
    if traced is None and not intervals:
        raise ConfigError(
            f"{folder} has neither a trace nor a finished interval in metrics.jsonl: give a run's directory, of "
            "train.py or of tfpipe bench --profile FIRST:END"
        )
    # A rank's trace lies in a folder of the run's, which has the rest.
    whole = folder if (folder / CONFIG).exists() else folder.parent
    data = load_config(whole / CONFIG).data if (whole / CONFIG).exists() else None
    known = intervals or _intervals(whole / METRICS)
    stages = known[-1]["stages"] if known else _read_json(whole / PIPELINE)
    at_once = {each["stage"]: round(each["parallelism"]) for each in stages}
    return Run(folder, data, None if traced is None else read_trace(traced), intervals, at_once)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else []


def _intervals(path: Path) -> tuple[Interval, ...]:
    try:
        lines = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return ()
    # One being written, or cut off by a crash, has no end.
    found = (json.loads(line) for line in lines if line.endswith("\n"))
    return tuple(each["interval"] for each in found if "interval" in each)
