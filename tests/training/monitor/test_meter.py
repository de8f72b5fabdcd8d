"""The meter splits a step's time, by clocks that tests set."""

from collections.abc import Iterator

import pytest

from tests.support.clock import Clock
from tfpipe.training.monitor.meter import Meter, OpenStep, Step


class Batches(Iterator[str]):
    """An iterator that takes its time."""

    def __init__(self, clock: Clock, wait_s: float, meter: Meter) -> None:
        self.clock, self.wait_s, self.meter = clock, wait_s, meter
        self.seen: OpenStep | None = None

    def __next__(self) -> str:
        self.seen = self.meter.open
        self.clock.now_s += self.wait_s
        return "batch"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    return Meter(40, clock, clock.of_day)


def test_a_step_is_split_exactly(clock: Clock, meter: Meter) -> None:
    batches = Batches(clock, 0.25, meter)
    clock.now_s += 0.5  # callbacks
    began_s, ready_at_s = clock.now_s, clock.of_day() + 0.125
    assert meter.take(batches) == "batch"
    assert batches.seen == OpenStep("input", began_s) and meter.open == OpenStep("step", began_s)
    clock.now_s += 2
    times = meter.finish(reduce_s=0.75, ready_at_s=ready_at_s)
    step = times.read()
    assert step == Step(step_s=2.75, wait_s=0.25, compute_s=1.25, reduce_s=0.75, delay_s=0.125)
    assert step.own_s == 2
    assert (meter.steps, meter.open, meter.last, list(meter.recent_s)) == (41, None, times, [2.25])


def test_steps_leave_no_gap_between_them_but_a_restart_does(clock: Clock, meter: Meter) -> None:
    batches = Batches(clock, 1, meter)

    def step() -> float:
        clock.now_s += 3
        meter.take(batches)
        return meter.finish(0, 0).step_s

    assert [step(), step()] == [4, 4]
    clock.now_s += 100  # a test pass
    meter.restart()
    assert step() == 4


def test_clocks_that_disagree_make_no_time_negative(clock: Clock, meter: Meter) -> None:
    meter.take(Batches(clock, 0, meter))
    step = meter.finish(reduce_s=0.001, ready_at_s=clock.of_day() + 1).read()
    assert (step.compute_s, step.delay_s) == (0, 0)
