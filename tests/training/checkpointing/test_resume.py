"""Restored runs: with every optimizer the same weights bit for bit, and the schedule's position if a step changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.support.sample import TINY
from tfpipe import Stream, World
from tfpipe.config import Config
from tfpipe.training.checkpointing.checkpoints import GlobalBatch, State, read_latest
from tfpipe.training.checkpointing.resume import Checkpoints, inner_optimizer
from tfpipe.training.checkpointing.signals import Stop
from tfpipe.training.checkpointing.start import Start
from tfpipe.training.compile import known_optimizers
from tfpipe.training.loop import compile_model
from tfpipe.training.run_model import Requests, RunModel

# After 7 steps with an update every 4, the accumulators hold three gradients.
STEPS, SAVED_AFTER, ACCUMULATED = 12, 7, {"gradient_accumulation_steps": 4}
AVERAGED = {"use_ema": True, "ema_overwrite_frequency": 2}
FRESH = Start(State(0, 0, 0, GlobalBatch(1, 4), Stream.start(1), epoch_steps=STEPS))


@pytest.fixture(autouse=True)
def policy() -> Iterator[None]:
    """Restores the precision that compile_model sets for the whole process."""
    yield
    keras.config.set_dtype_policy("float32")


def config(name: str, precision: str = "float32", **args: Any) -> Config:
    return Config.model_validate(
        {
            "data": {"train_filelist": Path("unused"), "crop_image_size": (16, 16)},
            "model": TINY,
            "optimizer": {"name": name, "args": args},
            "lr_schedule": {"name": "CosineDecay"},
            "training": {"precision": precision},
        }
    )


def train(model: RunModel, steps: range) -> None:
    """Applies a gradient for each of `steps`; under mixed_float16 that of step 3 overflows."""
    for step in steps:
        draw = np.random.default_rng(step)
        gradients = [draw.normal(size=weight.shape).astype(np.float32) for weight in model.trainable_weights]
        if step == 3 and model.optimizer is not inner_optimizer(model):
            gradients[0][:] = np.inf
        model.optimizer.apply(gradients, model.trainable_weights)


def saved(model: RunModel, config: Config, run_dir: Path) -> Start:
    """Saves the model as a run does after a step in which a checkpoint was due, and reads what it has saved."""
    checkpoints = Checkpoints(run_dir, config.training, World(), FRESH.state, Stop())
    checkpoints.set_model(model)
    model.granted = Requests(save=True)
    checkpoints.on_train_batch_end(0)
    checkpoint = read_latest(run_dir)
    return Start(checkpoint.state, checkpoint)


@pytest.mark.parametrize(
    ("args", "precision"),
    [
        pytest.param({}, "float32", id="plain"),
        pytest.param(AVERAGED, "float32", id="averaged"),
        pytest.param(ACCUMULATED, "float32", id="accumulated"),
        pytest.param({}, "mixed_float16", id="mixed_float16"),
        pytest.param({**AVERAGED, **ACCUMULATED}, "mixed_float16", id="all"),
    ],
)
@pytest.mark.parametrize("name", [*known_optimizers(), "tests.support.own:Signs"])
def test_a_restored_run_goes_on_bit_for_bit(name: str, args: dict, precision: str, tmp_path: Path) -> None:
    """A run that is saved and restored ends with the weights of one that is not."""
    how = config(name, precision, **args)
    whole = compile_model(how, World(), 3, STEPS, FRESH)
    train(whole, range(SAVED_AFTER))
    start = saved(whole, how, tmp_path)
    before = whole.get_weights()
    train(whole, range(SAVED_AFTER, STEPS))
    resumed = compile_model(how, World(), 3, STEPS, start)
    train(resumed, range(SAVED_AFTER, STEPS))
    for expected, got in zip(whole.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
    assert any((old != new).any() for old, new in zip(before, whole.get_weights(), strict=True))


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize(("args", "steps"), [({}, 4), (ACCUMULATED, 3)])
def test_with_half_the_crops_before_the_schedule_goes_back_and_no_accumulated_gradient_is_lost(
    args: dict, precision: str, steps: int, tmp_path: Path
) -> None:
    """Half of 7 steps are 4; with an update every 4 steps, half of one is none, and 3 accumulated steps remain."""
    how = config("SGD", precision, **args)
    model = compile_model(how, World(), 3, STEPS, FRESH)
    train(model, range(10, 10 + SAVED_AFTER))
    resumed = compile_model(how, World(), 3, STEPS, saved(model, how, tmp_path)._replace(scale=0.5))
    optimizer = inner_optimizer(resumed)
    expected = keras.optimizers.schedules.CosineDecay(0.01, STEPS)(steps)
    assert float(optimizer.learning_rate) == pytest.approx(float(expected))
