"""Headspace: what a training step waits for its input, against what it takes by itself."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.clock import Clock
from tests.support.sample import SampleData
from tfpipe import World
from tfpipe.config import Config, load_config
from tfpipe.data.batch import Batch
from tfpipe.tools import measure as engine
from tfpipe.tools.bench.headspace import BATCHES, REPLAY, TRAINING, WARM_UP_STEPS, feeds, headspace, training_step
from tfpipe.tools.measure import Pipelines, Segment, Spread


def segment(steps: int, seconds: float) -> Segment:
    """Makes one of batches of 8 crops, two to an image."""
    return Segment(4 * steps, 8 * steps, seconds, seconds, 0.0)


@pytest.fixture
def config(sample: SampleData, tmp_path: Path) -> Config:
    return load_config(sample.config(tmp_path / "c.json", data={"batch_size": 8, "annotations": "none"}))


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


def slow_input(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> None:
    """Makes the pipeline call `wait` for every batch."""
    import tensorflow as tf

    from tfpipe.data import pipeline

    def slow(dataset: tf.data.Dataset, *args: Any) -> tf.data.Dataset:
        def waited(batch: Batch) -> Batch:
            with tf.control_dependencies([tf.numpy_function(lambda: wait() or 0, [], tf.int64)]):
                return tf.nest.map_structure(tf.identity, batch)

        return original(dataset, *args).map(waited)

    original = pipeline.transform
    monkeypatch.setattr(pipeline, "transform", slow)


def test_the_share_is_what_a_step_waits_for_the_pipeline(config: Config, monkeypatch) -> None:
    """By the clock of the bench a step takes 20 ms, and a pipeline that does nothing ahead takes 80 ms a batch."""
    clock = Clock()

    def pass_time(seconds: float) -> None:
        clock.now_s += seconds

    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=clock, process_time=clock))
    slow_input(monkeypatch, lambda: pass_time(0.08))
    data = config.data.model_copy(update={"num_parallel_readers": 1, "prefetch_buffer_size": 0})
    by = feeds(config.model_copy(update={"data": data}), Pipelines(World(), 0.3), lambda _: pass_time(0.02))
    found = headspace([by[TRAINING](1.0)], [by[REPLAY](1.0)], data.batch_size)
    assert found.step_ms.median == pytest.approx(100)
    assert found.replay_ms.median == pytest.approx(20)
    assert found.share.median == pytest.approx(0.8)
    assert "faster input could win up to 80 % of the step" in found.meaning


def test_what_is_replayed_are_a_few_batches_of_the_pipeline_over_and_over(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"batch_size": 8}))
    seen = []
    by = feeds(config, Pipelines(World(), 0.0), seen.append)
    assert len(seen) == WARM_UP_STEPS
    seen.clear()
    made = by[REPLAY](0.05)
    positions = [tuple(np.ravel(batch.positions)) for batch in seen]
    assert len(set(positions)) == BATCHES and positions[BATCHES] == positions[0]
    assert made.crops % 8 == 0 and made.crops >= 8
    # One to two crops an image, in this data.
    assert 0.5 * made.crops < made.images < 0.95 * made.crops

    seen.clear()
    by[TRAINING](0.05)
    fresh = [tuple(np.ravel(batch.positions)) for batch in seen]
    assert len(set(fresh)) == len(fresh) and not set(fresh) & set(positions)


def test_no_pipeline_runs_while_batches_are_replayed(config: Config, monkeypatch) -> None:
    made: list[int] = []
    slow_input(monkeypatch, lambda: made.append(1) or time.sleep(0.02))
    # Left alone, it would run for two seconds until that is full.
    data = config.data.model_copy(update={"prefetch_buffer_size": 100})
    by = feeds(config.model_copy(update={"data": data}), Pipelines(World(), 0.1), lambda _: time.sleep(0.005))
    by[TRAINING](0.1)
    assert made
    engine.wait_until_idle()
    made.clear()
    by[REPLAY](0.3)
    assert made == []


def test_the_step_is_that_of_training(config: Config, monkeypatch) -> None:
    from tfpipe.training import loop

    models = []
    original = loop.compile_model
    monkeypatch.setattr(loop, "compile_model", lambda *args: models.append(original(*args)) or models[-1])
    step = training_step(config, Pipelines(World(), 0.0))
    before = [weight.numpy() for weight in models[0].trainable_weights]
    from tfpipe.data.pipeline import build_batches

    batch = next(iter(build_batches(config, "train")))
    step(batch)
    assert int(models[0].optimizer.iterations) == 1
    assert any((weight.numpy() != old).any() for weight, old in zip(models[0].trainable_weights, before, strict=True))
