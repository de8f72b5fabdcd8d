"""The meter splits a step's time and sums up a loop's waits, by clocks that tests set."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tfpipe.data.runtime.autotune import Stage
from tfpipe.data.runtime.meter import Meter, OpenStep, StepTimes


def take(meter: Meter, clock: Clock, wait_s: float, *timing: float) -> None:
    """Takes a batch that is waited for."""
    meter.wait()
    assert meter.open == OpenStep("input", clock.now_s)
    clock.now_s += wait_s
    meter.take(*timing)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    meter = Meter(clock, clock.of_day)
    meter.steps = 40
    return meter


def test_a_step_is_split_exactly(clock: Clock, meter: Meter) -> None:
    meter.begin_epoch(1)
    with meter.calling():
        clock.now_s += 0.25
        with meter.leaving_out():  # a trace that begins
            clock.now_s += 8
        with meter.spending("one"):
            clock.now_s += 0.125
    clock.now_s += 0.125  # Keras' loop
    began_s, ready_at_s = clock.now_s, clock.of_day() + 0.625
    take(meter, clock, 0.75, ready_at_s, 0.5)
    assert meter.open == OpenStep("step", began_s)
    clock.now_s += 1.5
    times = meter.finish(reduce_s=0.75)
    step = times.read()
    assert step == StepTimes(
        **{"step_s": 2.75, "wait_s": 0.25, "transfer_s": 0.5, "compute_s": 0.75, "reduce_s": 0.75},
        **{"callbacks_s": 0.375, "rest_s": 0.125, "delay_s": 0.125},
    )
    assert step.own_s == 2 and meter.spent_s == {"one": 0.125}
    assert (meter.steps, meter.open, meter.last, list(meter.recent_s)) == (41, None, times, [2.25])


def test_steps_leave_no_gap_between_them_but_a_restart_does(clock: Clock, meter: Meter) -> None:
    def step() -> float:
        clock.now_s += 3
        take(meter, clock, 1)
        return meter.finish(0).step_s

    assert [step(), step()] == [4, 4]
    clock.now_s += 100  # a test pass
    meter.begin_epoch(2)
    assert step() == 4 and meter.epoch == 2


def test_clocks_that_disagree_make_no_time_negative(clock: Clock, meter: Meter) -> None:
    take(meter, clock, 0, clock.of_day() + 1, 1.0)
    step = meter.finish(reduce_s=0.001).read()
    assert (step.transfer_s, step.compute_s, step.reduce_s, step.delay_s) == (0, 0, 0, 0)


SECONDS = st.floats(0, 1e6)


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=5))
def test_the_parts_add_up_to_the_step_whatever_each_takes(steps: list[tuple[float, ...]]) -> None:
    """An epoch begins within the first step's callbacks; another clock measures the allreduce."""
    clock = Clock()
    meter = Meter(clock, clock.of_day)
    for number, (called_s, loop_s, wait_s, transfer_s, training_s, reduce_s) in enumerate(steps):
        with meter.calling():
            clock.now_s += called_s
            if number == 0:
                meter.begin_epoch(1)
            clock.now_s += called_s
        clock.now_s += loop_s
        take(meter, clock, wait_s, clock.of_day(), transfer_s)
        clock.now_s += training_s
        step_s, *parts, _ = step = meter.finish(reduce_s).read()
        assert min(step) >= 0 and sum(parts) == pytest.approx(step_s, abs=1e-6)
        assert step.callbacks_s == pytest.approx(called_s if number == 0 else 2 * called_s, abs=1e-6)
        assert step.rest_s == pytest.approx(loop_s, abs=1e-6)
        assert step.transfer_s == pytest.approx(min(transfer_s, wait_s), abs=1e-6)


def test_waits_delays_and_rates_are_those_of_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    work = [Stage("read", 20, 6000.0, 64.0)]
    monkeypatch.setattr("tfpipe.data.runtime.meter.stages", lambda *_: work)
    monkeypatch.setattr("tfpipe.data.runtime.meter.count_queued", lambda _: 2)
    seconds, time_of_day = [100.0], [5000.0]
    meter = Meter(lambda: seconds[0], lambda: time_of_day[0])

    def take(wait_s: float, ready_at_s: float) -> None:
        meter.wait()
        seconds[0] += wait_s
        meter.take(ready_at_s)

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
    meter.wait()
    meter.take()
    found = meter.stats(8, None, ["read"])
    assert "delay_s" not in found and found["stages"] == {}
