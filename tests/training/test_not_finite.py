"""A loss that is not finite ends the run, and neither it nor weights that are not finite replace a checkpoint."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.data.runtime.meter import Meter
from tfpipe.errors import TfpipeError
from tfpipe.training.checkpointing.checkpoints import read
from tfpipe.training.loop import train
from tfpipe.training.not_finite import SKIPPED_STEPS, NotFiniteGuard
from tfpipe.training.run_model import Results, RunModel, StepResult

# Steps are counted from 1; its weights are not finite after it, its loss still is.
SPOILT = 10


class Spoiling(keras.optimizers.SGD):
    """Gradients of NaN in one step."""

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        spoilt = ops.equal(self._iterations, SPOILT - 1)
        super().update_step(ops.where(spoilt, np.float32(np.nan), gradient), variable, learning_rate)


def run(sample: SampleData, tmp_path: Path, every_steps: int, **training: Any) -> Path:
    """Trains 15 steps in epochs of 5."""
    how = {"epochs": 3, "steps_per_epoch": 5, "checkpoint": {"every_steps": every_steps, "keep": 2}, **training}
    data = {"test_filelist": None, "test_label_file": None, "annotations": "none", "batch_size": 4}
    path = sample.config(
        tmp_path / "c.json", data=data, training=how, optimizer={"name": f"{__name__}:Spoiling", "learning_rate": 0.1}
    )
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    train(load_config(path), World(), run_dir)
    return run_dir


def strict_lines(run_dir: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def saved(tmp_path: Path) -> list[int]:
    paths = sorted((tmp_path / "run/checkpoints").glob("*.npz"))
    for path in paths:
        checkpoint = read(path)
        assert all(np.isfinite(array).all() for array in checkpoint.weights)
    return [int(path.stem.rpartition("-")[2]) for path in paths]


def test_the_run_ends_with_the_step_and_its_positions_and_keeps_good_checkpoints(
    sample: SampleData, tmp_path: Path
) -> None:
    """Known before the checkpoint that is due in the step after it."""
    with pytest.raises(TfpipeError, match=f"rank 0: the loss is not finite in step {SPOILT + 1} of the run") as caught:
        run(sample, tmp_path, every_steps=3)
    text = str(caught.value)
    assert "rank 0: loss nan, positions 40 to 43 (the step before: 36 to 39)" in text, "batches of 4"
    assert "step-000000009.npz" in text and "--resume" in text
    assert saved(tmp_path) == [6, 9]
    assert len([line for line in strict_lines(tmp_path / "run") if "interval" not in line]) == 2


@pytest.mark.parametrize(("every_steps", "kept"), [(1, [8, 9]), (6, [6])])
def test_weights_that_are_not_finite_are_not_saved_though_the_loss_still_was(
    sample: SampleData, tmp_path: Path, every_steps: int, kept: list[int]
) -> None:
    """Step 10's loss is finite, its weights are not; the loss of step 11 is known before the checkpoint of step 12."""
    message = r"NaN or infinite after epoch 2: \d+ weights?, e.g. \w+" if every_steps == 1 else "not finite in step 11"
    with pytest.raises(TfpipeError, match=message):
        run(sample, tmp_path, every_steps)
    assert saved(tmp_path) == kept


def test_the_loss_of_the_last_step_of_an_epoch_counts_before_its_end() -> None:
    """No further step reads it."""
    inputs = keras.Input((1,))
    model = RunModel(inputs, inputs)
    model.meter = Meter()
    model.compile("sgd")
    guard = NotFiniteGuard(Path("nowhere"), World())
    guard.set_model(model)
    for step, not_finite in enumerate((0.0, 1.0)):
        model.meter.wait()
        model.meter.take()
        model.positions = tf.constant([[step, 0]], tf.int64)
        model.finish({"loss": 1.0}, np.array([0, 0, not_finite, not_finite]), 0.0)
        guard.on_train_batch_end(step)  # the second loss is as yet unread
    model.drain()
    with pytest.raises(TfpipeError, match="not finite in step 2 of the run") as caught:
        guard.on_epoch_end(0)
    assert "rank 0: loss 1, positions 1 (the step before: 0)" in str(caught.value)


class OfThree(World):
    """A world in which rank 1 alone has a loss that is not finite."""

    def gather(self, value: Any) -> list[Any]:
        _, loss, positions, before = value
        return [(rank == 1, np.nan if rank == 1 else loss, positions + rank, before + rank) for rank in range(3)]


def guard_of(not_finite: int, **optimizer: Any) -> NotFiniteGuard:
    """A guard that has seen a good step, and looks at the last of `not_finite` steps of another rank's bad losses."""
    before, bad = (tf.constant([[first + number, 0] for number in (0, 3, 6, 6)], tf.int64) for first in (21, 30))
    steps = [StepResult(6, {"loss": 0.5}, np.zeros(4), before)]
    steps += [StepResult(7 + number, {"loss": 0.5}, np.array([0, 0, 0.3, 0]), bad) for number in range(not_finite)]
    guard, results = NotFiniteGuard(Path("nowhere"), OfThree(2, 3)), Results()
    guard.set_model(SimpleNamespace(results=results, optimizer=SimpleNamespace(**optimizer)))
    for step in steps[:-1]:
        results.read = [step]
        guard.on_train_batch_end(0)
    results.read = steps[-1:]
    return guard


def test_the_ranks_where_it_began_are_named_on_all() -> None:
    guard_of(0).on_train_batch_end(0)
    for end in ("on_train_batch_end", "on_epoch_end"):
        with pytest.raises(
            TfpipeError, match="rank 2: the loss is not finite in step 7 of the run, on 1 of 3 ranks"
        ) as caught:
            getattr(guard_of(1), end)(0)
        assert "; rank 1: loss nan, positions 31 to 37 in steps of 3 (the step before: 22 to 28 in" in str(caught.value)
        assert "rank 0:" not in str(caught.value) and "there is no checkpoint yet" in str(caught.value)


def test_steps_that_mixed_float16_skips_are_no_nan_until_there_are_many_in_a_row() -> None:
    guard_of(SKIPPED_STEPS - 1, inner_optimizer=None).on_train_batch_end(0)
    guard = guard_of(SKIPPED_STEPS, inner_optimizer=None)
    with pytest.raises(TfpipeError, match="the loss is not finite in step 7"):
        guard.on_train_batch_end(0)


def look(guard: NotFiniteGuard, losses: list[float], ranks_ask: bool = True) -> None:
    """Lets a guard see steps with these losses, the first of them number 99."""
    for number, loss in enumerate(losses, 99):
        asked = np.array([0, 0, np.isnan(loss), np.isnan(loss)]) if ranks_ask else None
        guard.model.results.read = [StepResult(number, {"loss": loss}, asked, tf.constant([[4, 0]], tf.int64)).fetch()]
        guard.on_train_batch_end(0)


def test_a_finite_loss_ends_the_row_of_steps_that_mixed_float16_skips() -> None:
    guard, skipped = guard_of(SKIPPED_STEPS - 1, inner_optimizer=None), [math.nan] * (SKIPPED_STEPS - 1)
    look(guard, [0.5, *skipped])
    with pytest.raises(TfpipeError, match="the loss is not finite in step 100"):
        look(guard, [0.5, *skipped, math.nan])


def test_one_rank_with_only_an_epochs_mean_skips_any_number_of_steps_of_mixed_float16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    guard, plain = guard_of(0, inner_optimizer=None), guard_of(0)
    guard.world = plain.world = World()
    look(guard, [math.nan] * (2 * SKIPPED_STEPS), ranks_ask=False)
    with pytest.raises(TfpipeError, match="the loss is not finite in step 99 of the run, on 1 of 1 ranks"):
        look(plain, [math.nan], ranks_ask=False)
