"""Headspace: what a training step waits for its input, against what it takes by itself."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import run
from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.config import Config, load_config
from tfpipe.data.catalog import Catalog, load_catalog
from tfpipe.tools import bench
from tfpipe.tools.bench.headspace import BATCHES, REPLAY, TRAINING, WARM_UP_STEPS, feeds, headspace, training_step
from tfpipe.tools.bench.segments import Segment, Spread


def segment(steps: int, seconds: float) -> Segment:
    """Of batches of 8 crops, two to an image."""
    return Segment(4 * steps, 8 * steps, seconds, seconds, 0.0)


@pytest.fixture
def opened(sample: SampleData, tmp_path: Path) -> tuple[Config, Catalog]:
    config = load_config(sample.config(tmp_path / "c.json", data={"batch_size": 8}))
    return config, load_catalog(config.data, "train", World())


def test_it_is_the_share_of_the_step_that_the_input_adds_turn_by_turn() -> None:
    found = headspace([segment(10, 2.0), segment(10, 4.0)], [segment(10, 1.0), segment(20, 6.0)], batch_size=8)
    assert found.step_ms == Spread(300.0, 200.0, 400.0)
    assert found.replay_ms == pytest.approx((200.0, 100.0, 300.0))
    assert found.share == pytest.approx((0.375, 0.25, 0.5))
    assert found.meaning == "faster input could win up to 38 % of the step; see tfpipe bench --stages"


@pytest.mark.parametrize(("replay_s", "percent"), [(0.97, 3), (1.0, 0), (1.2, 0)])
def test_a_step_that_waits_for_nothing_is_bound_by_itself(replay_s: float, percent: int) -> None:
    found = headspace([segment(10, 1.0)], [segment(10, replay_s)], batch_size=8)
    assert found.share.median == pytest.approx(1 - replay_s)
    said = f"training is bound by its own step: no pipeline work can win more than {percent} %"
    assert found.meaning == said


def slow_input(monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
    """Makes the pipeline wait so long for every batch."""
    import tensorflow as tf

    from tfpipe.data import pipeline

    def slow(dataset: tf.data.Dataset, *args: Any) -> tf.data.Dataset:
        def wait(*batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
            waited = tf.numpy_function(lambda: time.sleep(wait_s) or 0, [], tf.int64)
            with tf.control_dependencies([waited]):
                return tuple(map(tf.identity, batch))

        return original(dataset, *args).map(wait)

    original = pipeline.finish
    monkeypatch.setattr(pipeline, "finish", slow)


def measured(opened: tuple[Config, Catalog], step: Callable[[Any], object], seconds: float = 0.6) -> Any:
    config, catalog = opened
    by = feeds(config, World(), catalog, 0.3, step)
    return headspace([by[TRAINING](seconds)], [by[REPLAY](seconds)], config.data.batch_size)


def test_a_step_slower_than_the_pipeline_leaves_none(opened: tuple[Config, Catalog]) -> None:
    found = measured(opened, lambda _: time.sleep(0.1), seconds=1.5)
    assert found.replay_ms.median == pytest.approx(100, abs=30)
    assert abs(found.share.median) < 0.15


def test_a_pipeline_slower_than_the_step_leaves_much(opened: tuple[Config, Catalog], monkeypatch) -> None:
    slow_input(monkeypatch, 0.1)
    found = measured(opened, lambda _: time.sleep(0.02), seconds=1.0)
    # It works while the step does: 100 ms a step, of which 20 are the step's own.
    assert found.step_ms.median == pytest.approx(100, abs=30)
    assert found.share.median == pytest.approx(0.8, abs=0.1)
    assert "faster input could win up to" in found.meaning


def test_what_is_replayed_are_a_few_batches_of_the_pipeline_over_and_over(opened: tuple[Config, Catalog]) -> None:
    config, catalog = opened
    seen = []
    by = feeds(config, World(), catalog, 0.0, seen.append)
    assert len(seen) == WARM_UP_STEPS
    seen.clear()
    made = by[REPLAY](0.05)
    positions = [tuple(np.ravel(batch[2])) for batch in seen]
    assert len(set(positions)) == BATCHES and positions[BATCHES] == positions[0]
    assert made.crops % 8 == 0 and made.crops >= 8
    # One to two crops an image, in this data.
    assert 0.5 * made.crops < made.images <= made.crops + 8

    seen.clear()
    by[TRAINING](0.05)
    fresh = [tuple(np.ravel(batch[2])) for batch in seen]
    assert len(set(fresh)) == len(fresh) and not set(fresh) & set(positions)


def test_no_pipeline_runs_while_batches_are_replayed(opened: tuple[Config, Catalog], monkeypatch) -> None:
    slow_input(monkeypatch, 0.02)
    sleeps: list[float] = []
    original = time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: (s == 0.02 and sleeps.append(time.monotonic()), original(s))[1])
    config, catalog = opened
    # Left alone, it would go on for two seconds until that is full.
    data = config.data.model_copy(update={"prefetch_buffer_size": 100})
    by = feeds(config.model_copy(update={"data": data}), World(), catalog, 0.1, lambda _: original(0.005))
    by[TRAINING](0.2)
    assert sleeps
    bench.wait_until_idle()
    sleeps.clear()
    by[REPLAY](0.4)
    assert sleeps == []


def test_the_step_is_that_of_training(opened: tuple[Config, Catalog], monkeypatch) -> None:
    from tfpipe.training import loop

    models = []
    original = loop.compile_model
    monkeypatch.setattr(loop, "compile_model", lambda *args: models.append(original(*args)) or models[-1])
    config, catalog = opened
    step = training_step(config, World(), catalog)
    before = [weight.numpy() for weight in models[0].trainable_weights]
    from tfpipe import build_dataset

    batch = next(iter(build_dataset(config, "train", with_positions=True, catalog=catalog)))
    step(batch)
    assert int(models[0].optimizer.iterations) == 1
    assert any((weight.numpy() != old).any() for weight, old in zip(models[0].trainable_weights, before, strict=True))


def test_the_command_prints_both_and_still_ends_with_the_rate(sample: SampleData, tmp_path: Path) -> None:
    config, out = sample.config(tmp_path / "c.json"), tmp_path / "o.json"
    words = ("--headspace", "--seconds", "1", "--repeats", "2", "--json", str(out))
    done = run(sys.executable, "-m", "tfpipe.cli", "bench", "-c", config, *words)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[-1].startswith("images_per_second: ")
    rows = {line[:22].strip(): line[22:].split() for line in lines}
    found = json.loads(out.read_text())["headspace"]
    assert rows["fed by the pipeline"][0] == f"{found['step_ms']['median']:.1f}"
    assert rows["fed from memory"][0] == f"{found['replay_ms']['median']:.1f}"
    assert rows["headspace"][0] == f"{100 * found['share']['median']:.1f}"
    assert found["meaning"] in done.out
    assert found["step_ms"]["low"] <= found["step_ms"]["median"] <= found["step_ms"]["high"]
