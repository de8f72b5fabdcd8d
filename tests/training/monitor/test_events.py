"""The record of a run's events: rank 0 alone writes it, and a run does without."""

import json
from pathlib import Path

import pytest

from tfpipe import World
from tfpipe.training.monitor.events import EVENTS, record, record_start


def test_rank_0_appends_a_line_for_each_event(tmp_path: Path) -> None:
    record_start(tmp_path, World(), 30, 2)
    record(tmp_path, World(rank=1, size=2), "stop", by="SIGTERM")
    record(tmp_path, World(rank=0, size=2), "stop", step=31, epoch=2, by="SIGTERM")
    start, stop = map(json.loads, (tmp_path / EVENTS).read_text().splitlines())
    assert (start["event"], start["step"], start["epoch"], start["ranks"]) == ("start", 30, 2, 1)
    assert {"python", "keras", "numpy"} <= start["versions"].keys()
    assert stop["by"] == "SIGTERM" and stop["time"] >= start["time"] > 1.7e9


def test_a_record_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / EVENTS).mkdir()
    record(tmp_path, World(), "end", step=1, epoch=1)
    assert "cannot write" in caplog.text and "training continues" in caplog.text
