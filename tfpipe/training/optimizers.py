"""Optimizer, learning rate and loss, by their Keras names."""

import inspect
from typing import Any

import keras

from tfpipe.config import Config
from tfpipe.errors import ConfigError


def build_optimizer(config: Config, size: int, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    """Builds the optimizer of `config` with its learning rate schedule, for `size` ranks.

    Raises ConfigError if Keras does not know a name or an argument.
    """
    args = dict(config.optimizer.args)
    if config.optimizer.learning_rate is not None:
        args["learning_rate"] = config.optimizer.learning_rate
    kind = _find(known_optimizers(), config.optimizer.name, "optimizer.name")
    base = args.get("learning_rate", inspect.signature(kind).parameters["learning_rate"].default)
    args["learning_rate"] = build_schedule(config, base, size, steps_per_epoch)
    optimizer = _make(kind, args, "optimizer.args")
    # Also without optimizer.args.weight_decay: AdamW and Muon decay weights by default.
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def known_optimizers() -> dict[str, Any]:
    """Returns Keras' optimizers by name, without those that wrap other optimizers and have no learning rate."""
    kinds = _subclasses(keras.optimizers, keras.optimizers.Optimizer)
    return {name: kind for name, kind in kinds.items() if "learning_rate" in inspect.signature(kind).parameters}


def build_schedule(
    config: Config, base: float, size: int, steps_per_epoch: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Builds the learning rate of `lr_schedule`, scaled by ranks and warmed up; `base` is the optimizer's rate."""
    section = config.lr_schedule
    rate: Any = base
    if section.name is not None:
        schedules = keras.optimizers.schedules
        kind = _find(_subclasses(schedules, schedules.LearningRateSchedule), section.name, "lr_schedule.name")
        accepted = inspect.signature(kind).parameters
        defaults = {"initial_learning_rate": base, "decay_steps": config.training.epochs * steps_per_epoch}
        args = {key: value for key, value in defaults.items() if key in accepted} | section.args
        rate = _make(kind, args, "lr_schedule.args")
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


def build_loss(config: Config, classes: int, reduction: str | None = "sum_over_batch_size") -> keras.losses.Loss:
    """Builds the loss of `config` between int labels [batch] and logits [batch, classes].

    Raises ConfigError if Keras does not know a name or an argument.
    """
    args = {"from_logits": True, "reduction": reduction, **config.loss.args}
    name = config.loss.name
    if name == "SparseCategoricalCrossentropy" and "label_smoothing" in args:
        name = "CategoricalCrossentropy"
    kind = _find(_subclasses(keras.losses, keras.losses.Loss), name, "loss.name")
    if "from_logits" not in inspect.signature(kind).parameters:
        raise ConfigError(f'loss.name "{name}" takes no logits; accepted: a cross-entropy of keras.losses')
    loss = _make(kind, args, "loss.args")
    return loss if name.startswith("Sparse") else OneHotLoss(loss, classes, reduction)


class OneHotLoss(keras.losses.Loss):
    """A loss that needs one-hot labels, made to accept class numbers."""

    def __init__(self, loss: keras.losses.Loss, classes: int, reduction: str | None) -> None:
        super().__init__(loss.name, reduction)
        self.loss, self.classes = loss, classes

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels = keras.ops.reshape(keras.ops.cast(y_true, "int32"), [-1])
        return self.loss.call(keras.ops.one_hot(labels, self.classes), y_pred)


def _subclasses(module: Any, base: type) -> dict[str, Any]:
    return {
        name: kind
        for name, kind in sorted(vars(module).items())
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
    }


def _find(kinds: dict[str, Any], name: str, key: str) -> Any:
    if name not in kinds:
        raise ConfigError(f'{key} "{name}" is not known; accepted: {", ".join(kinds)}')
    return kinds[name]


def _make(kind: Any, args: dict[str, Any], key: str) -> Any:
    try:
        return kind(**args)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key} {args} do not fit {kind.__name__}: {error}") from error
