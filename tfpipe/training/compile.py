"""Optimizer with its learning rate, loss and metrics, by their Keras names or of the user's own."""

import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from tfpipe.config import Config
from tfpipe.config.model import MetricConfig
from tfpipe.errors import ConfigError, counted
from tfpipe.training.by_name import (
    OWN,
    build,
    call,
    check_signature,
    find,
    load_kind,
    name_errors,
    named_errors,
    subclasses,
)
from tfpipe.util.process import load_function

RATE_SETTERS = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
# Reductions of a loss over crops that the mean over ranks, which have equally many, leaves exact.
MEANS = ("sum_over_batch_size", "mean")
# Names of an epoch's line in metrics.jsonl.
NAMES = {"epoch", "step", "loss", "seconds", "images_per_second", "input_wait_fraction", "dropped_images", "interval"}


def build_optimizer(
    config: Config, size: int, steps_per_epoch: int, total_steps: int | None = None
) -> keras.optimizers.Optimizer:
    """Builds the optimizer of `config` with its learning rate schedule, for `size` ranks.

    The first epoch has `steps_per_epoch` steps, the run `total_steps`, None for as many in each. Raises ConfigError if
    Keras does not know a name or an argument, or the user's own function gives no optimizer.
    """
    args, name = dict(config.optimizer.args), config.optimizer.name
    if config.optimizer.learning_rate is not None:
        args["learning_rate"] = config.optimizer.learning_rate
    kind = load_kind(name, "optimizer.name", known_optimizers())
    parameter = inspect.signature(kind).parameters.get("learning_rate")
    base = args.get("learning_rate", parameter and parameter.default)
    if not isinstance(base, int | float):
        raise ConfigError(f"optimizer.learning_rate is missing: {name} has no number as the default of learning_rate")
    total_steps = total_steps or config.training.epochs * steps_per_epoch
    args["learning_rate"] = build_schedule(config, base, size, steps_per_epoch, total_steps)
    optimizer = call(kind, "optimizer.args", kind.__name__, args)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(f"optimizer.name: {name} gives no keras.optimizers.Optimizer; received {optimizer!r}")
    if (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        raise ConfigError(f"optimizer.name: {name} gives a {type(optimizer).__name__} of {inner!r}: give that one")
    name_errors(optimizer, ("build", "apply"), "optimizer.name", name)
    # Also without optimizer.args.weight_decay: AdamW and Muon decay weights by default.
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def known_optimizers() -> dict[str, Any]:
    """Returns Keras' optimizers by name, without those that wrap other optimizers and have no learning rate."""
    kinds = subclasses(keras.optimizers, keras.optimizers.Optimizer)
    return {name: kind for name, kind in kinds.items() if "learning_rate" in inspect.signature(kind).parameters}


def build_schedule(
    config: Config, base: float, size: int, steps_per_epoch: int, total_steps: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Builds the learning rate of `lr_schedule`, scaled by ranks and warmed up in epochs like the first.

    `base` is the optimizer's rate.
    """
    section = config.lr_schedule
    rate: Any = base
    if section.name is not None:
        schedules = keras.optimizers.schedules
        kinds = subclasses(schedules, schedules.LearningRateSchedule)
        kind = load_kind(section.name, "lr_schedule.name", kinds)
        accepted = inspect.signature(kind).parameters
        defaults = {"initial_learning_rate": base, "decay_steps": total_steps}
        args = {key: value for key, value in defaults.items() if key in accepted} | section.args
        rate = call(kind, "lr_schedule.args", section.name, args)
        if not isinstance(rate, schedules.LearningRateSchedule):
            raise ConfigError(f"lr_schedule.name: {section.name} gives no LearningRateSchedule of Keras'; got {rate!r}")
    scale = float(size) if section.scale_by_ranks else 1.0
    warmup_steps = round(section.warmup_epochs * steps_per_epoch)
    if scale == 1.0 and warmup_steps == 0:
        return rate
    return ScaledWarmup(rate, scale, warmup_steps)


@keras.saving.register_keras_serializable("tfpipe")
class ScaledWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate times `scale`, reached in `warmup_steps` steps (Goyal et al. 2017, 2.2).

    The factor on the rate grows linearly from 1 to `scale`; with a scale of 1, from 0 to 1.
    """

    def __init__(self, rate: Any, scale: float, warmup_steps: int) -> None:
        super().__init__()
        self.rate, self.scale, self.warmup_steps = rate, scale, warmup_steps

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step, "float32")
        rate = self.rate(step) if callable(self.rate) else self.rate
        first = 1.0 if self.scale > 1 else 0.0
        done = keras.ops.minimum(1.0, step / max(1, self.warmup_steps)) if self.warmup_steps else 1.0
        return rate * (first + (self.scale - first) * done)

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate, "scale": self.scale, "warmup_steps": self.warmup_steps}


def check_rate_setters(config: Config, size: int) -> None:
    """Checks that callbacks which set the learning rate may do so, and do so on all `size` ranks.

    Raises ConfigError if `lr_schedule` makes it a schedule, which no callback can set, or one is on rank 0 alone.
    """
    section, kinds = config.lr_schedule, subclasses(keras.callbacks, keras.callbacks.Callback)
    scheduled = section.name is not None or section.warmup_epochs > 0 or (section.scale_by_ranks and size > 1)
    for number, entry in enumerate(config.callbacks):
        kind = load_kind(entry.name, f"callbacks[{number}].name", kinds)
        if not (inspect.isclass(kind) and issubclass(kind, RATE_SETTERS)):
            continue
        if scheduled:
            raise ConfigError(
                f"callbacks[{number}].name: {entry.name} sets the learning rate, and lr_schedule "
                f"{section.model_dump_json(exclude_defaults=True)} does too: leave one of them out"
            )
        if entry.ranks == "first" and size > 1:
            raise ConfigError(
                f'callbacks[{number}].ranks is "first": {entry.name} would set the learning rate of rank 0 alone, of '
                f'{counted(size, "rank")}; accepted: "all"'
            )


def build_loss(config: Config, classes: int, reduction: str | None = None) -> keras.losses.Loss:
    """Builds the loss of `config` between int labels [batch], or shares of classes, and logits [batch, classes].

    `reduction` "none" gives a loss for each crop, whatever `loss.args` says; None leaves it to Keras and `loss.args`.
    Raises ConfigError if Keras does not know a name or an argument; a loss of the user's own does when it fails.
    """
    name = config.loss.name
    args = config.loss.args | ({} if reduction is None else {"reduction": reduction})
    if ":" in name:
        return _own_loss(name, classes, args, shares=config.data.mix is not None)
    args = {"from_logits": True, **args}
    if name == "SparseCategoricalCrossentropy" and ("label_smoothing" in args or config.data.mix is not None):
        if "ignore_class" in args:
            raise ConfigError(
                f"loss.args.ignore_class {args['ignore_class']} is for class numbers, and data.mix or label_smoothing "
                "makes shares of classes: leave one of them out"
            )
        name = "CategoricalCrossentropy"
    kind = find(subclasses(keras.losses, keras.losses.Loss), name, "loss.name")
    if "from_logits" not in inspect.signature(kind).parameters:
        raise ConfigError(f'loss.name "{name}" takes no logits; accepted: a cross-entropy of keras.losses, {OWN}')
    loss = call(kind, "loss.args", name, args)
    return AdaptedLoss(loss.call, loss, Inputs.of(name, classes, logits=args["from_logits"]))


def check_over_ranks(loss: keras.losses.Loss, size: int) -> None:
    """Raises ConfigError if the mean over `size` ranks of its gradients is not the gradient of a loss of all crops."""
    if size == 1:
        return
    if loss.reduction not in MEANS:
        raise ConfigError(
            f'loss.args.reduction "{loss.reduction}" is not exact on several ranks, which average their '
            f"gradients; accepted: {' or '.join(json.dumps(each) for each in MEANS)}, with another "
            "optimizer.learning_rate, or one rank"
        )
    if (ignored := getattr(loss, "ignore_class", None)) is not None:
        raise ConfigError(
            f"loss.args.ignore_class {ignored} is not exact on several ranks, which average their means though "
            "each has another number of crops that count: leave these crops out of the data, or train on one rank"
        )


def _own_loss(name: str, classes: int, args: dict[str, Any], *, shares: bool) -> keras.losses.Loss:
    user_loss = load_function(name, "loss.name")
    reduction = args.pop("reduction", None if inspect.isclass(user_loss) else "sum_over_batch_size")
    if inspect.isclass(user_loss):
        loss = build(name, args, "loss", keras.losses, keras.losses.Loss)
        loss.reduction = reduction or loss.reduction
        function = loss.call
    else:
        loss, function = keras.losses.Loss(user_loss.__name__, reduction), partial(user_loss, **args)
        check_signature(user_loss, "loss.args", name, args, None, None)

    @named_errors("loss.name", name)
    def of_crops(labels: Any, logits: Any) -> Any:
        losses = function(labels, logits)
        if len(losses.shape) != 1:
            raise ConfigError(
                f"loss.name: {name} must return a loss for each crop, [batch], since the test pass sums them; received "
                f"shape {list(losses.shape)}: leave the mean to tfpipe"
            )
        return losses

    return AdaptedLoss(of_crops, loss, Inputs(classes if shares else None, logits=True))


class Inputs(NamedTuple):
    """Labels and outputs as a loss or a metric takes them."""

    classes: int | None  # None: labels are class numbers, int32 [batch]; else their shares, float32 [batch, classes]
    logits: bool  # whether outputs are logits, or else probabilities, by softmax

    @classmethod
    def of(cls, name: str, classes: int, *, logits: bool) -> "Inputs":
        """Returns the inputs of Keras' loss or metric `name`."""
        return cls(None if name.startswith("Sparse") else classes, logits)

    def adapt(self, labels: Any, logits: Any) -> tuple[Any, Any]:
        """Returns labels and outputs in this form. Class numbers become shares of 0 and 1."""
        ops = keras.ops
        if self.classes is None or len(labels.shape) < 2 or labels.shape[-1] == 1:
            # Keras hands losses and metrics class numbers as floats, in the logits' rank.
            labels = ops.reshape(ops.cast(labels, "int32"), [-1])
        if self.classes is not None:
            labels = ops.cast(labels if len(labels.shape) == 2 else ops.one_hot(labels, self.classes), "float32")
        return labels, logits if self.logits else ops.softmax(logits)


class AdaptedLoss(keras.losses.Loss):
    """A loss for each crop, float [batch], by a function of labels and outputs."""

    def __init__(self, function: Callable[[Any, Any], Any], loss: keras.losses.Loss, inputs: Inputs) -> None:
        """Takes the function, a loss that has the name and the reduction, and what the function takes."""
        super().__init__(loss.name, loss.reduction)
        self.function, self.inputs, self.ignore_class = function, inputs, getattr(loss, "ignore_class", None)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(*self.inputs.adapt(y_true, y_pred))


def build_metrics(config: Config, classes: int) -> list[keras.metrics.Metric]:
    """Builds top1, top5 and the metrics of `config`, of int labels [batch] and logits [batch, classes].

    Raises ConfigError if a name or an argument is not known, two metrics have one name, or one keeps other than sums.
    """
    metrics = [
        keras.metrics.SparseCategoricalAccuracy(name="top1"),
        keras.metrics.SparseTopKCategoricalAccuracy(min(5, classes), name="top5"),
    ]
    taken = NAMES | {metric.name for metric in metrics}
    for number, section in enumerate(config.metrics):
        key, name = f"metrics[{number}]", section.name
        metric = _own_metric(section, key) if ":" in name else _keras_metric(section, key, classes)
        if metric.name in taken or metric.name.startswith("test_"):
            raise ConfigError(f'{key}: the name "{metric.name}" is taken; give another one as args.name')
        taken.add(metric.name)
        for kept in metric.variables:
            if not keras.backend.is_float_dtype(kept.dtype) or keras.ops.convert_to_numpy(kept).any():
                raise ConfigError(
                    f"{key}.name: {name} keeps {kept.name}, {kept.dtype}, which is no sum of floats that begins at 0: "
                    "ranks and the parts of an interrupted epoch add what it keeps; keep such sums, or leave it out"
                )
        name_errors(metric, ("update_state", "result"), f"{key}.name", name)
        metrics.append(metric)
    return metrics


def _keras_metric(section: MetricConfig, key: str, classes: int) -> keras.metrics.Metric:
    """Builds a metric of Keras' that gets its kind of labels and outputs: of the loss' own for cross-entropies.

    Those that compare the order of outputs get logits, which softmax may round to equal probabilities.
    """
    name, kind = section.name, find(subclasses(keras.metrics, keras.metrics.Metric), section.name, f"{key}.name")
    logits = name.endswith(("CategoricalAccuracy", "Crossentropy"))
    takes_logits = logits and "from_logits" in inspect.signature(kind).parameters
    args = ({"from_logits": True} if takes_logits else {}) | section.args
    metric = call(kind, f"{key}.args", name, args)
    update, inputs = metric.update_state, Inputs.of(name, classes, logits=args.get("from_logits", logits))
    is_of_pairs = {"y_true", "y_pred"} <= inspect.signature(update).parameters.keys()
    if name == "Accuracy" or not is_of_pairs or getattr(metric, "sparse_y_pred", False):
        raise ConfigError(
            f"{key}.name: {name} does not compare classes with outputs for each of them; accepted: e.g. "
            f"CategoricalAccuracy, OneHotMeanIoU, {OWN}"
        )
    if getattr(metric, "sparse_y_true", False):
        inputs = inputs._replace(classes=None)
    metric.update_state = lambda y_true, y_pred, sample_weight=None: update(
        *inputs.adapt(y_true, y_pred), sample_weight
    )
    with named_errors(f"{key}.name", name):  # some make their variables of a first batch
        metric.update_state(np.zeros(1, np.int32), np.zeros((1, classes), np.float32))
        shape = list(metric.result().shape)
        metric.reset_state()
    if shape:
        raise ConfigError(f"{key}.args: the result of {name} has the shape {shape}; give args that make it one number")
    return metric


def _own_metric(section: MetricConfig, key: str) -> keras.metrics.Metric:
    name, args = section.name, dict(section.args)
    function = load_function(name, f"{key}.name")
    if inspect.isclass(function):
        return build(name, args, key, keras.metrics, keras.metrics.Metric)
    label, inputs = args.pop("name", function.__name__), Inputs(None, logits=True)
    check_signature(function, f"{key}.args", name, args, None, None)
    return keras.metrics.MeanMetricWrapper(lambda *batch: function(*inputs.adapt(*batch), **args), label)
