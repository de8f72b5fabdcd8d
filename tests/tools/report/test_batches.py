"""The table of the traced batches: a sample that was late is named, with the batch that waited for it."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support.late import LATE_S, delay_one
from tests.support.recorded import unpack
from tfpipe import Config, World
from tfpipe.cli import main
from tfpipe.data.runtime.tracing import Window
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import sample_names
from tfpipe.tools.bench.bench import trace


def test_samples_are_timed_in_a_parallel_pipeline_too(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(parallel={"read": 2, "decode": 1}, prefetch_buffer_size=1)
    # Samples are timed from the first step on; batches that are made before it have been used when the window begins.
    late = delay_one(monkeypatch, config, 140)
    trace(config, World(), Window(8, 19), tmp_path / "run")
    outs = [str(tmp_path / name) for name in ("b.parquet", "t.json", "b.csv")]
    assert main(["report", str(tmp_path / "run"), "--per-batch", outs[0], "--trace", outs[1]]) == 0
    rows = pyarrow.parquet.read_table(outs[0]).to_pylist()
    assert main(["report", str(tmp_path / "run"), "--per-batch", outs[2]]) == 0
    assert Path(outs[2]).read_text().count("\n") == 1 + len(rows)
    assert [row["batch"] for row in rows] == list(range(8, 19))
    # The window's first batches were read before it, and are known all the same.
    unknown = [row for row in rows if row["slowest_stage"] not in ("read", "decode") or not row["slowest_file"]]
    assert unknown == []
    (named,) = {row["slowest_file"] for row in rows if "140" in row["positions"].split()}
    assert named == late
    events = json.loads(Path(outs[1]).read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    images = [span for span in spans if span["name"] == "image"]
    assert images and all("position" in span["args"] for span in images)
    # Some marks are outside the calls that the profiler sees, so not every call is known to be of its sample.
    calls = [span for span in spans if span["name"] == "read call"]
    known = [span["args"]["position"] for span in calls if "position" in span["args"]]
    assert len(known) > len(calls) / 2
    long = {span["args"]["position"] for span in calls if span["dur"] >= 1e6 * LATE_S and "position" in span["args"]}
    split = load_split(config.data, "train", World())
    assert set(sample_names(split, sorted(long))) <= {late}


def test_a_trace_without_batches_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unpack("decode", tmp_path)
    assert main(["report", str(folder), "--per-batch", str(tmp_path / "b.csv")]) != 0
    assert "--profile" in capsys.readouterr().err and not (tmp_path / "b.csv").exists()
    assert main(["report", str(folder), "--trace", str(tmp_path / "t.json")]) != 0
