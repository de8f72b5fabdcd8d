"""The record of a run's events: rank 0 alone writes it, and a run does without."""

import json
import os
from pathlib import Path

import pytest

from tfpipe import World
from tfpipe.collectives.protocol import LostRankError
from tfpipe.errors import Stopped, TfpipeError
from tfpipe.training.monitor import metrics
from tfpipe.training.monitor.metrics import EVENTS, end_run, record, record_start, recorded_failures


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


@pytest.mark.parametrize(
    ("error", "ranks"),
    [
        pytest.param(TfpipeError("rank 1: cannot use /a"), [1], id="of-a-rank"),
        pytest.param(ValueError("no dog"), [0], id="of-any-rank"),
        pytest.param(Stopped("stopped"), [], id="a-stop"),
        pytest.param(LostRankError("rank 0: gone"), [], id="because-of-another-rank"),
    ],
)
def test_a_failure_is_recorded_once_by_the_rank_that_it_names(
    tmp_path: Path, error: Exception, ranks: list[int]
) -> None:
    record_start(tmp_path, World(), 0, 0)
    for rank in range(3):
        with pytest.raises(type(error)), recorded_failures(tmp_path, World(rank, 3)):
            raise error
        lines = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()[1:]]
        assert [line["reason"] for line in lines] == [str(error) for recorded in ranks if recorded <= rank]


def test_the_message_that_ends_a_run_is_recorded_by_rank_0_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    path = tmp_path / EVENTS
    monkeypatch.setattr(metrics, "end_process", lambda _: sizes.append(path.stat().st_size if path.exists() else 0))
    end_run(tmp_path / "never started", World(), "rank 0: no")
    assert not (tmp_path / "never started").exists()
    record_start(tmp_path, World(), 0, 0)
    for rank in (1, 0):
        end_run(tmp_path, World(rank, 2), f"rank {rank}: rank 2 on host a has not run for 15 seconds\nStack")
    (reason,) = [json.loads(line)["reason"] for line in path.read_text().splitlines()[1:]]
    assert reason == "rank 0: rank 2 on host a has not run for 15 seconds"
    assert sizes[2] > sizes[1]


def test_a_run_ends_though_the_storage_of_its_record_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a writer hangs as a lost file server does."""
    ended: list[str] = []
    monkeypatch.setattr(metrics, "end_process", ended.append)
    monkeypatch.setattr(metrics, "WRITE_S", 0.01)
    os.mkfifo(tmp_path / EVENTS)
    end_run(tmp_path, World(), "rank 0: no")
    assert ended == ["rank 0: no"]
    os.close(os.open(tmp_path / EVENTS, os.O_RDWR | os.O_NONBLOCK))  # lets the thread go
