"""The JSON config: every key with its default and meaning, and every mistake in it named at once."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from tfpipe.config_data import (
    DataConfig,
    Kernel,
    Layout,
    Parallel,
    RandomResizedCrop,
    Remote,
    Section,
    Seed,
    Service,
    Source,
    WeightedList,
)
from tfpipe.config_errors import explain
from tfpipe.errors import ConfigError

__all__ = [
    "Config",
    "DataConfig",
    "Kernel",
    "Layout",
    "Parallel",
    "RandomResizedCrop",
    "Remote",
    "Service",
    "Source",
    "WeightedList",
    "load_config",
]
# As the ALCF example's config has it.
MISSPELT = "prefectch_buffer_size"


class ModelConfig(Section):
    """The network."""

    name: str = "resnet18"
    """"resnet18", or any name in keras.applications; "resnet" is ResNet50, as in the ALCF skeleton."""
    args: dict[str, Any] = {}
    """Of resnet18: {"stem": "imagenet" | "small", "width": 64, "norm": "batch" | "none"}; else Keras' own."""


class OptimizerConfig(Section):
    """The optimizer, by its Keras name."""

    name: str = "Adam"
    """In keras.optimizers, e.g. "SGD"."""
    args: dict[str, Any] = {}
    """Keras' own, e.g. {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-5}. Biases and
    normalisation weights are left out of weight decay (Goyal et al. 2017)."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Shorthand for args.learning_rate."""


class LrScheduleConfig(Section):
    """The learning rate over the steps."""

    name: str | None = None
    """In keras.optimizers.schedules, e.g. "CosineDecay"; null: constant."""
    args: dict[str, Any] = {}
    """Keras' own; initial_learning_rate defaults to the optimizer's, decay_steps to all steps of the run."""
    scale_by_ranks: bool = False
    """Multiply the rate by the number of ranks (Goyal et al. 2017, the linear scaling rule)."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Epochs of linear warm-up: from the one-rank rate to the scaled one; with nothing to scale, from 0."""


class LossConfig(Section):
    """The loss, by its Keras name."""

    name: str = "SparseCategoricalCrossentropy"
    """Losses that want one-hot labels get them."""
    args: dict[str, Any] = {}
    """Keras' own; from_logits is true unless set. label_smoothing works with the sparse loss too."""


class CheckpointConfig(Section):
    """When the state of a run is saved, besides at its end and when it is told to stop."""

    every_steps: PositiveInt | None = None
    """Steps between two checkpoints; null: time alone counts."""
    every_minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """Minutes between two checkpoints; null: steps alone count."""
    keep: PositiveInt = 2
    """How many of the last ones are kept."""


class TrainingConfig(Section):
    """The training loop."""

    epochs: PositiveInt = 1
    """Times that all training crops are seen."""
    steps_per_epoch: PositiveInt | None = None
    """Null: computed so that an epoch's crops are seen once over all ranks."""
    status: PositiveInt = 10
    """Steps between two lines in a log."""
    interval: PositiveInt = 100
    """Steps whose times are summed up over all ranks in one line of metrics.jsonl."""
    test_every: PositiveInt = 1
    """Epochs between two test passes; there is always one after the last."""
    seed: Seed = 0
    """Seed of the weights and of dropout."""
    deterministic: bool = False
    """The same run gives the same weights, bit for bit, also if interrupted and resumed; some operations are slower."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save the run's state, from which --resume goes on."""
    log_positions: bool = False
    """Write each trained crop's place in the stream to positions-RANK.csv in the run's directory."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Keras' dtype policy; on CPUs mixed_bfloat16 is a little faster and mixed_float16 much slower."""
    compression: Literal["none", "fp16"] = "none"
    """Of the gradients while they travel between ranks."""


class AccuracyConfig(Section):
    """Kept so that ALCF configs run; not used."""

    name: str | None = None
    """Not used."""


class ValidationConfig(Section):
    """Kept so that ALCF configs run; not used, the test pass is always whole."""

    batches: int | None = None
    """Not used."""


class Config(Section):
    """A whole run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LrScheduleConfig = LrScheduleConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    accuracy: AccuracyConfig | None = None
    validation: ValidationConfig | None = None


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads the JSON config at `path`, with `overrides` such as "data.batch_size=64" on top.

    An override's value is JSON where it can be read as such, otherwise the text itself.

    Raises:
        ConfigError: naming every mistake at once, each by its path in the config.
    """
    path = Path(path)
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the config {path} is not JSON: {error}") from error
    data = raw.get("data") if isinstance(raw, dict) else None
    if isinstance(data, dict) and MISSPELT in data:
        if "prefetch_buffer_size" in data:
            raise ConfigError(f"the config {path} has both data.prefetch_buffer_size and data.{MISSPELT}")
        data["prefetch_buffer_size"] = data.pop(MISSPELT)
    for override in overrides:
        raw = _override(raw, override)
    try:
        # From JSON text, strict validation still lets a list be a tuple and a string a path.
        return Config.model_validate_json(json.dumps(raw), context={"base": path.resolve().parent})
    except ValidationError as error:
        lines = explain(error, Config)
        count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        raise ConfigError("\n  ".join([f"{count} in the config {path}:", *lines])) from error


def _override(raw: Any, override: str) -> Any:
    name, equals, text = override.partition("=")
    keys = name.replace(MISSPELT, "prefetch_buffer_size").split(".")
    if not equals or not all(keys):
        raise ConfigError(f'--set wants "section.key=value", e.g. data.batch_size=64; received "{override}"')
    try:
        value = json.loads(text)
    except ValueError:
        value = text

    def put(node: Any, keys: list[str]) -> Any:
        if not keys:
            return value
        if not isinstance(node, dict):
            raise ConfigError(f'--set {override}: "{keys[0]}" is no key of {json.dumps(node)}')
        return {**node, keys[0]: put(node.get(keys[0], {}), keys[1:])}

    return put(raw, keys)
