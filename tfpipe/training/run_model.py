"""A model in training, on any backend of Keras: its batches, their times, and the requests of its rank."""

import math
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfpipe.data.batch import split_weights
from tfpipe.data.loader import Loader
from tfpipe.data.runtime.meter import Meter
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.requirements import KERAS

# Steps that are begun after one before its result is read: while a device trains one of them, the next one waits.
LATE = 2


class Requests(NamedTuple):
    """Requests of a rank to all ranks."""

    save: bool = False  # write a checkpoint
    stop: bool = False  # write a checkpoint and end the run


class StepResult(NamedTuple):
    """Results of a step, which the device may not have ended yet."""

    step: int  # counted from 1, over the run
    logs: Mapping[str, Any]
    asked: Any  # what the ranks asked, and whether the loss is not finite: see RunModel.finish
    positions: tf.Tensor | None  # int64 [batch, 2]: positions and crops of the step's batch

    def fetch(self) -> "StepResult":
        """Returns the result with `asked` as float [4] of NumPy; waits for the device."""
        asked = self.asked
        if asked is None:
            here = not math.isfinite(float(self.logs["loss"]))
            asked = [[0, 0, here, here]]
        parts = asked if isinstance(asked, list) else [asked]
        return self._replace(asked=np.concatenate([keras.ops.convert_to_numpy(part) for part in parts]))


def class_numbers(labels: Any) -> Any:
    """Returns class numbers, int [batch]: the labels, or of shares [batch, classes] the class that has most."""
    return keras.ops.argmax(labels, axis=1) if len(labels.shape) == 2 else labels


class Results:
    """Results of the last steps of an epoch."""

    def __init__(self) -> None:
        self.unread: deque[StepResult] = deque()  # of the last LATE steps at most
        self.read: list[StepResult] = []  # known since the last step, or the end of the epoch


class RunCallback(keras.callbacks.Callback):
    """A callback of a run.

    Keras' own `model` would give JAX's variables their values in each step: 16 ms of ResNet-50's step on an H200.
    """

    @property
    def model(self) -> Any:
        """The RunModel; within an epoch its variables have no values under JAX."""
        return self._model

    @property
    def synced_model(self) -> Any:
        """The RunModel, whose variables have their values."""
        return super().model


class RunModel(keras.Model):
    """A functional model that trains on the batches of a Loader, named and with the time at which they were ready.

    Its subclasses train a step. Keras' fit calls their training functions, which take the batches themselves, so that
    the wait can be measured.
    """

    jit: bool | str  # Keras' `jit_compile`
    world = World()
    fp16_compression = False  # of the gradients that ranks average
    meter: Meter | None = None  # meter of the training steps: the loader's
    train_function: Any  # Keras' attribute: None until `make_train_function` has run
    loader: Loader | None = None  # source of the batches
    positions: tf.Tensor | None = None  # int64 [batch, 2]: stream positions and crop numbers of the batch trained last
    dropped_images = 0  # images that `data.on_error` "skip" has left out in the current epoch, over all ranks
    requests = Requests()
    """This rank's requests, which are met LATE steps after the next one; on one rank, after the next."""
    agreed = Requests()  # requests that every rank makes for after the next step, and that need no agreement
    granted = Requests()  # requests to meet now, of any rank; the same on every rank

    def plain(self) -> keras.Model:
        """Returns the same network as a model of Keras' own class, with these weights."""
        return keras.Model(self.input, self.output, name=self.name)

    def check_names(self) -> None:
        """Raises ConfigError if this version of Keras has not the private names that training uses, once compiled."""
        names = ["_compute_loss", "_loss_tracker", "_compile_metrics"]
        names += ["_update_metrics_variables"] if keras.backend.backend() == "jax" else []
        if missing := [name for name in names if not hasattr(self, name)]:
            raise ConfigError(f"Keras {keras.__version__} lacks {', '.join(missing)}, which training uses: {KERAS}")

    def train_on(self, loader: Loader) -> None:
        """Sets the source of the batches."""
        self.loader, self.meter = loader, loader.meter

    def take(self) -> tuple[Any, ...]:
        """Takes the next batch, which begins a step: (images, labels) or (images, labels, weights) on the device."""
        assert self.loader is not None, "a run sets it"
        batch = next(self.loader)
        self.positions = batch.positions
        return tuple(part for part in split_weights(batch.data, "tfpipe train") if part is not None)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates the metrics; labels that are shares of classes count as the class that has most.

        Raises ConfigError if the result of one is no number.
        """
        logs = super().compute_metrics(x, class_numbers(y), y_pred, sample_weight)
        shapes = {name: list(getattr(value, "shape", ())) for name, value in logs.items()}
        if wrong := [f"{name} has the shape {shape}" for name, shape in shapes.items() if shape]:
            raise ConfigError(f"metrics: the result of each must be a number; {', '.join(wrong)}")
        return logs

    def finish(self, logs: Mapping[str, Any], asked: Any, reduce_s: Any) -> Mapping[str, Any]:
        """Ends the step, but reads what the step LATE steps before gave: a device that is behind is never idle.

        All that is unread is read before a checkpoint, which must have no weights of a loss that is not finite.
        `logs` are the step's metrics, and `reduce_s` the seconds spent averaging over ranks, scalars of the backend.
        `asked` is float [4], in one tensor or a list of two: what the ranks asked in it, above 0 where any did, which
        is not read with one rank; whether the loss is not finite on any rank, and on this one. With one rank it is
        None; `logs` has its loss. Returns the metrics of the last step that is read, scalars of the backend; if none
        is, those of the first one that is not.
        """
        assert self.meter is not None, "take() has used it"
        results = self.results
        results.unread.append(StepResult(self.meter.steps + 1, logs, asked, self.positions))
        results.read = self._learn(self.agreed, LATE)
        if any(self.granted):
            results.read += self._learn(self.granted, 0)
        self.meter.finish(reduce_s)
        return (results.read[-1] if results.read else results.unread[0]).logs

    def drain(self) -> None:
        """Reads the last steps of an epoch: adds what the ranks asked in them to `granted`."""
        self.results.read = self._learn(self.granted, 0)

    @cached_property
    def results(self) -> Results:
        """Results of the last steps, of one object: Keras looks through what is set here, for 20 to 40 microseconds."""
        return Results()

    def ask(self, requests: Requests, agreed: Requests) -> None:
        """Sets the requests of this rank, and of all ranks, for the next step."""
        if (requests, agreed) != (self.requests, self.agreed):
            self.requests, self.agreed = requests, agreed

    def _learn(self, granted: Requests, late: int) -> list[StepResult]:
        """Reads all results but those of the last `late` steps; grants what was asked in them, and `granted`."""
        unread = self.results.unread
        read = [unread.popleft().fetch() for _ in range(len(unread) - late)]
        asked = [self.requests] if self.world.size == 1 else [result.asked[:2] > 0 for result in read]
        granted = Requests(*map(any, zip(granted, *asked, strict=True)))
        if granted != self.granted:
            self.granted = granted
        return read
