"""Losses of Keras', and metrics of Keras' and of the user's own: their values, and those that are refused."""

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest

from tfpipe.config import Config
from tfpipe.config.model import LossConfig
from tfpipe.errors import ConfigError
from tfpipe.training.by_name import subclasses
from tfpipe.training.compile import build_loss, build_metrics
from tfpipe.training.run_model import RunModel

OWN = "tests.support.own"
LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.5, 0.25, 0.25]], np.float32))
LABELS = np.array([0, 1, 2], np.int32)


def config(*metrics: dict) -> Config:
    return Config.model_validate({"data": {"train_filelist": Path("unused")}, "metrics": list(metrics)})


def loss_config(name: str, **args: bool) -> Config:
    return config().model_copy(update={"loss": LossConfig(name=name, args=args)})


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
        ({"name": "OneHotMeanIoU", "args": {"num_classes": 3}}, "keeps total_confusion_matrix, int64, which is no sum"),
        ({"name": f"{OWN}:Signs"}, "own:Signs is no subclass of keras.metrics.Metric"),
        ({"name": "F1Score"}, r"metrics\[0\].args: the result of F1Score has the shape \[3\]; give args"),
    ],
)
def test_what_cannot_be_built_is_named(metric: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_metrics(config(metric), 3)


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'metrics\[1\]: the name "confident" is taken; give another one'):
        build_metrics(config({"name": f"{OWN}:confident"}, {"name": f"{OWN}:confident", "args": {"above": 0.35}}), 3)


CROPS = 12
# Arguments of Keras' metrics that have no default, or that make the result one number.
ARGS = {
    "F1Score": {"average": "macro"},
    "FBetaScore": {"average": "macro"},
    "IoU": {"num_classes": 2, "target_class_ids": [1]},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"target_class_ids": [1], "dtype": "float32"},
    "OneHotMeanIoU": {"dtype": "float32"},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
}
NO_PAIRS = "does not compare classes with outputs for each of them; accepted: e.g. CategoricalAccuracy, OneHotMeanIoU"
REFUSED = {
    "Accuracy": NO_PAIRS,
    "BinaryIoU": NO_PAIRS,
    "IoU": NO_PAIRS,
    "Mean": NO_PAIRS,
    "MeanIoU": NO_PAIRS,
    "MeanMetricWrapper": "args .* do not fit MeanMetricWrapper: missing a required argument: 'fn'",
    "Sum": NO_PAIRS,
}


def batch(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns class numbers, int32 [CROPS], and logits, float32 [CROPS, classes]."""
    random = np.random.default_rng(classes)
    return random.integers(classes, size=CROPS, dtype=np.int32), random.normal(size=(CROPS, classes)).astype("f")


def keras_inputs(name: str, labels: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and probabilities as Keras' documentation of a metric or loss has them."""
    truth = labels if name.startswith("Sparse") else np.eye(logits.shape[1], dtype=np.float32)[labels]
    binary = name in ("BinaryCrossentropy", "BinaryFocalCrossentropy")
    return truth, np.asarray(keras.ops.sigmoid(logits) if binary else keras.ops.softmax(logits))


@pytest.mark.parametrize("classes", [2, 7, CROPS])
@pytest.mark.parametrize("name", subclasses(keras.metrics, keras.metrics.Metric))
def test_a_metric_of_keras_is_its_own_of_one_hot_labels_and_probabilities_or_refused(name: str, classes: int) -> None:
    args = ARGS.get(name, {}) | ({"num_classes": classes} if name.startswith("OneHot") else {})
    settings = config({"name": name, "args": args})
    if name in REFUSED:
        with pytest.raises(ConfigError, match=rf"metrics\[0\]\..*{REFUSED[name]}"):
            build_metrics(settings, classes)
        return
    metrics = build_metrics(settings, classes)
    labels, logits = batch(classes)
    pixels = keras.Input((classes,))
    model = RunModel(pixels, pixels)
    model.compile(metrics=metrics)
    for half in (slice(0, 5), slice(5, None)):  # as a step of a run does, with names for arguments
        logs = model.compute_metrics(logits[half], keras.ops.convert_to_tensor(labels[half]), logits[half])
    metric = metrics[-1]
    np.testing.assert_allclose(logs[metric.name], metric.result(), rtol=1e-6)
    reference = getattr(keras.metrics, name)(**args)
    reference.update_state(*keras_inputs(name, labels, logits))
    np.testing.assert_allclose(metric.result(), reference.result(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 7, CROPS])
@pytest.mark.parametrize("name", subclasses(keras.losses, keras.losses.Loss))
def test_a_loss_of_keras_is_its_own_of_one_hot_labels_and_probabilities_or_refused(name: str, classes: int) -> None:
    kind = getattr(keras.losses, name)
    if "from_logits" not in inspect.signature(kind).parameters:
        with pytest.raises(ConfigError, match=rf'loss.name "{name}" takes no logits; accepted: a cross-entropy'):
            build_loss(loss_config(name), classes)
        return
    labels, logits = batch(classes)
    truth, probabilities = keras_inputs(name, labels, logits)
    np.testing.assert_allclose(
        build_loss(loss_config(name), classes)(labels, logits), kind()(truth, probabilities), rtol=1e-4
    )
    of_softmax = build_loss(loss_config(name, from_logits=False), classes)(labels, logits)
    np.testing.assert_allclose(of_softmax, kind()(truth, keras.ops.softmax(logits)), rtol=1e-4)


def test_a_cross_entropy_among_the_metrics_is_the_loss() -> None:
    """Also of outputs that softmax rounds to 0."""
    labels, logits = batch(7)
    *_, metric = build_metrics(config({"name": "CategoricalCrossentropy"}), 7)
    metric.update_state(labels, 100 * logits)
    np.testing.assert_allclose(metric.result(), build_loss(config(), 7)(labels, 100 * logits), rtol=1e-5)


def test_a_result_that_is_no_number_is_named() -> None:
    pixels = keras.Input((3,))
    model = RunModel(pixels, pixels)
    model.compile(metrics=build_metrics(config({"name": f"{OWN}:PerClass"}), 3))
    with pytest.raises(ConfigError, match=r"metrics: the result of each must be a number; recall has the shape \[2\]"):
        model.compute_metrics(LOGITS, LABELS, LOGITS)
