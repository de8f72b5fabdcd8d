"""The waits of a step: what the device has not ended is read two steps late, so that the device is never idle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.data.runtime.meter import Meter
from tfpipe.errors import TfpipeError
from tfpipe.training import loop
from tfpipe.training.run_model import Requests, RunModel

STEPS = 6


class Given:
    """What a step gave, which notes in which step it is read."""

    def __init__(self, value: Any, step: int, reads: list[tuple[int, int]], model: RunModel) -> None:
        self.value, self.step, self.reads, self.model = value, step, reads, model

    def __float__(self) -> float:
        return float(self.__array__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # A step is open from the moment when its batch is taken.
        begun = self.model.meter.steps + (self.model.meter.open is not None)
        self.reads.append((self.step, begun))
        return np.asarray(self.value)


def test_nothing_is_read_before_two_later_steps_are_begun(
    sample: SampleData, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where an epoch ends, and an interval is summed up with it."""
    reads: list[tuple[int, int]] = []
    finish = RunModel.finish

    def noting(model: RunModel, logs: Mapping[str, Any], asked: Any, reduce_s: Any) -> Any:
        step = model.meter.steps + 1
        given = {name: Given(value, step, reads, model) for name, value in logs.items()}
        return finish(model, given, *(Given(value, step, reads, model) for value in (asked, reduce_s)))

    monkeypatch.setattr(RunModel, "finish", noting)
    training = {"epochs": 2, "steps_per_epoch": STEPS, "interval": 100}
    config = load_config(sample.config(tmp_path / "c.json", data={"index": index}, training=training))
    (tmp_path / "run").mkdir()
    loop.train(config, World(), tmp_path / "run")
    early = {step for step, read in reads if read < step + 2}
    assert early == {STEPS - 1, STEPS, 2 * STEPS - 1, 2 * STEPS}
    assert {step for step, read in reads if read == step + 2} == {*range(1, 2 * STEPS + 1)} - early


def test_what_ranks_ask_is_granted_two_steps_later_and_once() -> None:
    inputs = keras.Input((1,))
    model = RunModel(inputs, inputs)
    model.world, model.meter = World(1, 2), Meter()
    granted = []
    for asked in ([0, 0], [0.5, 0], [0, 0], [0, 0], [0, 0], [0, 0.5], [0, 0]):
        model.meter.wait()
        model.meter.take()
        model.finish({"loss": 1.0}, np.array([*asked, 0, 0]), 0.0)
        granted.append(model.granted)
    none = Requests()
    assert granted == [none, none, none, Requests(save=True), none, none, none]
    model.drain()
    assert model.granted == Requests(stop=True)
    model.agreed = Requests(save=True)
    model.meter.wait()
    model.meter.take()
    model.finish({"loss": 1.0}, np.array([0, 0.5, 0, 0]), 0.0)
    assert model.granted == Requests(save=True, stop=True), "what is saved is known, and so what was asked in it"
    model.drain()
    assert model.granted == Requests(save=True, stop=True) and not model.results.unread


def through_python(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """A loss that XLA cannot compile."""
    given = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return given + tf.ensure_shape(tf.numpy_function(np.zeros_like, [given], tf.float32), given.shape)


def test_xla_compiles_the_step_and_trains_alike(sample: SampleData, index: str, tmp_path: Path) -> None:
    def trained(name: str, **training: Any) -> float:
        loss = {"name": f"{__name__}:through_python"} if name == "python" else {}
        keys = {"steps_per_epoch": 3, "interval": 3, **training}
        config = load_config(sample.config(tmp_path / "c.json", data={"index": index}, training=keys, loss=loss))
        (tmp_path / name).mkdir()
        loop.train(config, World(), tmp_path / name)
        rows = [json.loads(row) for row in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return next(row["loss"] for row in rows if "loss" in row)

    assert trained("xla", xla=True) == pytest.approx(trained("plain"), rel=1e-4)
    with pytest.raises(TfpipeError, match="XLA"):
        trained("python", xla=True)
