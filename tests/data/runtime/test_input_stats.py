"""What a loop over batches has waited for."""

import json

import pytest

from tfpipe.data.runtime.autotune import Stage
from tfpipe.data.runtime.input_stats import InputStats


def test_waits_delays_and_rates_are_those_of_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    work = [Stage("read", 20, 6000.0, 64.0)]
    monkeypatch.setattr("tfpipe.data.runtime.input_stats.stages", lambda *_: work)
    seconds, time_of_day = [100.0], [5000.0]
    stats = InputStats(8, lambda: seconds[0], lambda: time_of_day[0])
    seconds[0] = 101.0
    stats.restart()
    stats.add(0.5, 4999.0)
    stats.add(1.5, 5000.0)
    time_of_day[0] = 5010.0
    stats.add(0.0, 5008.0)
    seconds[0] = 105.0
    found = stats.read(iter([]), ["read"])
    assert (found["batches"], found["seconds"], found["wait_s"], found["wait_fraction"]) == (3, 4.0, 2.0, 0.5)
    assert found["images_per_second"] == 6.0 and found["delay_s"] == pytest.approx(1.0)
    assert found["stages"] == {"read": {"elements": 20, "per_second": 5.0, "busy": 1.5, "parallelism": 64.0}}
    assert json.loads(json.dumps(found)) == found


def test_without_the_time_of_a_batch_there_is_no_delay() -> None:
    stats = InputStats(8)
    stats.add(0.5)
    found = stats.read(None, ["read"])
    assert "delay_s" not in found and found["stages"] == {}
