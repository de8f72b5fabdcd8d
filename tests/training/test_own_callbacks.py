"""Callbacks of the config: when they are called, also in a run that is resumed, and how they end a run."""

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe import Config, World, load_config
from tfpipe.errors import ConfigError, Stopped, TfpipeError
from tfpipe.training.checkpointing.checkpoints import read_latest
from tfpipe.training.checkpointing.signals import Stop
from tfpipe.training.evaluate import Evaluator, Scores
from tfpipe.training.loop import train
from tfpipe.training.own_callbacks import check_monitor, choose_mode, looks_at_batches, monitors

DIARY = "tests.support.own:Diary"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def config_with(sample: SampleData, run_dir: Path, *callbacks: dict, epochs: int = 2, **sections: Any) -> Config:
    """Epochs of 3 steps without a test pass."""
    training = {"epochs": epochs, "steps_per_epoch": 3}
    data = {"test_filelist": None, "annotations": "none"}
    path = sample.config(run_dir / "c.json", data=data, training=training, callbacks=list(callbacks), **sections)
    return load_config(path)


def description(path: Path) -> bytes:
    """All that a saved model says of its classes."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return archive.read("config.json")
    with h5py.File(path) as file:
        return json.dumps({name: str(value) for name, value in file.attrs.items()}).encode()


def diary(run_dir: Path, **args: int) -> dict:
    return {"name": DIARY, "args": {"path": str(run_dir / "diary"), **args}}


def entries(run_dir: Path) -> list[list]:
    return [json.loads(line) for line in (run_dir / "diary").read_text().splitlines()]


def test_a_callback_is_called_as_by_fit_and_numbers_batches_by_epoch(
    sample: SampleData, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stopped after the second batch of its second epoch, and resumed."""
    config = config_with(sample, run_dir, diary(run_dir), metrics=[{"name": "tests.support.own:confident"}])
    asked: list[bool] = []

    def stops(stop: Stop) -> bool:
        asked.append(True)
        return len(asked) == 5

    monkeypatch.setattr(Stop, "__bool__", stops)
    with pytest.raises(Stopped, match="after epoch 2, step 2"):
        train(config, World(), run_dir)
    batches = [["batch", number] for number in range(3)]
    _, _, _, _, _, (_, logs), *_ = written = entries(run_dir)
    assert {"loss", "top1", "confident", "images_per_second"} <= set(logs)
    end = ["end", logs]
    assert written == [["begin", 2], ["epoch", 0], *batches, end, ["epoch", 1], *batches[:2]]
    train(config, World(), run_dir, resume=True)
    assert entries(run_dir)[len(written) :] == [["begin", 2], ["epoch", 1], batches[2], end, ["done"]]
    # What a callback adds to the logs is recorded.
    assert [line["from_diary"] for line in read_metrics(run_dir)] == [0.5, 1.5]


def test_a_callback_sees_the_metrics_of_its_batch(sample: SampleData, run_dir: Path) -> None:
    """Not those of a batch before, though the run reads a step's results late."""
    curve = {"name": "tests.support.own:Curve", "args": {"path": str(run_dir / "curve")}}
    train(config_with(sample, run_dir, curve), World(), run_dir)
    batches, losses = zip(*(line.split() for line in (run_dir / "curve").read_text().splitlines()), strict=True)
    assert batches == ("0", "1", "2") * 2 and len(set(losses)) == 6
    assert [float(loss) for loss in losses[2::3]] == [line["loss"] for line in read_metrics(run_dir)]


def test_an_error_of_a_callback_names_the_key_and_the_line(sample: SampleData, run_dir: Path) -> None:
    lost = {"name": DIARY, "args": {"path": str(run_dir / "none/diary")}}
    with pytest.raises(ConfigError, match=r"callbacks\[0\]\.name: Diary raised FileNotFoundError at .*own\.py:\d+, in"):
        train(config_with(sample, run_dir, lost), World(), run_dir)


class Alias(keras.callbacks.Callback):
    def on_batch_end(self, batch: int, logs: dict | None = None) -> None: ...


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None: ...


@pytest.mark.parametrize(
    ("callback", "looks"),
    [
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.ModelCheckpoint("x.keras"), False),
        (keras.callbacks.ModelCheckpoint("x.keras", save_freq=7), True),
        (keras.callbacks.TensorBoard("x", update_freq="epoch"), False),
        (keras.callbacks.TensorBoard("x", update_freq="batch"), True),
        (keras.callbacks.TerminateOnNaN(), True),
        (keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None), False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None), True),
        (Alias(), True),
        (OwnCheckpoint("x.keras"), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, keras.callbacks.Callback) else str(value),
)
def test_only_callbacks_that_may_look_at_a_batch_wait_for_its_metrics(
    callback: keras.callbacks.Callback, looks: bool
) -> None:
    assert looks_at_batches(callback) == looks


def test_metrics_of_an_interrupted_epoch_continue_by_name_and_a_new_one_is_named(
    sample: SampleData, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends in the third step of its only epoch, after the checkpoint of the second."""

    def configured(*metrics: str, **args: int) -> Config:
        entries = [{"name": f"tests.support.own:{name}"} for name in metrics]
        callbacks = [diary(run_dir, **args)]
        config = config_with(sample, run_dir, *callbacks, epochs=1, metrics=entries)
        checkpoint = config.training.checkpoint.model_copy(update={"every_steps": 2})
        how = config.training.model_copy(update={"checkpoint": checkpoint, "deterministic": False})
        return config.model_copy(update={"training": how})

    whole = run_dir / "whole"
    whole.mkdir()
    train(configured("confident", "Recall"), World(), whole)
    with pytest.raises(TfpipeError, match="ended the run after step 3"):
        train(configured("confident", stop_batch=2), World(), run_dir)
    caplog.clear()
    train(configured("Recall", "confident"), World(), run_dir, resume=True)
    assert "metrics that differ from those of the interrupted epoch: recall; " in caplog.text
    assert "their values in epoch 1 are from step 3 on" in caplog.text
    (expected,), (got,) = read_metrics(whole), read_metrics(run_dir)
    for name in ("loss", "top1", "top5", "confident"):
        assert got[name] == pytest.approx(expected[name], rel=1e-4), name


def test_keras_own_callbacks_are_taken_and_end_a_run_that_is_complete(sample: SampleData, run_dir: Path) -> None:
    """What they save has no class of tfpipe's, although the loss and the learning rate do, and can be loaded."""
    stopping = {"name": "EarlyStopping", "args": {"monitor": "loss", "min_delta": 1e9, "patience": 1}}
    writing = {"name": "CSVLogger", "args": {"filename": str(run_dir / "log.csv")}, "ranks": "first"}
    files = [run_dir / name for name in ("saved.keras", "saved.h5", "saved.weights.h5")]
    saving = [
        {"name": "ModelCheckpoint", "args": {"filepath": str(path), "save_weights_only": "weights" in path.name}}
        for path in files
    ]
    sections = {"loss": {"args": {"label_smoothing": 0.1}}, "lr_schedule": {"warmup_epochs": 1}}
    train(config_with(sample, run_dir, stopping, writing, *saving, epochs=9, **sections), World(), run_dir)
    kept = keras.models.load_model(run_dir / "model.keras").get_weights()
    for path in files[:2]:
        assert b"tfpipe" not in description(path)
        for expected, got in zip(kept, keras.models.load_model(path).get_weights(), strict=True):
            np.testing.assert_array_equal(got, expected)
    model = keras.models.load_model(files[0])
    model.load_weights(files[2])
    assert [line["epoch"] for line in read_metrics(run_dir)] == [1, 2]
    assert len((run_dir / "log.csv").read_text().splitlines()) == 3
    assert max(path.name for path in run_dir.glob("checkpoints/*")) == "step-000000006.npz"
    assert (run_dir / "model.keras").exists()


def test_a_callback_that_ends_a_run_within_an_epoch_is_named(sample: SampleData, run_dir: Path) -> None:
    """An epoch that is cut short would count as a whole one; on several ranks the others would wait."""
    config = config_with(sample, run_dir, diary(run_dir, stop_batch=1))
    with pytest.raises(TfpipeError, match="rank 0: the callback Diary ended the run after step 2 of an epoch"):
        train(config, World(), run_dir)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"monitor": "val_loss"},
            'EarlyStopping monitors "val_loss", which this run will not have; accepted: loss, top1,',
        ),
        ({}, 'EarlyStopping monitors "val_loss"'),
        ({"monitor": "test_loss"}, 'monitors "test_loss", which this run will not have'),
        ({"monitor": "dropped_images", "mode": "min"}, 'monitors "dropped_images", which this run will not have'),
        (
            {"monitor": "confident"},
            'mode is missing: EarlyStopping monitors "confident", of which it is not known .* accepted: "min" or "max"',
        ),
    ],
)
def test_a_monitor_that_never_stops_the_run_is_refused_before_the_first_step(
    sample: SampleData, run_dir: Path, args: dict, message: str
) -> None:
    callback = {"name": "EarlyStopping", "args": args}
    config = config_with(sample, run_dir, callback, metrics=[{"name": "tests.support.own:confident"}])
    with pytest.raises(ConfigError, match=rf"callbacks\[0\].args: .*{message}"):
        train(config, World(), run_dir)
    assert not (run_dir / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "monitor", "mode"),
    [
        ("EarlyStopping", "test_loss", "min"),
        ("EarlyStopping", "test_top1", "max"),
        ("ReduceLROnPlateau", "top5", "max"),  # Keras takes the smaller value for the better one
        ("EarlyStopping", "images_per_second", "max"),
        ("EarlyStopping", "auc", "max"),
        ("ReduceLROnPlateau", "error", "min"),
    ],
)
def test_the_direction_of_a_monitor_is_known_where_keras_does_not_know_it(name: str, monitor: str, mode: str) -> None:
    metrics = {"auc": keras.metrics.AUC(name="auc"), "error": keras.metrics.MeanSquaredError(name="error")}
    callback = getattr(keras.callbacks, name)(monitor=monitor)
    choose_mode(callback, "callbacks[0].args", metrics)
    assert callback.mode == mode
    chosen = getattr(keras.callbacks, name)(monitor=monitor, mode="min")
    choose_mode(chosen, "callbacks[0].args", metrics)
    assert chosen.mode == "min"


def test_each_epochs_end_is_seen_once_although_signals_come_in_test_passes(
    sample: SampleData, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One comes in each of the passes of the first two of 3 epochs, and the second epoch's end stops the training."""
    scores = Scores(0.5, 0.5, 0.5, 0.5, 1, 1)
    passes = iter([None, scores, None, scores])
    monkeypatch.setattr(Evaluator, "run", lambda *_: next(passes))
    writing = {"name": "EarlyStopping", "args": {"monitor": "test_top1"}}
    path = sample.config(
        run_dir / "c.json",
        data={"annotations": "none"},
        training={"epochs": 3, "steps_per_epoch": 2},
        callbacks=[diary(run_dir, stop_epoch=1), writing],
    )
    config = load_config(path)
    for epoch in (1, 2):
        with pytest.raises(Stopped, match=f"after epoch {epoch}"):
            train(config, World(), run_dir, resume=epoch > 1)
    train(config, World(), run_dir, resume=True)
    batches, end = (
        [["batch", 0], ["batch", 1]],
        ["end", next(logs for kind, *logs in entries(run_dir) if kind == "end")[0]],
    )
    assert entries(run_dir) == [
        *(["begin", 3], ["epoch", 0], *batches),
        *(["begin", 3], ["epoch", 0], end, ["epoch", 1], *batches),
        *(["begin", 3], ["epoch", 1], end, ["done"]),
    ]
    assert "test_top1" in end[1]
    assert [(line["epoch"], line["step"], line["from_diary"]) for line in read_metrics(run_dir)] == [
        (1, 2, 0.5),
        (2, 4, 1.5),
    ]
    assert (run_dir / "model.keras").exists() and read_latest(run_dir).state.untested is None
    assert "callbacks[1]: EarlyStopping knows no epoch before the resume, which is after 2" in caplog.text


def test_names_that_a_callback_of_the_users_own_may_add_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    stopping = keras.callbacks.EarlyStopping("val_loss")
    check_monitor(stopping, "callbacks[1].args", ["loss", "test_loss"], is_own=True)
    assert (
        'which this run will not have, unless a callback of your own adds it; did you mean "test_loss"?' in caplog.text
    )
    with pytest.raises(ConfigError, match='did you mean "test_loss"'):
        check_monitor(stopping, "callbacks[1].args", ["loss", "test_loss"], is_own=False)
    writing = keras.callbacks.ModelCheckpoint("x.keras")
    assert not monitors(writing) and monitors(keras.callbacks.ModelCheckpoint("x.keras", save_best_only=True))


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            {"name": "Stopping"},
            r'callbacks\[0\].name "Stopping" is not known; .*accepted: .*EarlyStopping, .*of your own',
        ),
        ({"name": DIARY}, r"callbacks\[0\].args \{\} do not fit Diary: .*path"),
        ({"name": "tests.support.own:Signs"}, "own:Signs is no subclass of keras.callbacks.Callback"),
        (
            {"name": "BackupAndRestore", "args": {"backup_dir": "x"}},
            r"callbacks\[0\].name: BackupAndRestore would load its own weights .* --resume do its work",
        ),
        ({"name": "SwapEMAWeights"}, r"callbacks\[0\].name: SwapEMAWeights would swap weights that are the averages"),
    ],
)
def test_what_is_no_callback_is_named(sample: SampleData, run_dir: Path, callback: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config_with(sample, run_dir, callback), World(), run_dir)
