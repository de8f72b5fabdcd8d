"""Reads a run's directory: its config, the accounting of its intervals, and a trace."""

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.config import DataConfig, load_config
from tfpipe.data.runtime.parallelism import thread_budget
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.report.trace import XPROF, StageTime, Trace, find_trace, read_trace
from tfpipe.training.monitor.metrics import EVENTS, METRICS, read

logger = logging.getLogger(__name__)

CONFIG = "config.json"
# Written by tfpipe bench --profile instead of the accounting.
PIPELINE_FILE = "pipeline.json"
OF_RANK = "rank-[0-9]*"
STEP_PARTS = ("wait", "transfer", "compute", "reduce", "callbacks", "rest")
"""Parts of a step, which add up to it."""

Interval = Mapping[str, Any]
"""An "interval" entry of metrics.jsonl, written by training/accounting.py."""


class Load(NamedTuple):
    """The load of a rank's CPUs, on average."""

    cores: int
    busy: float  # share of the CPUs that the process keeps busy; the rest has no process, or another one
    queued: float  # runnable threads without a CPU, per CPU
    pipeline: float  # threads of the pipeline that are busy or queued, without those that read


@dataclass(frozen=True)
class Run:
    """A run of train.py, or of tfpipe bench --profile, which has a trace but no intervals."""

    folder: Path
    data: DataConfig | None  # the config's data section; None if config.json is missing
    trace: Trace | None
    intervals: tuple[Interval, ...]
    at_once: Mapping[str, int]  # concurrent calls allowed, by stage; a stage that is not listed has one

    @property
    def wait_fraction(self) -> float:
        """Share of the steps' time that they waited for input: over all intervals, else over the traced steps.

        NaN if there are neither.
        """
        if self.intervals:
            return self.mean("input_wait_fraction")
        return math.nan if self.trace is None else self.trace.wait_fraction

    @property
    def has_figures(self) -> bool:
        """Whether the run has an interval or a trace; without, it ended or was looked at before its first interval."""
        return bool(self.intervals) or self.trace is not None

    @property
    def threads(self) -> int:
        """Number of the pipeline's threads; if neither the config nor an interval says it, that of decode calls."""
        if self.data is None or (not isinstance(self.data.threads, int) and not self.intervals):
            return self.at_once.get("crop", 1)
        return thread_budget(self.data, World(threads=self.intervals[-1]["cores"] if self.intervals else 0))

    @property
    def reads(self) -> int:
        """Number of reads allowed at once."""
        return self.at_once.get("read", 1)

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """Times of the pipeline's stages in a trace, or in all intervals, where a crop is one stage."""
        if self.trace is not None:
            return self.trace.stages
        elements, busy_ms = self.sum_stages(), self.sum_stages("busy_ms")
        return tuple(StageTime(name, elements[name], busy_ms[name] / 1e3, by_python=False) for name in elements)

    @property
    def load(self) -> Load | None:
        """The load of the rank's CPUs; None without the accounting."""
        if not self.intervals:
            return None
        busy_s = sum(seconds for name, seconds in self.sum_stages("busy_ms").items() if name != "read") / 1e3
        shares = self.mean("cpu_fraction"), self.mean("queued_fraction")
        return Load(self.intervals[-1]["cores"], *shares, busy_s / self.total("seconds"))

    @property
    def parts(self) -> dict[str, float]:
        """Mean milliseconds of the parts of a step, which add up to it; {} if the intervals do not have all."""
        if not self.intervals or not all("rest_ms" in interval for interval in self.intervals):
            return {}
        return {name: self.mean(f"{name}_ms", "mean") for name in STEP_PARTS}

    @property
    def callbacks(self) -> dict[str, float]:
        """Mean milliseconds that a step spends in callbacks by name, the longest first."""
        steps, sums = self.total("steps"), Counter[str]()
        for interval in self.intervals:
            for name, spent_ms in interval["callbacks"].items():
                sums[name] += spent_ms * interval["steps"]
        return {name: total_ms / steps for name, total_ms in sums.most_common()}

    def mean(self, name: str, part: str | None = None) -> float:
        """Returns the mean of a figure over intervals, weighted by seconds, or of its `part`, e.g. "p90", by steps."""
        weights = [interval["seconds" if part is None else "steps"] for interval in self.intervals]
        values = [interval[name] if part is None else interval[name][part] for interval in self.intervals]
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)

    def sum_stages(self, figure: str | None = None) -> Counter[str]:
        """Returns, by stage, its elements in all intervals, or the sum of a figure of them, e.g. "busy_ms"."""
        sums = Counter[str]()
        for interval in self.intervals:
            for stage in interval["stages"]:
                sums[stage["stage"]] += stage["elements"] * (stage[figure] if figure else 1)
        return sums

    def total(self, name: str) -> float:
        """Returns the sum of a figure over the intervals."""
        return sum(interval[name] for interval in self.intervals)


class Ranks(NamedTuple):
    """The traces of a run's ranks."""

    folder: Path
    traces: tuple[Trace, ...]


def load_ranks(folder: Path) -> Ranks:
    """Reads the traces in a run's directory: that of rank 0 and those in the other ranks' folders.

    Raises ConfigError if there is none, or one whose batches were not recorded.
    """
    traces = tuple(map(read_trace, trace_paths(folder)))
    if not traces or not all(trace.recording.batches for trace in traces):
        raise ConfigError(
            f"{folder} has no trace with its batches: record it with --profile FIRST:END of train.py or of tfpipe bench"
        )
    return Ranks(folder, traces)


def trace_paths(folder: Path) -> list[Path]:
    """Returns the paths of the newest trace of each traced rank of a run, by rank."""
    others = sorted(folder.glob(OF_RANK), key=lambda path: int(path.name.removeprefix("rank-")))
    return [path for path in map(find_trace, [folder, *others]) if path is not None]


def load_run(folder: Path) -> Run:
    """Reads a run's directory; without xprof a trace is left out where there are intervals, which have a verdict too.

    Raises ConfigError if there is nothing to report on; the message says how to record something.
    """
    traced = find_trace(folder)
    intervals = _intervals(folder / METRICS)
    if traced is None and not intervals and not (folder / EVENTS).exists():
        raise ConfigError(
            f"{folder} has neither a trace nor a finished interval in metrics.jsonl, and no events.jsonl: give a run's "
            "directory, of train.py or of tfpipe bench --profile FIRST:END"
        )
    if traced is not None and intervals and find_spec("xprof") is None:
        logger.warning("%s is left out; it adds the stages' times and the slowest files: %s", traced, XPROF)
        traced = None
    # A rank's trace lies in a subfolder of the run's directory, which has the other files.
    run_dir = folder if (folder / CONFIG).exists() else folder.parent
    data = load_config(run_dir / CONFIG).data if (run_dir / CONFIG).exists() else None
    records = intervals or _intervals(run_dir / METRICS)
    pipeline = run_dir / PIPELINE_FILE
    stages = records[-1]["stages"] if records else json.loads(pipeline.read_text()) if pipeline.exists() else []
    at_once = {stage["stage"]: round(stage["parallelism"]) for stage in stages}
    return Run(folder, data, None if traced is None else read_trace(traced), intervals, at_once)


def _intervals(path: Path) -> tuple[Interval, ...]:
    if not path.exists():
        return ()
    return tuple(entry["interval"] for entry in read(path) if "interval" in entry)
