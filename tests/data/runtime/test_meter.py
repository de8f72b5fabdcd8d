"""The meter splits a step's time and sums up a loop's waits, by clocks that tests set."""

import json

import pytest

from tests.support.clock import Clock
from tfpipe.data.runtime.autotune import Stage
from tfpipe.data.runtime.meter import Meter, OpenStep, StepTimes


class Batches:
    """A source of batches that takes its time."""

    def __init__(self, clock: Clock, wait_s: float, meter: Meter) -> None:
        self.clock, self.wait_s, self.meter = clock, wait_s, meter
        self.seen: OpenStep | None = None

    def __call__(self) -> str:
        self.seen = self.meter.open
        self.clock.now_s += self.wait_s
        return "batch"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    meter = Meter(clock, clock.of_day)
    meter.steps = 40
    return meter


def test_a_step_is_split_exactly(clock: Clock, meter: Meter) -> None:
    batches = Batches(clock, 0.25, meter)
    clock.now_s += 0.5  # callbacks
    began_s, ready_at_s = clock.now_s, clock.of_day() + 0.125
    assert meter.take(batches, lambda _: ready_at_s) == "batch"
    assert batches.seen == OpenStep("input", began_s) and meter.open == OpenStep("step", began_s)
    clock.now_s += 2
    times = meter.finish(reduce_s=0.75)
    step = times.read()
    assert step == StepTimes(step_s=2.75, wait_s=0.25, compute_s=1.25, reduce_s=0.75, delay_s=0.125)
    assert step.own_s == 2
    assert (meter.steps, meter.open, meter.last, list(meter.recent_s)) == (41, None, times, [2.25])


def test_steps_leave_no_gap_between_them_but_a_restart_does(clock: Clock, meter: Meter) -> None:
    batches = Batches(clock, 1, meter)

    def step() -> float:
        clock.now_s += 3
        meter.take(batches)
        return meter.finish(0).step_s

    assert [step(), step()] == [4, 4]
    clock.now_s += 100  # a test pass
    meter.begin_epoch(2)
    assert step() == 4 and meter.epoch == 2


def test_clocks_that_disagree_make_no_time_negative(clock: Clock, meter: Meter) -> None:
    meter.take(Batches(clock, 0, meter), lambda _: clock.of_day() + 1)
    step = meter.finish(reduce_s=0.001).read()
    assert (step.compute_s, step.delay_s) == (0, 0)


def test_waits_delays_and_rates_are_those_of_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    work = [Stage("read", 20, 6000.0, 64.0)]
    monkeypatch.setattr("tfpipe.data.runtime.meter.stages", lambda *_: work)
    monkeypatch.setattr("tfpipe.data.runtime.meter.queued", lambda _: 2)
    seconds, time_of_day = [100.0], [5000.0]
    meter = Meter(lambda: seconds[0], lambda: time_of_day[0])

    def take(wait_s: float, ready_at_s: float) -> None:
        def wait() -> None:
            seconds[0] += wait_s

        meter.take(wait, lambda _: ready_at_s)

    take(7.0, 4000.0)
    seconds[0] = 101.0
    meter.restart()
    take(0.5, 4999.0)
    take(1.5, 5000.0)
    time_of_day[0] = 5010.0
    take(0.0, 5008.0)
    seconds[0] = 105.0
    found = meter.stats(8, iter([]), ["read"])
    assert (found["batches"], found["seconds"], found["wait_s"], found["wait_fraction"]) == (3, 4.0, 2.0, 0.5)
    assert found["queue"] == 2 and found["images_per_second"] == 6.0 and found["delay_s"] == pytest.approx(1.0)
    assert found["stages"] == {"read": {"elements": 20, "per_second": 5.0, "busy": 1.5, "parallelism": 64.0}}
    assert json.loads(json.dumps(found)) == found


def test_without_the_time_of_a_batch_there_is_no_delay() -> None:
    meter = Meter()
    meter.take(lambda: None)
    found = meter.stats(8, None, ["read"])
    assert "delay_s" not in found and found["stages"] == {}
