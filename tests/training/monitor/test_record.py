"""Callbacks measure a training and show its progress."""

import errno
import io
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.support.clock import Clock
from tfpipe.data.order.schedule import Phase, Schedule
from tfpipe.training.monitor import record
from tfpipe.training.monitor.record import WARMUP_STEPS, Display, Throughput, clock, metrics_line


@pytest.fixture(autouse=True)
def clock_(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("tfpipe.training.monitor.record.time", SimpleNamespace(perf_counter=made, monotonic=made))
    return made


def throughput(steps_per_epoch: int) -> Throughput:
    made = Throughput(Schedule((Phase(0, steps_per_epoch, 5),)), 2, steps_per_epoch)
    made.set_model(SimpleNamespace(meter=SimpleNamespace(waited_s=0.0, clock=record.time.perf_counter)))
    made.on_epoch_begin(0)
    return made


def test_the_rate_leaves_out_the_first_steps_and_counts_the_wait(clock_: Clock) -> None:
    measured = throughput(100)
    for step in range(WARMUP_STEPS):
        clock_.now_s += 7
        measured.model.meter.waited_s += 6
        measured.on_train_batch_end(step)
        assert measured.rates() == {}
        assert measured.seconds_left(5) is None
    for step in range(10):
        clock_.now_s += 0.5
        measured.model.meter.waited_s += 0.2
        measured.on_train_batch_end(step)
    assert measured.rates() == pytest.approx({"images_per_second": 20, "input_wait_fraction": 0.4})
    assert measured.seconds_left(30) == pytest.approx(15)
    logs = {}
    measured.on_epoch_end(0, logs)
    assert logs["seconds"] == pytest.approx(7 * WARMUP_STEPS + 5)


def test_even_an_epoch_of_one_step_has_a_rate(clock_: Clock) -> None:
    measured = throughput(1)
    clock_.now_s += 2
    measured.on_train_batch_end(0)
    logs = {}
    measured.on_epoch_end(0, logs)
    assert logs == {"images_per_second": 5, "input_wait_fraction": 0, "seconds": 2}


def test_later_epochs_count_every_step() -> None:
    measured = throughput(WARMUP_STEPS + 1)
    for step in range(WARMUP_STEPS + 1):
        measured.on_train_batch_end(step)
    assert measured.steps == 1
    measured.on_epoch_begin(1)
    for step in range(WARMUP_STEPS + 1):
        measured.on_train_batch_end(step)
    assert measured.steps == WARMUP_STEPS + 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, clock_: Clock) -> str:
    measured = throughput(30)
    display = Display(measured, epochs=2, schedule=Schedule((Phase(0, 30, 10),)), every=10, out=out)
    results = SimpleNamespace(read=[])
    display.set_model(SimpleNamespace(meter=SimpleNamespace(steps=0), results=results))
    display.on_epoch_begin(0)
    for step in range(30):
        clock_.now_s += 0.125
        display.model.meter.steps += 1
        results.read = [SimpleNamespace(step=step - 1)] if step >= 2 else []
        measured.on_train_batch_end(step)
        display.on_train_batch_end(step, {"loss": 1.0, "top1": 0.5})
    logs = {"loss": 0.5, "top1": 0.75, "test_top1": 0.25, "seconds": 61.0, "test_crops": 7, "test_images": 5}
    display.on_epoch_end(0, logs)
    return out.getvalue()


def test_a_log_gets_plain_lines_every_so_many_steps(clock_: Clock) -> None:
    lines = shown(io.StringIO(), clock_).splitlines()
    assert [line.split("  ")[1] for line in lines] == ["step 10/30", "step 20/30", "1:01"], (
        "a step is shown once its metrics are read"
    )
    assert lines[0] == "epoch 1/2  step 10/30  0:06 left  loss 1.0000  top-1 0.5000  80 images/s  0 % input wait"
    assert lines[-1] == "epoch 1/2  1:01  loss 0.5000  top-1 0.7500  top-1 0.2500  on 7 crops  of 5 images"
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_one_live_line_an_epoch(monkeypatch: pytest.MonkeyPatch, clock_: Clock) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(Terminal(), clock_)
    assert text.count("\n") == 1
    drawn = text.split("\r\x1b[2K")[1:]
    assert len(drawn) == 15 and all(len(line) < 60 for line in drawn[:-1])


def test_training_goes_on_without_the_reader_of_its_lines(clock_: Clock) -> None:
    """As in `tfpipe train | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out:
        display = Display(throughput(30), epochs=2, schedule=Schedule((Phase(0, 30, 10),)), every=10, out=out)
        for _ in range(3):
            display._draw("a line", end="\n")


def test_a_launched_rank_gets_plain_lines_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch, clock_: Clock) -> None:
    """Open MPI gives each rank a terminal, though its output may go to a file."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert "\x1b" not in shown(Terminal(), clock_)


def test_metrics_and_clock_are_readable() -> None:
    assert metrics_line({"loss": 1.23456, "input_wait_fraction": 0.257}) == "loss 1.2346  26 % input wait"
    assert [clock(each) for each in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]


@pytest.mark.parametrize(("number", "ends"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_a_closed_terminal_does_not_end_the_run_before_it_is_saved(number: int, ends: bool) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

    display = Display(throughput(10), 1, Schedule((Phase(0, 10, 1),)), 1, out=Closed())
    with pytest.raises(OSError, match="No space") if ends else nullcontext():
        display.on_epoch_end(0, {"seconds": 1.0})
