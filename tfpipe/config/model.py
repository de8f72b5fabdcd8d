"""The sections of a config besides `data`, and the config as a whole."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from tfpipe.config.conflicts import OTHERS, check, conflicts
from tfpipe.config.data import DataConfig
from tfpipe.config.section import Args, ConfigPath, Form, Section, Seed
from tfpipe.util.json_text import leaves

# Arguments of Keras' schedules that hold learning rates; "values" holds several.
RATES = ("initial_learning_rate", "warmup_target", "values")
# Keys that each rank may have for itself: neither crops nor their order depend on them.
OWN = (
    # The CPUs, the memory and the disks of its host.
    "data.threads", "data.parallel", "data.num_parallel_readers", "data.prefetch_buffer_size",
    "data.cache",
    # How its host reaches the data.
    "data.remote", "data.service",
)  # fmt: skip
Port = Annotated[int, Field(ge=0, lt=2**16)]
NAMED = Form('a list of {"name": NAME, "args": {...}}')


def _at_port(value: Any) -> Any:
    host, _, port = str(value).rpartition(":")
    is_whole = isinstance(value, int) or (isinstance(value, str) and host.strip() == host != "")
    if value is None or (is_whole and port.isdecimal() and int(port) < 2**16):
        return value
    raise ValueError(f'received {json.dumps(value)}; accepted: a port from 0 to 65535, or "HOST:PORT"')


class ModelConfig(Section):
    """The network."""

    name: str = "resnet18"
    """"resnet18"; any name in keras.applications ("resnet" is ResNet50, as in the ALCF skeleton); or a function of your
    own, "package.module:function", that takes the images' (height, width, channels), the number of classes and `args`,
    and returns a Keras model from float32 images in [0, 255] to logits."""
    args: Args = {}
    """For resnet18: {"stem": "imagenet" | "small", "width": 64, "norm": "batch" | "group"}; else Keras' arguments."""
    weights: Literal["imagenet"] | ConfigPath | None = None
    """Weights to start from: a .keras or .weights.h5 file of the same network, for example another run's model.keras;
    or "imagenet": Keras' own for a keras.applications model, from its cache, or downloaded into it. If
    the last layer has another number of classes, it starts untrained. null: random weights."""
    freeze: Annotated[list[str] | int | None, Form("a list of layer names")] = None
    """Layers that are not trained: names, where "conv2_*" stands for all that begin with conv2_; or a number: the first
    ones of those that have weights, -1 for all but the last. Frozen batch normalisation keeps its statistics."""


class OptimizerConfig(Section):
    """The optimizer, by its Keras name or of your own."""

    name: str = "Adam"
    """Class in keras.optimizers, e.g. "SGD"; or a class of your own, "package.module:Class", a subclass of
    keras.optimizers.Optimizer that takes a learning_rate and keeps all its state in its variables."""
    args: Args = {}
    """Keras' arguments, e.g. {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-5}. Biases and
    normalisation weights are exempt from weight decay (Goyal et al. 2017)."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Shorthand for args.learning_rate: give one of them."""


class LrScheduleConfig(Section):
    """The learning rate schedule."""

    name: str | None = None
    """Class in keras.optimizers.schedules, e.g. "CosineDecay"; or of your own, "package.module:Class", a subclass of
    keras.optimizers.schedules.LearningRateSchedule; null: a constant rate."""
    args: Args = {}
    """Keras' arguments; initial_learning_rate defaults to the optimizer's rate, decay_steps to all steps of the run."""
    scale_by_ranks: bool = False
    """Multiplies the rate by the number of ranks (Goyal et al. 2017, the linear scaling rule)."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Epochs of linear warm-up, from the one-rank rate to the scaled rate, or from 0 if the rate is not scaled."""


class LossConfig(Section):
    """The loss, by its Keras name or of your own."""

    name: str = "SparseCategoricalCrossentropy"
    """Class in keras.losses, where one that needs one-hot labels gets them; or of your own, "package.module:name": a
    function of labels, logits and `args`, or a subclass of keras.losses.Loss. It receives class numbers int32 [batch],
    or with `data.mix` shares of the classes, float32 [batch, classes], also of test data; and logits [batch, classes].
    It returns a loss for each crop, [batch]."""
    args: Args = {}
    """Keras' arguments; from_logits is true unless set, and false gives probabilities, by softmax. label_smoothing and
    `data.mix` work with the sparse loss too."""


class MetricConfig(Section):
    """A metric besides loss, top1 and top5, on the training data."""

    name: str
    """Class in keras.metrics, which gets one-hot labels, or class numbers if its name begins with Sparse, and
    probabilities, by softmax; or of your own, "package.module:name": a function of labels, logits and `args` that
    returns a value for each crop, or a subclass of keras.metrics.Metric whose variables are sums over batches. It
    receives class numbers int32 [batch], with `data.mix` of the largest share, and logits [batch, classes]."""
    args: Args = {}
    """Keras' arguments, or yours; {"name": "top3"} is the metric's name in metrics.jsonl. from_logits is true for
    cross-entropies unless set; true gives logits."""


class CallbackConfig(Section):
    """A callback of Keras' or of your own."""

    name: str
    """Class in keras.callbacks, e.g. "EarlyStopping"; or of your own, "package.module:Class", a subclass of
    keras.callbacks.Callback."""
    args: Args = {}
    """Its arguments, e.g. {"monitor": "test_loss", "mode": "min", "patience": 3}."""
    ranks: Literal["all", "first"] = "all"
    """"all": every rank has one, so that it may change the model. "first": only rank 0, for one that writes files."""


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
    metrics_port: Annotated[Port | str | None, BeforeValidator(_at_port)] = None
    """TCP port on which rank 0 serves live figures of the run to Prometheus, at /metrics, to this host; 0: a free one,
    which the log names; "0.0.0.0:9400" lets other hosts read them, without a password; null: none. Needs
    prometheus_client: pip install 'tfpipe[metrics]'."""
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
    collectives: Literal["auto", "horovod", "mpi", "tensorflow", "jax", "torch"] = "auto"
    """Connection of several ranks. "horovod" has to be built, and needs a launcher of MPI's. "mpi" needs mpi4py and
    such a launcher, and is for CPUs. "tensorflow", "jax" and "torch" are the framework's own collectives, which need
    nothing else, under any launcher; "jax" and "torch" go with this KERAS_BACKEND, the others with TensorFlow. "auto":
    with TensorFlow, if the launcher is one of MPI's, Horovod if it is installed, or else MPI if mpi4py is installed and
    no rank has a GPU; otherwise TensorFlow's; with KERAS_BACKEND jax or torch, its own."""
    xla: bool = False
    """Compiles the training step with XLA; with several ranks the part before the allreduce, which XLA cannot compile.
    Not with KERAS_BACKEND torch."""


class Config(Section):
    """The config of a run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LrScheduleConfig = LrScheduleConfig()
    loss: LossConfig = LossConfig()
    metrics: Annotated[list[MetricConfig], NAMED] = []
    callbacks: Annotated[list[CallbackConfig], NAMED] = []
    training: TrainingConfig = TrainingConfig()

    def at(self, epoch: int | None) -> "Config":
        """Returns the config of training epoch `epoch`, from 0, in which sizes are fixed; None for the last ones."""
        data = self.data.phases[-1][1] if epoch is None else self.data.at(epoch)
        return self if data is self.data else self.model_copy(update={"data": data})

    @model_validator(mode="after")
    def _settings_agree(self) -> "Config":
        check([*conflicts(self, OTHERS), *_rates_conflict(self)])
        return self


def _rates_conflict(config: Config) -> Iterator[str]:
    """Yields a message if the optimizer and the schedule have several learning rates."""
    optimizer, schedule = config.optimizer, config.lr_schedule
    keys = {"optimizer.learning_rate": optimizer.learning_rate}
    keys["optimizer.args.learning_rate"] = optimizer.args.get("learning_rate")
    rates = {key: rate for key, rate in keys.items() if rate is not None}
    for key, rate in rates.items():
        if isinstance(rate, bool) or not (isinstance(rate, int | float) and 0 < rate < math.inf):
            yield f"{key}: received {json.dumps(rate)}; accepted: a finite number above 0"
    if len({*rates.values()}) > 1:
        yield f"{_name_settings(rates)}: both are the optimizer's rate: leave one of them out"
    scheduled = {f"lr_schedule.args.{key}": schedule.args[key] for key in RATES if key in schedule.args}
    others = [rate for value in scheduled.values() for rate in (value if isinstance(value, list) else [value])]
    if schedule.name is not None and others and rates and not any(rate in others for rate in rates.values()):
        yield (
            f"{_name_settings(rates | scheduled)}: the schedule has its own rate, and the optimizer's would be "
            "ignored: give the same, or leave one of them out"
        )


def resize_of_weights(config: Config) -> str | None:
    """Returns a message if the model starts from weights that were trained on otherwise resized crops; else None.

    Keras' weights of ConvNeXt come from PyTorch and Pillow's BICUBIC, those of the other models of keras.applications
    from Caffe, OpenCV and tf.image, which do not antialias. How the weights of a file were trained is not known.
    """
    antialiased = config.model.name.lower().startswith("convnext")
    wanted, how = ("bicubic", "by Pillow's BICUBIC") if antialiased else ("bilinear", "without antialiasing")
    if config.model.weights != "imagenet" or config.data.resize == wanted:
        return None
    return (
        f'model.weights "imagenet" of {config.model.name} were trained on crops resized {how}, and data.resize is '
        f'"{config.data.resize}": "{wanted}" is nearest to what they have seen'
    )


def _name_settings(values: dict[str, Any]) -> str:
    return " and ".join(f"{key} {json.dumps(value)}" for key, value in values.items())


def shared_settings(config: Config | DataConfig) -> dict[str, Any]:
    """Returns the settings that all ranks must share, by key, e.g. "data.seed".

    Each path is "(a path)", since a node's copy of the data may be in a folder of its own: the contract of the data
    compares the content, and rank 0's weights are those of all.
    """
    sections = {"data": config.model_dump()} if isinstance(config, DataConfig) else config.model_dump()
    return leaves(json.loads(json.dumps(sections, default=lambda _: "(a path)")), OWN)


def without_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section `data`, as JSON has it, with *** for the values of `data.remote.options`: some are secret."""
    remote = data.get("remote") or {}
    hidden = {"options": dict.fromkeys(remote["options"], "***")} if remote.get("options") else {}
    return {**data, **({"remote": {**remote, **hidden}} if hidden else {})}
