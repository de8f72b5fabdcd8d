"""Metrics of Keras' and of the user's own: their values, and those that are refused."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tfpipe.config import Config
from tfpipe.errors import ConfigError
from tfpipe.training.compile import build_metrics
from tfpipe.training.run_model import RunModel

OWN = "tests.support.own"
LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.5, 0.25, 0.25]], np.float32))
LABELS = np.array([0, 1, 2], np.int32)


def config(*metrics: dict) -> Config:
    return Config.model_validate({"data": {"train_filelist": Path("unused")}, "metrics": list(metrics)})


def test_metrics_are_means_over_crops_or_what_their_class_makes_of_sums() -> None:
    metrics = build_metrics(
        config(
            {"name": f"{OWN}:confident"},
            {"name": f"{OWN}:confident", "args": {"above": 0.35, "name": "likely"}},
            {"name": f"{OWN}:Recall", "args": {"of_class": 2}},
            {"name": "SparseTopKCategoricalAccuracy", "args": {"k": 2, "name": "top2"}},
        ),
        3,
    )
    for metric in metrics:
        metric.update_state(LABELS, LOGITS)
    values = {metric.name: float(metric.result()) for metric in metrics}
    expected = {"top1": 2 / 3, "top5": 1, "confident": 1 / 3, "likely": 2 / 3, "recall": 0, "top2": 1}
    assert values == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"name": "Top3"}, r'metrics\[0\].name "Top3" is not known; .*accepted: AUC, .*or one of your own'),
        ({"name": f"{OWN}:confident", "args": {"name": "top1"}}, r'metrics\[0\]: the name "top1" is taken; give'),
        ({"name": f"{OWN}:confident", "args": {"name": "test_x"}}, 'the name "test_x" is taken'),
        (
            {"name": f"{OWN}:confident", "args": {"below": 1}},
            "own:confident: got an unexpected keyword argument 'below'",
        ),
        ({"name": f"{OWN}:Recall", "args": {"below": 1}}, r"metrics\[0\].args .* do not fit Recall"),
        ({"name": f"{OWN}:Begun", "args": {"dtype": "int32", "value": 0}}, "Begun keeps kept, int32, which is no sum"),
        ({"name": f"{OWN}:Begun", "args": {"dtype": "float32", "value": -1.5}}, "keeps kept, float32, which is no sum"),
        ({"name": f"{OWN}:Signs"}, "own:Signs is no subclass of keras.metrics.Metric"),
    ],
)
def test_what_cannot_be_built_is_named(metric: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_metrics(config(metric), 3)


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'metrics\[1\]: the name "confident" is taken; give another one'):
        build_metrics(config({"name": f"{OWN}:confident"}, {"name": f"{OWN}:confident", "args": {"above": 0.35}}), 3)


def test_a_metric_of_keras_that_takes_no_class_numbers_is_named_by_its_key() -> None:
    *_, metric = build_metrics(config({"name": "F1Score"}), 3)
    with pytest.raises(ConfigError, match=r"metrics\[0\].name: F1Score raised ValueError: "):
        metric.update_state(LABELS, LOGITS)


def test_a_result_that_is_no_number_is_named() -> None:
    pixels = keras.Input((3,))
    model = RunModel(pixels, pixels)
    model.compile(metrics=build_metrics(config({"name": f"{OWN}:PerClass"}), 3))
    with pytest.raises(ConfigError, match=r"metrics: the result of each must be a number; recall has the shape \[2\]"):
        model.compute_metrics(LOGITS, LABELS, LOGITS)
