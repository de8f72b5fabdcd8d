"""Keras' fit and `tfpipe train` on each of its backends: the same batches, and runs that resume bit for bit."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import tfpipe
from tests.support.commands import COLD, run, run_train
from tests.support.keras_backend import EPOCHS, STEPS, STOPPED_AFTER
from tests.support.sample import TINY, SampleData
from tfpipe import ConfigError, World, build_dataset, load_config
from tfpipe.training.backends import prepare_backend

TORCH = pytest.param("torch", marks=pytest.mark.full("a cold start of PyTorch; JAX takes the same way"))


@pytest.fixture(scope="module")
def config(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample.config(
        tmp_path_factory.mktemp("keras") / "c.json",
        data={"index": index, "crop_image_size": [16, 16], "crop": "random_resized", "test_crop": "boxes"},
        model={**TINY, "args": {"dropout": 0.5}},
        lr_schedule={"name": "CosineDecay"},
        training={"epochs": 2, "steps_per_epoch": 8, "deterministic": True, "log_positions": True},
    )


@pytest.fixture(scope="module")
def found(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Returns what tests/support/keras_backend.py prints, of a backend."""

    @cache
    def results(name: str) -> dict[str, Any]:
        command = (sys.executable, "-m", "tests.support.keras_backend", config, tmp_path_factory.mktemp(name))
        done = run(*command, KERAS_BACKEND=name, **({} if name == "tensorflow" else COLD))
        assert done.code == 0, done.err
        return json.loads(done.out.splitlines()[-1])

    return results


@pytest.mark.parametrize("name", ["jax", TORCH])
def test_fit_trains_the_same_batches_on_every_backend_without_a_warning(
    found: Callable[[str], dict[str, Any]], name: str
) -> None:
    first, other = found("tensorflow"), found(name)
    assert np.abs(first["weights"]).max() > 1e-4
    for result in (first, other):
        assert result["warned"] == [] and result["same"]
        assert result["counted"] == STEPS * EPOCHS, "what fit takes ahead is not counted"
    assert other["digest"] == first["digest"]
    np.testing.assert_allclose(other["weights"], first["weights"], atol=1e-5)


@pytest.mark.parametrize("name", ["jax", TORCH])
def test_a_run_of_another_backend_resumes_bit_for_bit(found: Callable[[str], dict[str, Any]], name: str) -> None:
    result = found(name)
    assert result["guarded"] == 2 * 6, "a step copies nothing, and its variables stay where they are"
    assert f"SIGTERM: stopped after epoch 1, step {STOPPED_AFTER}; --resume continues from " in result["said"]
    assert result["equal"] and result["plain"]
    whole, parts = result["positions"]
    assert parts == whole and whole.count("\n") == 1 + 2 * 8 * 16
    one, other = ([json.loads(line) for line in text.splitlines()] for text in result["metrics"])
    for expected, got in zip(*([line for line in lines if "loss" in line] for lines in (one, other)), strict=True):
        assert got["test_images"] == expected["test_images"] == 37
        for figure in ("epoch", "step", "loss", "top1", "top5", "test_loss", "test_top1"):
            assert got[figure] == pytest.approx(expected[figure], rel=1e-5), figure
    curve = [(int(batch), float(loss)) for batch, loss in result["curve"]]
    assert [batch for batch, _ in curve] == [*range(8)] * 2
    ends = [line["loss"] for line in other if "loss" in line and "interval" not in line]
    assert [loss for batch, loss in curve if batch == 7] == ends, "the last batch's is the epoch's"
    assert len({loss for _, loss in curve}) == 16, "each batch has its own"


def test_a_call_of_several_steps_commits_no_batch_beyond_the_pass() -> None:
    """Keras counts the last of 3 calls of 2 steps each as the sixth batch, and the pass has 5."""
    committed: list[int] = []
    loader = SimpleNamespace(split="test", used=0, step=0, commit=committed.append, close=lambda: None)
    commit = tfpipe.keras.Commit(loader)
    commit.on_test_begin()
    for last, taken in ((1, 3), (3, 5), (5, 5)):
        loader.step = taken
        commit.on_test_batch_end(last)
    assert committed == [0, 2, 4, 5]


def test_fit_with_steps_of_its_own_goes_through_a_repeated_dataset(config: Path) -> None:
    """6 steps of an epoch are no multiple of 4: without `repeat` Keras would cut its second epoch."""
    counts: list[int] = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: counts.append(0),
        on_train_batch_end=lambda batch, logs: counts.__setitem__(-1, counts[-1] + 1),
    )
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(8)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with tfpipe.Loader(load_config(config), steps_per_epoch=6) as loader:
        model.fit(loader.dataset().repeat(), epochs=5, steps_per_epoch=4, shuffle=False, callbacks=[count], verbose=0)
        assert counts == [4] * 5 and loader.step >= 20


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_repeated_dataset_gives_each_batch_once_whatever_the_state_counts(config: Path, at_once: int) -> None:
    """5 batches of an epoch are no multiple of 4 steps: the next epoch begins before the last batches are counted."""
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(8)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, steps_per_execution=at_once)
    with tfpipe.Loader(load_config(config), steps_per_epoch=5) as loader:
        how = {"epochs": 3, "steps_per_epoch": 4, "shuffle": False, "verbose": 0}
        model.fit(loader.dataset().repeat(), callbacks=[tfpipe.keras.Commit(loader)], **how)
        assert loader.used == loader.step == 12


def test_fit_takes_views_without_labels(config: Path) -> None:
    class Alike(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.seen = keras.layers.Dense(4), 0

        def call(self, views: Any) -> Any:
            self.seen = len(views)
            return [self.head(keras.ops.mean(keras.ops.cast(view, "float32"), axis=(1, 2))) for view in views]

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
            assert y is None
            return keras.ops.mean((y_pred[0] - y_pred[1]) ** 2)

    keys = ["data.targets=none", 'data.views=[{"count": 2, "crop": "random_resized"}]', "data.crop=full"]
    model = Alike()
    model.compile("sgd")
    with tfpipe.Loader(load_config(config, keys), steps_per_epoch=3) as loader:
        model.fit(loader.dataset(), shuffle=False, verbose=0)
        assert model.seen == 2 and loader.step == 3


def test_what_a_backend_cannot_do_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ConfigError, match=r"KERAS_BACKEND=torch needs ranks .* connected by horovod: set"):
        prepare_backend(load_config(config), World(0, 2, "horovod"))
    with pytest.raises(ConfigError, match=r"training\.xla .* received: KERAS_BACKEND=torch"):
        prepare_backend(load_config(config, ["training.xla=true"]), World())


def test_an_unknown_backend_is_refused(config: Path, tmp_path: Path) -> None:
    done = run_train("-c", config, "-l", tmp_path / "run", KERAS_BACKEND="numpy", **COLD)
    assert done.code == 2 and 'KERAS_BACKEND is "numpy"; accepted: tensorflow, jax, torch' in done.err


def test_the_number_of_batches_is_the_datasets(config: Path) -> None:
    loaded = load_config(config)
    assert int(build_dataset(loaded).cardinality()) == -1
    for rank in range(2):
        dataset = build_dataset(loaded, "test", World(rank, 2))
        assert int(dataset.cardinality()) == len(list(dataset)) > 1
    skipping = load_config(config, ["data.on_error=skip"])
    assert int(build_dataset(skipping, "test").cardinality()) == -2, "how many are left out is not known before"


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_fit_that_failed_is_followed_by_one_with_what_it_did_not_use(config: Path, at_once: int) -> None:
    """Of the same dataset, and also if it failed in its last step, when all batches of the epoch were taken."""
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(8)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=at_once)

    def fail(batch: int, logs: Any) -> None:
        if batch >= 4:
            raise ValueError("of the callback")

    with tfpipe.Loader(load_config(config), steps_per_epoch=5) as loader:
        data, commit = loader.dataset(), tfpipe.keras.Commit(loader)
        with pytest.raises(ValueError, match="of the callback"):
            model.fit(data, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail), commit], verbose=0)
        assert (loader.step, loader.used) == (5, 4)
        model.fit(data, callbacks=[commit], shuffle=False, verbose=0)
        assert loader.step == loader.used == 9
