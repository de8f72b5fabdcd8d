"""Metrics of training besides the loss: top1, top5, and those of the config."""

import inspect
from functools import partial
from typing import Any

import keras
import numpy as np

from tfpipe.config import Config
from tfpipe.config.model import MetricConfig
from tfpipe.errors import ConfigError
from tfpipe.training.by_name import check_signature, find, make, own_errors, subclasses
from tfpipe.util.import_function import load_function

# Names of an epoch's line in metrics.jsonl.
TAKEN = {"epoch", "step", "loss", "seconds", "images_per_second", "input_wait_fraction", "dropped_images", "interval"}
TRIAL_CROPS = 8


def build_metrics(config: Config, classes: int) -> list[keras.metrics.Metric]:
    """Builds top1, top5 and the metrics of `config`, of int labels [batch] and logits [batch, classes].

    Raises ConfigError if a name or an argument is not known, two metrics have one name, or the metric of an interrupted
    epoch could not be resumed.
    """
    metrics = [
        keras.metrics.SparseCategoricalAccuracy(name="top1"),
        keras.metrics.SparseTopKCategoricalAccuracy(min(5, classes), name="top5"),
    ]
    taken = TAKEN | {metric.name for metric in metrics}
    for number, section in enumerate(config.metrics):
        key = f"metrics[{number}]"
        metric = _build(section, key)
        if metric.name in taken or metric.name.startswith("test_"):
            raise ConfigError(f'{key}: the name "{metric.name}" is taken; give another one as args.name')
        taken.add(metric.name)
        try:
            with own_errors(f"{key}.name", section.name):
                _check(metric, classes, f"{key}.name: {section.name}")
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{key}.name: {section.name} does not take class numbers, int32 [batch], and logits [batch, classes]: "
                f"{error}"
            ) from error
        metrics.append(metric)
    return metrics


def _build(section: MetricConfig, key: str) -> keras.metrics.Metric:
    if ":" not in section.name:
        kinds = subclasses(keras.metrics, keras.metrics.Metric)
        return make(find(kinds, section.name, f"{key}.name"), section.args, f"{key}.args")
    own = load_function(section.name, f"{key}.name")
    if inspect.isclass(own):
        metric = make(own, section.args, f"{key}.args")
        if not isinstance(metric, keras.metrics.Metric):
            raise ConfigError(f"{key}.name: {section.name} is no subclass of keras.metrics.Metric")
        return metric
    args = dict(section.args)
    name = args.pop("name", own.__name__)
    check_signature(own, f"{key}.args", section.name, args, None, None)

    def of_numbers(labels: Any, logits: Any) -> Any:
        # Keras hands metrics their labels as floats.
        return own(keras.ops.reshape(keras.ops.cast(labels, "int32"), [-1]), logits, **args)

    return keras.metrics.MeanMetricWrapper(of_numbers, name)


def _check(metric: keras.metrics.Metric, classes: int, name: str) -> None:
    """Checks that a metric's variables are sums over batches, since ranks and the parts of an epoch add them.

    Raises ConfigError if they are not, or the result is not a number.
    """
    draw = np.random.default_rng(0)
    batches = [
        (draw.integers(0, classes, TRIAL_CROPS, np.int32), draw.normal(size=(TRIAL_CROPS, classes)).astype(np.float32))
        for _ in range(2)
    ]

    def state(*batches: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
        metric.reset_state()
        for batch in batches:
            metric.update_state(*map(keras.ops.convert_to_tensor, batch))
        return [variable.numpy() for variable in metric.variables]

    first, second, both = state(batches[0]), state(batches[1]), state(*batches)
    if np.ndim(metric.result()) != 0:
        raise ConfigError(f"{name} must have a number as its result; received {metric.result()}")
    zero = state()
    sums = [one + other for one, other in zip(first, second, strict=True)]
    close = partial(np.allclose, rtol=1e-4, atol=1e-6)
    floats = all(np.issubdtype(values.dtype, np.floating) for values in both)
    if not (floats and not any(map(np.any, zero)) and all(map(close, sums, both))):
        raise ConfigError(
            f"{name} keeps values that are not sums over batches, which begin at 0.0, so an interrupted epoch could "
            "not be resumed: keep sums and counts, in variables of a float type"
        )
