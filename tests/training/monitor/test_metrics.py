"""metrics.jsonl: what is written is read again, and a damaged line is named and left out."""

import math
from pathlib import Path

import pytest

from tfpipe.tools.report.runs import load_run
from tfpipe.training.monitor.metrics import append, is_epoch, read

ONE, TWO = ({"epoch": 1, "step": step, "interval": {"stages": [], "seconds": step}} for step in (5, 10))


def test_the_report_leaves_damaged_lines_out_and_names_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, ONE)
    with path.open("ab") as file:
        file.write(b'{"epoch": 1, "step": 7, "inter')
    append(path, {"epoch": 1, "step": 8, "interval": {}})  # the run that resumed after the kill
    append(path, TWO)
    assert list(read(path)) == [ONE, TWO]
    assert load_run(tmp_path).intervals == (ONE["interval"], TWO["interval"])
    assert f'{path}: line 2 is damaged, and left out: \'{{"epoch": 1, "step": 7, "inter{{' in caplog.text


def test_a_loss_of_nan_is_written_as_null(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", {"epoch": 1, "step": 5, "loss": math.nan, "top1": math.inf})
    assert list(read(tmp_path / "metrics.jsonl")) == [{"epoch": 1, "step": 5, "loss": None, "top1": None}]


def test_a_last_line_without_its_end_is_damaged(tmp_path: Path) -> None:
    """What is there reads as a line, and step 51 may have been 512."""
    path = tmp_path / "metrics.jsonl"
    append(path, ONE)
    with path.open("ab") as file:
        file.write(b'{"step": 51, "epoch": 3}')
    assert list(read(path)) == [ONE]


def test_an_epochs_line_is_told_from_those_of_intervals_and_stalls() -> None:
    assert is_epoch({"epoch": 1, "step": 5, "loss": 0.5})
    assert not is_epoch(ONE) and not is_epoch({"epoch": 1, "step": 5, "stall": {"seconds": 31.0}})
