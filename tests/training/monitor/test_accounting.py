"""The figures of an interval of the training: the figures, and real runs whose slow part shows in them."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.clock import Clock
from tests.support.commands import run_ranks
from tests.support.runs import read_intervals, read_lines, read_metrics
from tests.support.sample import SampleData
from tfpipe import Config, World, load_config
from tfpipe.config.model import CallbackConfig
from tfpipe.config.targets import TargetsConfig
from tfpipe.data import loader
from tfpipe.data.order.schedule import Phase, Schedule
from tfpipe.data.runtime.autotune import Stage
from tfpipe.data.runtime.meter import Meter, StepTimes
from tfpipe.data.sources.registry import load_split
from tfpipe.tools.report.diagnosis import diagnose_run
from tfpipe.tools.report.runs import STEP_PARTS, load_run
from tfpipe.training import loop
from tfpipe.training.monitor.accounting import (
    Accounting,
    SampleCounter,
    Usage,
    distributions,
    rank_figures,
    resident_bytes,
    usage,
)
from tfpipe.training.monitor.record import Record, Throughput

LINE = {
    *("steps", "seconds", "images_per_second", "input_wait_fraction", "step_ms", "wait_ms", "compute_ms", "reduce_ms"),
    *("delay_ms", "cpu_fraction", "memory_bytes", "read_bytes", "storage_bytes", "images", "files", "autotune"),
    *("stages", "ranks", "spread", "straggler", "cores", "queued_fraction"),
    *("transfer_ms", "callbacks_ms", "rest_ms", "callbacks"),
}


def test_parts_of_the_steps_have_exact_percentiles() -> None:
    steps = [StepTimes(0.001 * each, 0, 0, 0, 0, 0, 0, 0.5) for each in range(1, 102)]
    found = distributions(steps)
    assert found["step_ms"] == {"mean": 51.0, "p50": 51.0, "p90": 91.0, "p99": 100.0}
    assert found["delay_ms"] == {"mean": 500.0, "p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert set(found) == {name for name in LINE if name.endswith("_ms")}


def test_a_rank_answers_for_all_but_the_allreduce() -> None:
    steps = [StepTimes(1.0, 0.2, 0.05, 0.3, 0.4, 0.05, 0, 0.1), StepTimes(2.0, 0.4, 0.25, 0.5, 0.6, 0.15, 0.1, 0.3)]
    figures = rank_figures(steps, 1.5, 7)
    assert figures == pytest.approx((300, 1000, 400, 1, 7, 200, 150, 100, 50))
    assert figures.own_ms == pytest.approx(
        figures.wait_ms + figures.transfer_ms + figures.compute_ms + figures.callbacks_ms + figures.rest_ms
    )


# Of ranks that are made up.
DELAY_MS, OTHER_PARTS_MS = 30.0, (0.0, 0.0, 0.0)


class Account:
    """An accounting of rank 1 of 3 with a made-up clock, whose other ranks are made up too."""

    def __init__(self, run_dir: Path, interval: int, others: dict[int, tuple[float, ...]], record: bool = True) -> None:
        def total(table: np.ndarray) -> np.ndarray:
            assert not table[[0, 2]].any()
            for rank, row in others.items():
                table[rank] = (*row, DELAY_MS, *OTHER_PARTS_MS)
            return table

        self.world = SimpleNamespace(rank=1, size=3, threads=2, sum=total, gather=lambda _: ["n0", "n0", "n1"])
        self.now_s = 0.0
        meter = Meter(lambda: self.now_s, lambda: self.now_s)
        meter.steps = 20
        catalog = SimpleNamespace(boxes=None, annotated=None, values={})
        config = SimpleNamespace(service=None, targets=TargetsConfig())
        split = SimpleNamespace(order=None, stores="crops", training=False, config=config, catalog=catalog)
        loader = SimpleNamespace(iterator=None, meter=meter, world=self.world, catalog=catalog, data=split)
        self.model = SimpleNamespace(
            meter=meter,
            granted=SimpleNamespace(stop=False),
            positions=tf.constant([[0, 0]], tf.int64),
            optimizer=SimpleNamespace(iterations=0),
        )
        throughput = Throughput(Schedule((Phase(0, 100, 30),)), 1, steps=100)
        throughput.to_skip = 2
        self.record = Record(run_dir) if record else None
        self.accounting = Accounting(loader, interval, throughput, self.record)
        self.accounting.visits = SimpleNamespace(count=lambda batches: (len(batches), 2 * len(batches)))
        self.callbacks = [throughput, self.accounting]
        for each in filter(None, [*self.callbacks, self.record]):
            each.set_model(self.model)
        self.accounting.on_train_begin()

    def epoch(self, number: int, steps: int, wait_s: float = 0.1) -> None:
        for each in self.callbacks:
            each.on_epoch_begin(number)
        for step in range(steps):
            self.step(step, wait_s)
        self.accounting.on_epoch_end(number, {})

    def step(self, number: int, wait_s: float) -> None:
        """A step of 1 s: some wait, 0.25 s of allreduce, 0.05 s of callbacks."""
        self.now_s += 0.05
        ready_at_s = self.now_s
        self.model.meter.wait()
        self.now_s += wait_s
        self.model.meter.take(ready_at_s)
        self.now_s += 0.95 - wait_s
        self.model.meter.finish(0.25)
        for each in self.callbacks:
            each.on_train_batch_end(number)


OTHERS = {0: (200.0, 800.0, 500.0, 0.5, 10.0), 2: (1500.0, 1875.0, 375.0, 0.25, 30.0)}


@pytest.fixture(autouse=True)
def no_model_of_the_pipeline(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr("tfpipe.training.monitor.accounting.stages", lambda *_: [])
        monkeypatch.setattr("tfpipe.training.monitor.accounting.tuned_values", lambda *_: [])


def test_an_interval_says_what_every_rank_did(tmp_path: Path) -> None:
    """Seven steps, of which the first two are not counted: one interval of three, and two steps up to the end."""
    Account(tmp_path, 3, OTHERS).epoch(4, 7)
    first, second = read_intervals(tmp_path)
    assert [(line["epoch"], line["step"], line["interval"]["steps"]) for line in (first, second)] == [
        (5, 25, 3),
        (5, 27, 2),
    ]
    interval = first["interval"]
    assert interval.keys() == LINE
    assert interval["seconds"] == 3 and interval["images_per_second"] == 30
    # The ranks wait 0.2, 0.1 and 1.5 s of every second.
    assert interval["input_wait_fraction"] == 0.6
    means = {name: interval[name]["mean"] for name in LINE if name.endswith("_ms")}
    assert means == {
        **{"step_ms": 1000, "wait_ms": 100, "transfer_ms": 0, "compute_ms": 600, "reduce_ms": 250},
        **{"callbacks_ms": 0, "rest_ms": 50, "delay_ms": 100},
    }
    assert (interval["images"], interval["files"]) == (3, 6)
    assert [(each["rank"], each["host"], each["own_ms"]) for each in interval["ranks"]] == [
        (0, "n0", 800),
        (1, "n0", 750),
        (2, "n1", 1875),
    ]
    assert interval["ranks"][2] == {
        **{"rank": 2, "host": "n1", "wait_ms": 1500, "own_ms": 1875, "compute_ms": 375},
        **{"cpu_fraction": 0.25, "memory_bytes": 30, "delay_ms": DELAY_MS},
        **{"transfer_ms": 0, "callbacks_ms": 0, "rest_ms": 0},
    }
    assert interval["spread"] == {
        "wait_ms": {"min": 100, "median": 200, "max": 1500},
        "own_ms": {"min": 750, "median": 800, "max": 1875},
    }
    assert interval["straggler"] == {"rank": 2, "host": "n1", "times": pytest.approx(1875 / 775, abs=1e-3)} | {
        "because": "input"
    }


def test_what_a_process_uses_counts_from_the_intervals_begin_and_by_its_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of the run it keeps half a CPU of 2 busy, and another thread waits for one all the time."""
    account = Account(tmp_path, 3, OTHERS)
    module = "tfpipe.training.monitor.accounting"
    used = lambda: Usage(0.5 * account.now_s, round(100 * account.now_s), round(10 * account.now_s))  # noqa: E731
    monkeypatch.setattr(f"{module}.usage", used)
    monkeypatch.setattr(f"{module}.queued_s", lambda: {"7": account.now_s})
    crop = lambda *_: [Stage("read", 8, 1.0, 1.0), Stage("crop", round(account.now_s), 80 * account.now_s, 2.0)]  # noqa: E731
    monkeypatch.setattr(f"{module}.stages", crop)
    account.epoch(0, 8)
    for line in read_intervals(tmp_path):
        interval = line["interval"]
        assert (interval["cores"], interval["seconds"]) == (2, 3)
        assert (interval["cpu_fraction"], interval["queued_fraction"]) == (0.25, 0.5)
        assert (interval["read_bytes"], interval["storage_bytes"]) == (300, 30)
        assert interval["stages"] == [{"stage": "crop", "elements": 3, "busy_ms": 80, "parallelism": 2}]


def test_time_outside_the_epochs_counts_nowhere_and_later_epochs_count_whole(tmp_path: Path) -> None:
    account = Account(tmp_path, 4, OTHERS)
    account.epoch(0, 4)
    account.now_s += 1000  # the test pass
    account.epoch(1, 5)
    found = [(line["epoch"], line["step"], line["interval"]["seconds"]) for line in read_intervals(tmp_path)]
    assert found == [(1, 24, 2), (2, 28, 4), (2, 29, 1)]


def test_a_run_told_to_stop_accounts_for_its_last_steps(tmp_path: Path) -> None:
    account = Account(tmp_path, 100, OTHERS)
    for each in account.callbacks:
        each.on_epoch_begin(0)
    for step in range(5):
        account.model.granted.stop = step == 4
        account.step(step, 0.1)
    (line,) = read_intervals(tmp_path)
    assert (line["step"], line["interval"]["steps"]) == (25, 3)


def test_ranks_but_the_first_share_and_write_nothing(tmp_path: Path) -> None:
    Account(tmp_path, 3, OTHERS, record=False).epoch(0, 7)
    assert not list(tmp_path.iterdir())


def test_a_fixed_straggler_is_warned_of_once_an_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    account = Account(tmp_path, 2, OTHERS)
    account.epoch(0, 6)
    account.epoch(1, 3)
    times = [record.message for record in caplog.records]
    assert times == ["rank 2 (host n1) is 2.4 times slower than the others in 2 of 2 intervals: waits for input"] * 2


@pytest.mark.parametrize("unit", ["image", "box"])
def test_files_are_those_of_the_images_visited(sample: SampleData, tmp_path: Path, unit: str) -> None:
    """Rank 1 of 2; a batch that begins in the middle of an image does not count it again."""
    config = load_config(sample.config(tmp_path / "c.json", data={"unit": unit})).data
    split = load_split(config, "train", World(1, 2))
    visits = SampleCounter(SimpleNamespace(data=split, catalog=split.catalog, world=split.world))
    batches = [np.array([[1, 0], [3, 0], [3, 1]]), np.array([[3, 2], [5, 0]]), np.array([[5, 1], [7, 0], [9, 0]])]
    items = split.order.items(np.arange(1, 10, 2), split.world)
    # Of a box the image alone is read, since the boxes are known.
    files = 1 + (split.catalog.annotated[items] if unit == "image" else np.zeros(5, int))
    assert visits.count(batches[:2]) == (3, files[:3].sum())
    assert visits.count(batches[2:]) == (2, files[3:].sum())
    assert visits.count([]) == (0, 0)
    if unit == "image":
        assert 5 < files.sum() < 10, "some have an XML and some have none, or nothing is tested"


def test_what_a_process_uses_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    before = usage()
    held = (tmp_path / "file").read_bytes()
    while time.process_time() < before.cpu_s + 0.05:
        pass
    after = usage()
    assert 3_000_000 <= after.read_bytes - before.read_bytes < 3_100_000
    assert after.cpu_s - before.cpu_s >= 0.05
    assert resident_bytes() > 10 * len(held)


def real_config(sample: SampleData, path: Path, **training: Any) -> Config:
    (path.parent / "list.txt").write_text(sample.train.read_text() * 3)
    data = {"train_filelist": "list.txt", "test_filelist": None, "test_label_file": None, "annotations": "none"}
    return load_config(sample.config(path, data=data, training={"interval": 6, **training}))


def test_a_real_run_accounts_for_its_steps_and_once_more_after_a_crash(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run's clock a batch takes 200 ms, a callback 300 and all else nothing; the verdict names the callback.

    It is resumed after lines that a crash leaves.
    """
    clock, build = Clock(), loader.build_batches

    class Late(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            clock.now_s += 0.3

    def pass_time() -> bool:
        clock.now_s += 0.2
        return True

    def timed(*args: Any, **how: Any) -> tf.data.Dataset:
        alone = tf.data.Options()
        alone.experimental_optimization.inject_prefetch = (
            False  # the step itself makes time pass, when it takes a batch
        )
        return build(*args, **how).filter(lambda *_: tf.numpy_function(pass_time, [], tf.bool)).with_options(alone)

    monkeypatch.setattr(loader, "build_batches", timed)
    monkeypatch.setattr(loader, "Meter", lambda: Meter(clock))
    monkeypatch.setattr("tests.support.own.Slow", Late)
    config = real_config(sample, tmp_path / "c.json", steps_per_epoch=17)
    config = config.model_copy(update={"callbacks": [CallbackConfig(name="tests.support.own:Slow")]})
    loop.train(config, World(), tmp_path)

    whole = read_lines(tmp_path)
    first, second = (line["interval"] for line in read_intervals(tmp_path))
    # 17 steps, of which 5 are not counted.
    assert [line["step"] for line in read_intervals(tmp_path)] == [11, 17]
    for each in (first, second):
        assert each["steps"] == 6 and each["seconds"] == pytest.approx(3)
        assert each["images_per_second"] == pytest.approx(32) and each["input_wait_fraction"] == 0.4
        means = {name: each[f"{name}_ms"]["mean"] for name in ("step", *STEP_PARTS)}
        assert means == dict.fromkeys(STEP_PARTS, 0) | {"step": 500, "wait": 200, "callbacks": 300}
        assert each["callbacks"] == {"callbacks[0] Late": 300}
        # A batch made ahead of its use has waited since; without boxes a crop is an image.
        assert each["delay_ms"]["p50"] > 0 and each["images"] == each["files"] == 96
        assert each["straggler"] is None and 1e8 < each["memory_bytes"] < 1e11
    verdict = diagnose_run(load_run(tmp_path))
    assert verdict.kind == "callbacks" and verdict.advice == "callbacks[0] Late: less work in each batch"
    assert verdict.headline == (
        "CALLBACK-BOUND: callbacks take 60 % of a step's time; without, it could run up to 2.5 times as fast"
    )
    assert verdict.because == "of a step's 500.0 ms: wait 200.0, transfer 0.0, compute 0.0, callbacks 300.0, rest 0.0"
    assert {"crop", "finish"} <= {each["stage"] for each in first["stages"] + second["stages"]}
    (epoch,) = read_metrics(tmp_path)
    assert epoch["step"] == 17 and "interval" not in epoch
    drawn = [str(path) for path in (tmp_path / "train").iterdir()]
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(drawn[0])
        for value in event.summary.value
        if value.tag.startswith("interval/")
    }
    assert len(drawn) == 1 and {"interval/wait_ms", "interval/images_per_second"} <= tags

    stall = {"epoch": 2, "step": 18, "stall": {"seconds": 31.0, "in": "input", "rank": 0}}
    beyond = {"epoch": 2, "step": 21, "interval": whole[0]["interval"]}
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in (stall, beyond))
    training = config.training.model_copy(update={"epochs": 2, "steps_per_epoch": 17})
    loop.train(config.model_copy(update={"training": training}), World(), tmp_path, resume=True)
    assert read_lines(tmp_path)[: len(whole)] == whole
    assert [line["step"] for line in read_intervals(tmp_path)] == [11, 17, 28, 34]
    assert all("stall" not in line for line in read_lines(tmp_path))


# Rank 2's batches come late, and no other rank's.
SLOWED = """
import os, sys
from tensorflow.python.data.experimental.ops import testing
from tfpipe.cli import main
from tfpipe.data import loader
build = loader.build_batches
if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    loader.build_batches = lambda *args, **how: build(*args, **how).apply(testing.sleep(1_500_000))
sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.mark.full(
    "three ranks whose times differ: test_an_interval_says_what_every_rank_did has them by a made-up clock"
)
def test_a_real_rank_that_the_others_wait_for_is_named(sample: SampleData, tmp_path: Path) -> None:
    real_config(sample, tmp_path / "c.json", interval=5, steps_per_epoch=20)
    done = run_ranks(3, sys.executable, "-c", SLOWED, "-c", tmp_path / "c.json", "-l", tmp_path / "run")
    assert done.code == 0, done.err
    lines = read_intervals(tmp_path / "run")
    assert [line["step"] for line in lines] == [10, 15, 20]
    host = os.uname().nodename
    for line in lines:
        interval = line["interval"]
        straggler = interval["straggler"]
        assert (straggler["rank"], straggler["host"], straggler["because"]) == (2, host, "input")
        own = [each["own_ms"] for each in interval["ranks"]]
        assert own[2] == max(own) and interval["spread"]["wait_ms"]["max"] == interval["ranks"][2]["wait_ms"]
    assert done.err.count("times slower than the others in 3 of 3 intervals: waits for input") == 1
    assert f"rank 2 (host {host}) is " in done.err
