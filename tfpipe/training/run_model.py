"""A model in training, on any backend of Keras: its batches, their times, and the requests of its rank."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfpipe.data.batch import weighed
from tfpipe.data.loader import Loader
from tfpipe.data.runtime.meter import Meter
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


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

    def requests(self) -> Requests:
        """Returns the requests of any rank; waits for the device."""
        return Requests(*(self._asked()[:2] > 0).tolist())

    def not_finite(self) -> tuple[bool, bool]:
        """Returns whether the loss is NaN or infinite, on any rank and on this one; waits for the device."""
        if self.asked is None:
            here = not math.isfinite(float(self.logs["loss"]))
            return here, here
        anywhere, here = (self._asked()[2:] > 0).tolist()
        return anywhere, here

    def _asked(self) -> np.ndarray:
        if isinstance(self.asked, list):
            return np.concatenate([keras.ops.convert_to_numpy(part) for part in self.asked])
        return np.asarray(self.asked)


def class_numbers(labels: Any) -> Any:
    """Returns class numbers, int [batch]: the labels, or of shares [batch, classes] the class that has most."""
    return keras.ops.argmax(labels, axis=1) if len(labels.shape) == 2 else labels


class Results:
    """Results of the last steps."""

    unread: StepResult | None = None  # the last step's; None after the end of an epoch
    read: StepResult | None = None
    """Those that are known since the last step or the end of an epoch; None after an epoch's first step."""


class RunModel(keras.Model):
    """A functional model that trains on the batches of a Loader, named and with the time at which they were ready.

    Its subclasses train a step. Keras' fit calls their training functions, which take the batches themselves, so that
    the wait can be measured.
    """

    jit: bool | str  # Keras' `jit_compile`
    world = World()
    meter: Meter | None = None  # meter of the training steps: the loader's
    train_function: Any  # Keras' attribute: None until `make_train_function` has run
    loader: Loader | None = None  # source of the batches
    positions: tf.Tensor | None = None  # int64 [batch, 2]: stream positions and crop numbers of the batch trained last
    dropped_images = 0  # images that `data.on_error` "skip" has left out in the current epoch, over all ranks
    requests = Requests()
    """This rank's requests, which are met after the step that follows the next one; on one rank, after the next."""
    agreed = Requests()  # requests that every rank makes for after the next step, and that need no agreement
    granted = Requests()  # requests to meet now, of any rank; the same on every rank
    _results: Results | None = None
    """An object of its own: Keras looks through each value that is set as an attribute, for 20 to 40 microseconds."""

    def plain(self) -> keras.Model:
        """Returns the same network as a model of Keras' own class, with these weights."""
        return keras.Model(self.input, self.output, name=self.name)

    def train_on(self, loader: Loader) -> None:
        """Sets the source of the batches."""
        self.loader, self.meter = loader, loader.meter

    def take(self) -> tuple[Any, ...]:
        """Takes the next batch, which begins a step: (images, labels, weights), tensors of TensorFlow."""
        assert self.loader is not None, "a run sets it"
        batch = next(self.loader)
        self.positions = batch.positions
        return weighed(batch.data, "tfpipe train")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates the metrics; labels that are shares of classes count as the class that has most.

        Raises ConfigError if the result of one is no number.
        """
        logs = super().compute_metrics(x, class_numbers(y), y_pred, sample_weight)
        shapes = {name: list(getattr(value, "shape", ())) for name, value in logs.items()}
        if wrong := [f"{name} has the shape {shape}" for name, shape in shapes.items() if shape]:
            raise ConfigError(f"metrics: the result of each must be a number; {', '.join(wrong)}")
        return logs

    def finish(self, logs: Mapping[str, Any], asked: Any, reduce_s: Any) -> dict[str, float]:
        """Ends the step, but reads what the step before gave: a device that is a step behind is never idle.

        `logs` are the step's metrics, and `reduce_s` the seconds spent averaging over ranks, scalars of the backend.
        `asked` is float [4], in one tensor or a list of two: what the ranks asked in it, above 0 where any did, which
        is not read with one rank; whether the loss is not finite on any rank, and on this one. With one rank it is
        None; `logs` has its loss. Returns the metrics after the step before, in an epoch's first step those of itself.
        """
        assert self.meter is not None, "take() has used it"
        results = self.results
        before = results.read = results.unread
        results.unread = StepResult(self.meter.steps + 1, logs, asked, self.positions)
        values = {name: float(value) for name, value in (before.logs if before else logs).items()}
        self._grant(self.agreed, before)
        self.meter.finish(reduce_s)
        return values

    def settle(self) -> None:
        """Reads the last step of an epoch: adds what the ranks asked in it to `granted`."""
        results = self.results
        self._grant(self.granted, results.unread)
        results.read, results.unread = results.unread, None

    @property
    def results(self) -> Results:
        """Results of the last steps."""
        if self._results is None:
            self._results = Results()
        return self._results

    def ask(self, requests: Requests, agreed: Requests) -> None:
        """Sets the requests of this rank, and of all ranks, for the next step."""
        if (requests, agreed) != (self.requests, self.agreed):
            self.requests, self.agreed = requests, agreed

    def _grant(self, granted: Requests, before: StepResult | None) -> None:
        asked = self.requests
        if self.world.size > 1:
            asked = Requests() if before is None else before.requests()
        granted = Requests(granted.save or asked.save, granted.stop or asked.stop)
        if granted != self.granted:
            self.granted = granted
