"""The JSON config: every key with its default and meaning; loading it reports all errors at once."""

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
# The spelling in the ALCF example's config.
MISSPELT = "prefectch_buffer_size"


class ModelConfig(Section):
    """The network."""

    name: str = "resnet18"
    """"resnet18", or any name in keras.applications; "resnet" is ResNet50, as in the ALCF skeleton."""
    args: dict[str, Any] = {}
    """For resnet18: {"stem": "imagenet" | "small", "width": 64, "norm": "batch" | "none"}; else Keras' arguments."""


class OptimizerConfig(Section):
    """The optimizer, by its Keras name."""

    name: str = "Adam"
    """Class in keras.optimizers, e.g. "SGD"."""
    args: dict[str, Any] = {}
    """Keras' arguments, e.g. {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-5}. Biases and
    normalisation weights are exempt from weight decay (Goyal et al. 2017)."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Shorthand for args.learning_rate."""


class LrScheduleConfig(Section):
    """The learning rate schedule."""

    name: str | None = None
    """Class in keras.optimizers.schedules, e.g. "CosineDecay"; null: a constant rate."""
    args: dict[str, Any] = {}
    """Keras' arguments; initial_learning_rate defaults to the optimizer's rate, decay_steps to all steps of the run."""
    scale_by_ranks: bool = False
    """Multiplies the rate by the number of ranks (Goyal et al. 2017, the linear scaling rule)."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Epochs of linear warm-up, from the one-rank rate to the scaled rate, or from 0 if the rate is not scaled."""


class LossConfig(Section):
    """The loss, by its Keras name."""

    name: str = "SparseCategoricalCrossentropy"
    """Class in keras.losses; a loss that needs one-hot labels gets them."""
    args: dict[str, Any] = {}
    """Keras' arguments; from_logits is true unless set. label_smoothing works with the sparse loss too."""


class CheckpointConfig(Section):
    """Intervals between checkpoints; a run also saves its state at its end and when told to stop."""

    every_steps: PositiveInt | None = None
    """Steps between two checkpoints; null: only every_minutes counts."""
    every_minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """Minutes between two checkpoints; null: only every_steps counts."""
    keep: PositiveInt = 2
    """Number of most recent checkpoints kept."""


class TrainingConfig(Section):
    """The training loop."""

    epochs: PositiveInt = 1
    """Passes over all training crops."""
    steps_per_epoch: PositiveInt | None = None
    """Steps of an epoch; null: as many as it takes all ranks together to see each crop once."""
    status: PositiveInt = 10
    """Steps between two progress lines in a log."""
    interval: PositiveInt = 100
    """Steps summarised in one line of metrics.jsonl, over all ranks."""
    test_every: PositiveInt = 1
    """Epochs between two test passes; the last epoch is always followed by one."""
    seed: Seed = 0
    """Seed of the weights and of dropout."""
    deterministic: bool = False
    """Makes the weights reproducible bit for bit, even if the run is interrupted and resumed; some ops are slower."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When to save the state from which --resume continues the run."""
    log_positions: bool = False
    """Writes each trained crop's stream position to positions-RANK.csv in the run's directory."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Keras' dtype policy; on CPUs mixed_bfloat16 is a little faster and mixed_float16 much slower."""
    compression: Literal["none", "fp16"] = "none"
    """Compression of the gradients in the allreduce."""


class AccuracyConfig(Section):
    """Accepted so that ALCF configs run; ignored."""

    name: str | None = None
    """Ignored."""


class ValidationConfig(Section):
    """Accepted so that ALCF configs run; ignored, since a test pass always covers all samples."""

    batches: int | None = None
    """Ignored."""


class Config(Section):
    """The config of a run."""

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

    An override's value is parsed as JSON; if that fails, it is the text itself.

    Raises:
        ConfigError: names all errors at once, each by its path in the config.
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
        # From JSON text, strict validation still accepts a list for a tuple and a string for a path.
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
