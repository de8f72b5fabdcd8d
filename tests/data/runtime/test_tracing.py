"""Traces: which steps they hold, and where they go."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tfpipe import World
from tfpipe.data.runtime.recording import TracedBatch
from tfpipe.data.runtime.tracing import Tracer, Window, trace_folder
from tfpipe.tools.report.trace import find_trace, read_trace


@pytest.mark.parametrize(("text", "window"), [("10:20", Window(10, 20)), ("0:1", Window(0, 1))])
def test_a_window_is_read(text: str, window: Window) -> None:
    assert Window.parse(text) == window


@pytest.mark.parametrize("text", ["", "10", "10:", ":20", "20:10", "5:5", "-1:4", "a:b", "1:2:3"])
def test_what_is_no_window_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=f'FIRST:END.*received "{text}"'):
        Window.parse(text)


def test_a_trace_holds_the_steps_of_its_window(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, Window(2, 5))
    for _ in range(9):
        tracer.begin()
        tracer.end()
    tracer.close()
    assert [step.number for step in read_trace(find_trace(tmp_path)).steps] == [2, 3, 4]
    assert tracer.steps == 9


def test_a_steps_wait_is_that_of_its_record(tmp_path: Path) -> None:
    """The thread that waits takes no batch itself, so that the profiler does not see its wait."""
    tracer = Tracer(tmp_path, Window(0, 3))
    for number in range(3):
        tracer.begin()
        times_s = (100.0, 100.0, 100.0 + number, 103.0, 0.0)
        tracer.end(TracedBatch(number, *times_s, np.zeros((1, 2), np.int64)))
    assert [step.wait_s for step in read_trace(find_trace(tmp_path)).steps] == [0, 1, 2]


def test_what_ends_early_leaves_a_shorter_trace(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, Window(1, 100))
    for _ in range(4):
        tracer.begin()
        tracer.end()
    assert find_trace(tmp_path) is None
    tracer.close()
    assert [step.number for step in read_trace(find_trace(tmp_path)).steps] == [1, 2, 3]


def test_before_its_window_nothing_is_traced(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, Window(5, 6))
    tracer.begin()
    tracer.end()
    tracer.close()
    assert find_trace(tmp_path) is None


def test_ranks_of_a_host_write_to_folders_of_their_own() -> None:
    folders = {trace_folder(Path("run"), World(rank, 3)) for rank in range(3)}
    assert folders == {Path("run"), Path("run/rank-1"), Path("run/rank-2")}


def test_what_reads_a_trace_is_named_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tfpipe")
    Tracer(tmp_path, Window(2, 5))
    assert not caplog.messages
    monkeypatch.setitem(sys.modules, "xprof", None)
    for rank in (0, 1):
        Tracer(tmp_path, Window(2, 5), rank)
    (said,) = caplog.messages
    assert "pip install 'tfpipe[profile]'" in said
