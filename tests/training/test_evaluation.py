"""The test pass of a run: which weights it tests, and which ones the run keeps and saves."""

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.errors import Stopped
from tfpipe.training.checkpointing.checkpoints import read_latest
from tfpipe.training.evaluate import Evaluation, Evaluator, Scores
from tfpipe.training.loop import train


def assert_equal(weights: list[np.ndarray], others: list[np.ndarray]) -> None:
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def saved(folder: Path, name: str = "model.keras") -> list[np.ndarray]:
    return [weight.numpy() for weight in keras.models.load_model(folder / name).trainable_weights]


def test_averaged_weights_are_tested_and_saved_and_the_run_goes_on_with_its_own(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stopped in its last test pass, resumed, and killed before model.keras is written.

    Callbacks save what was tested, in the last epoch too.
    """
    path = sample.config(
        tmp_path / "c.json",
        optimizer={"name": "SGD", "args": {"use_ema": True}},
        training={"epochs": 2},
        callbacks=[{"name": "ModelCheckpoint", "args": {"filepath": str(tmp_path / "{epoch}.keras")}}],
    )
    config, run_dir, tested, scores = load_config(path), tmp_path / "run", [], []
    run_dir.mkdir()
    run = Evaluator.run

    def run_and_stop_in_the_second(evaluator: Evaluator, model: keras.Model, stop: object) -> object:
        tested.append([weight.numpy() for weight in model.trainable_weights])
        scores.append(None if len(tested) == 2 else run(evaluator, model))
        return scores[-1]

    monkeypatch.setattr(Evaluator, "run", run_and_stop_in_the_second)
    with pytest.raises(Stopped):
        train(config, World(), run_dir)
    stopped = read_latest(run_dir)
    assert not (run_dir / "model.keras").exists()
    logs = train(config, World(), run_dir, resume=True)
    assert len(tested) == 3 and logs["test_loss"] == scores[-1].loss

    (_, *averages), weights = stopped.optimizer, stopped.weights
    assert_equal(tested[1], averages)
    assert_equal(tested[2], averages)
    assert_equal(saved(tmp_path, "1.keras"), tested[0])
    assert_equal(saved(tmp_path, "2.keras"), averages)
    assert any((own != average).any() for own, average in zip(weights, averages, strict=False))
    assert_equal(read_latest(run_dir).weights, weights)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["start", "checkpoint", "stop", "start", "checkpoint", "end"]
    assert events[3]["step"] == events[2]["step"] > 0 and "tensorflow" in events[3]["versions"]
    assert_equal(saved(run_dir), averages)
    (run_dir / "model.keras").unlink()
    train(config, World(), run_dir, resume=True)
    assert_equal(saved(run_dir), averages)


def test_the_averages_of_the_best_epoch_are_restored_and_what_a_callback_changes_is_trained_on(
    sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two epochs is the better one; a callback sets the last weight at its end."""
    tested, begun = [], []

    def run(_: Evaluator, model: keras.Model, *__: object) -> Scores:
        tested.append([weight.numpy() for weight in model.trainable_weights])
        return Scores(len(tested), 0.5, 0.5, 0.5, 1, 1)

    class Sets(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            begun.append([weight.numpy() for weight in self.model.trainable_weights])

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            if epoch == 0:
                last = self.model.trainable_weights[-1]
                last.assign(last + 1)

    monkeypatch.setattr(Evaluator, "run", run)
    monkeypatch.setattr("tests.support.own.Diary", Sets)
    stopping = {"name": "EarlyStopping", "args": {"monitor": "test_loss", "restore_best_weights": True}}
    path = sample.config(
        tmp_path / "c.json",
        optimizer={"name": "SGD", "args": {"use_ema": True, "ema_momentum": 0.5}},
        training={"epochs": 2, "steps_per_epoch": 2},
        callbacks=[stopping, {"name": "tests.support.own:Diary"}],
    )
    (tmp_path / "run").mkdir()
    train(load_config(path), World(), tmp_path / "run")
    assert_equal(saved(tmp_path / "run"), tested[0])
    assert any((one != other).any() for one, other in zip(*tested, strict=True))
    np.testing.assert_array_equal(begun[1][-1], tested[0][-1] + 1)
    assert (begun[1][0] != tested[0][0]).any(), "the others are the run's own, no averages"


@pytest.mark.parametrize(("every", "tested"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (9, [4])])
def test_a_test_pass_comes_every_few_epochs_and_after_the_last(every: int, tested: list[int]) -> None:
    evaluator = SimpleNamespace(run=lambda *_: Scores(0.5, 0.5, 0.5, 0.5, 1, 1))
    evaluation = Evaluation(evaluator, every, SimpleNamespace(epochs=5, stop=None))
    evaluation.set_model(SimpleNamespace(optimizer=SimpleNamespace(use_ema=False)))
    logs: list[dict[str, float]] = [{} for _ in range(5)]
    for epoch in range(5):
        evaluation.on_epoch_end(epoch, logs[epoch])
    assert [epoch for epoch in range(5) if "test_top1" in logs[epoch]] == tested
