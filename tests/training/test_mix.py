"""Training on mixed batches: losses and metrics of labels that are shares of classes, and of class numbers too."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.sample import SampleData
from tfpipe import World, load_config
from tfpipe.config import Config
from tfpipe.errors import ConfigError
from tfpipe.training.backends import make_model
from tfpipe.training.compile import build_loss, build_metrics
from tfpipe.training.loop import train
from tfpipe.training.models import build_model
from tfpipe.training.run_model import class_numbers

LOGITS = np.array([[2.0, -1.0, 0.5], [0.1, 0.2, 3.0]], np.float32)
NUMBERS = np.array([0, 1], np.int32)
SHARES = np.array([[0.7, 0.0, 0.3], [0.0, 1.0, 0.0]], np.float32)
OWN = "tests.support.own"


def config(mix: bool = True, **sections: Any) -> Config:
    data = {"train_filelist": Path("unused"), "mix": {"mixup": 1.0} if mix else None}
    return Config.model_validate({"data": data, **sections})


def cross_entropy(shares: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
    shares = shares * (1 - smoothing) + smoothing / 3
    return -(shares * (LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))).sum(1)


def binary(shares: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
    """The mean over classes, as in timm's BinaryCrossEntropy."""
    shares, likely = shares * (1 - smoothing) + smoothing / 2, 1 / (1 + np.exp(-LOGITS.astype(float)))
    return -(shares * np.log(likely) + (1 - shares) * np.log(1 - likely)).mean(1)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({}, cross_entropy),
        ({"args": {"label_smoothing": 0.1}}, lambda shares: cross_entropy(shares, 0.1)),
        ({"name": "CategoricalCrossentropy"}, cross_entropy),
        ({"name": "BinaryCrossentropy"}, binary),
        ({"name": "BinaryCrossentropy", "args": {"label_smoothing": 0.1}}, lambda shares: binary(shares, 0.1)),
        ({"name": f"{OWN}:shared", "args": {"power": 1.0}}, cross_entropy),
        ({"name": f"{OWN}:Shared"}, cross_entropy),
    ],
)
def test_losses_take_shares_and_in_the_test_pass_numbers(loss: dict, expected: Any) -> None:
    whole = build_loss(config(loss=loss), 3, reduction="none")
    np.testing.assert_allclose(whole(SHARES, LOGITS), expected(SHARES), rtol=1e-5)
    np.testing.assert_allclose(whole(NUMBERS, LOGITS), expected(np.eye(3)[NUMBERS]), rtol=1e-5)
    np.testing.assert_allclose(build_loss(config(loss=loss), 3)(SHARES, LOGITS), expected(SHARES).mean(), rtol=1e-5)


def test_binary_cross_entropy_works_without_mixing_too() -> None:
    loss = build_loss(config(mix=False, loss={"name": "BinaryCrossentropy"}), 3, reduction="none")
    np.testing.assert_allclose(loss(NUMBERS, LOGITS), binary(np.eye(3)[NUMBERS]), rtol=1e-5)


def test_a_class_that_is_to_be_ignored_has_no_share() -> None:
    with pytest.raises(ConfigError, match=r"loss\.args\.ignore_class 2 is for class numbers, and data\.mix"):
        build_loss(config(loss={"args": {"ignore_class": 2}}), 3)


def test_metrics_count_the_class_of_the_largest_share() -> None:
    settings = config(metrics=[{"name": f"{OWN}:confident"}])
    inputs = keras.Input((3,))
    model = make_model(keras.Model(inputs, keras.layers.Activation("linear")(inputs)), settings, World())
    model.compile("sgd", build_loss(settings, 3), metrics=build_metrics(settings, 3))
    for labels in (SHARES, NUMBERS):
        model.reset_metrics()
        logs = model.compute_metrics(LOGITS, tf.constant(labels), tf.constant(LOGITS))
        assert {name: float(logs[name]) for name in ("top1", "top5", "confident")} == {
            "top1": 0.5,
            "top5": 1.0,
            "confident": 0.5,
        }
    assert class_numbers(tf.constant(SHARES)).numpy().tolist() == [0, 1]


@pytest.mark.parametrize("loss", [{}, {"name": "BinaryCrossentropy"}], ids=str)
def test_a_run_on_mixed_batches_trains_tests_and_saves(sample: SampleData, tmp_path: Path, loss: dict) -> None:
    path = sample.config(
        tmp_path / "c.json",
        data={"mix": {"mixup": 0.2, "cutmix": 1.0}, "annotations": "none"},
        training={"epochs": 1, "steps_per_epoch": 3},
        loss=loss,
    )
    (tmp_path / "run").mkdir()
    logs = train(load_config(path), World(), tmp_path / "run")
    assert 0 <= logs["top1"] <= logs["top5"] <= 1 and 0 <= logs["test_top1"] <= 1
    assert np.isfinite([logs["loss"], logs["test_loss"]]).all()
    assert (tmp_path / "run/model.keras").exists()
    assert build_model(load_config(path), 8).output_shape == (None, 8)
