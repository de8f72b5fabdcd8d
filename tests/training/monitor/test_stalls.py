"""Steps that do not end: told while they are open, and when."""

import json
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.runs import wait_for
from tfpipe import World
from tfpipe.data.runtime.meter import Meter, OpenStep
from tfpipe.training.monitor import metrics
from tfpipe.training.monitor.stalls import STALL_REASONS, Stall, StallWatch


def told(meter: Meter, clock: Clock, watch: StallWatch, seconds: int) -> list[tuple[int, str]]:
    """(seconds open, part) of what is told while `seconds` go by, looked at every second."""
    result = []
    for _ in range(seconds):
        clock.now_s += 1
        stall = watch.poll()
        if stall is not None:
            assert (stall.epoch, stall.step) == (meter.epoch, meter.steps + 1)
            result.append((round(stall.seconds), stall.part))
    return result


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    meter = Meter(clock, clock.of_day)
    meter.steps = 7
    return meter


def watch_of(meter: Meter, *args: Path, rank: int = 0, limit_s: float | None = None, **how: Any) -> StallWatch:
    """A watch of a loader that is made up of its meter."""
    config = SimpleNamespace(data=SimpleNamespace(stall_timeout_s=limit_s))
    waits_for = lambda: "these files"  # noqa: E731
    loader = SimpleNamespace(meter=meter, world=World(rank, 4), config=config, waits_for=waits_for)
    return StallWatch(loader, *args, **how)


@pytest.mark.parametrize(
    ("recent_s", "expected"),
    [
        # The first step traces, and gets four times as long.
        ([], [120, 240, 480]),
        ([1, 1, 1], [30, 60, 120, 240, 480]),
        # Steps of 5 seconds may take 50 once; one slow step before does not count.
        ([5, 5, 5, 500], [50, 100, 200, 400]),
    ],
)
def test_a_stall_is_told_each_time_it_has_doubled(
    clock: Clock, meter: Meter, recent_s: list[float], expected: list[int]
) -> None:
    meter.recent_s.extend(recent_s)
    meter.open = OpenStep("input", clock())
    assert told(meter, clock, watch_of(meter), 500) == [(each, "input") for each in expected]


def test_waiting_and_computing_are_one_step_and_the_next_step_begins_anew(clock: Clock, meter: Meter) -> None:
    meter.recent_s.append(1)
    watch = watch_of(meter)
    meter.open = OpenStep("input", clock())
    assert told(meter, clock, watch, 40) == [(30, "input")]
    meter.open = meter.open._replace(part="step")
    assert told(meter, clock, watch, 40) == [(60, "step")]
    meter.open = None
    assert told(meter, clock, watch, 500) == []
    meter.steps += 1
    meter.open = OpenStep("input", clock())
    assert told(meter, clock, watch, 29) == []
    assert watch.poll() is None
    clock.now_s += 1
    assert watch.poll() == Stall(1, 9, 30, "input")


def test_the_thread_warns_and_writes_while_the_step_is_still_open(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter(clock)
    meter.steps = 41
    meter.recent_s.append(0.001)
    release = threading.Event()

    def take() -> None:
        meter.wait()
        release.wait(30)
        meter.take()

    taker = threading.Thread(target=take)
    path = tmp_path / "metrics.jsonl"
    with caplog.at_level(logging.WARNING), watch_of(meter, path, rank=3, after_s=0.2):
        taker.start()
        wait_for(lambda: meter.open)
        clock.now_s += 0.25
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
        clock.now_s += 0.5
        wait_for(lambda: path.read_text().count("\n") == 2)
        release.set()
        taker.join()
    first, second = (json.loads(line) for line in path.read_text().splitlines()[:2])
    assert first["epoch"] == 1 and first["step"] == 42
    assert first["stall"]["in"] == "input" and first["stall"]["rank"] == 3
    assert (first["stall"]["seconds"], second["stall"]["seconds"]) == (0.25, 0.75)
    assert "rank 3: step 42 has been open for 0.2" in caplog.text and "waiting for the input" in caplog.text


def test_the_thread_ends_with_what_it_watches_also_after_an_error() -> None:
    with pytest.raises(ValueError, match="of the training"), watch_of(Meter()):
        (thread,) = [each for each in threading.enumerate() if each.name == "stalls"]
        assert thread.daemon
        raise ValueError("of the training")
    assert not thread.is_alive()


def test_a_stall_ends_the_process_though_the_storage_of_the_run_hangs(
    clock: Clock, meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a reader hangs as a lost file server does."""
    monkeypatch.setattr(metrics, "WRITE_S", 0.01)
    os.mkfifo(path := tmp_path / "metrics.jsonl")
    said: list[str] = []
    with watch_of(meter, path, rank=2, limit_s=0.5, after_s=0.2, end=said.append):
        meter.recent_s.extend([0.01])
        meter.open = OpenStep("input", clock())
        clock.now_s += 0.6
        wait_for(lambda: said)
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # lets the thread go


@pytest.mark.parametrize(
    ("part", "recent_s", "limit_s"),
    [("input", [1.0], 600), ("step", [1.0], 770), ("input", [], 600), ("step", [], 2420)],
)
def test_a_stall_at_its_limit_ends_the_process_and_says_why(
    clock: Clock, meter: Meter, part: str, recent_s: list[float], limit_s: int
) -> None:
    """The first step of a process, of which none is recent, traces the graphs."""
    meter.recent_s.extend(recent_s)
    said = []
    watch = watch_of(meter, rank=2, limit_s=600, name="test batch", end=said.append)
    assert watch.at_limit() is None
    meter.open = OpenStep(part, clock())
    clock.now_s += limit_s - 1
    assert watch.at_limit() is None
    clock.now_s += 1
    assert watch.at_limit() == Stall(1, 8, limit_s, part)
    assert watch_of(meter, rank=2).at_limit() is None
    waits = []
    watch._done = SimpleNamespace(wait=waits.append)
    watch._run()
    assert waits == [3]
    reason = "these files" if part == "input" else "this rank's own step does not end, or another rank has stopped"
    assert said == [
        f"rank 2: test batch 8 has been open for {limit_s:.1f} seconds, {STALL_REASONS[part]}: {reason}; "
        "data.stall_timeout_s is how long to wait"
    ]
