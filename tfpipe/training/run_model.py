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


class Requests(NamedTuple):
    """Requests of a rank to all ranks."""

    save: bool = False  # write a checkpoint
    stop: bool = False  # write a checkpoint and end the run


class Unread(NamedTuple):
    """Results of the last step, which the device may not have ended yet."""

    logs: Mapping[str, Any]
    asked: Any  # what the ranks asked, and whether the loss is not finite: see RunModel.finish
    positions: tf.Tensor | None  # of the step's batch


class NotFinite(NamedTuple):
    """The first step in a row whose loss was NaN or infinite on any rank."""

    step: int  # counted from 1, over the run
    own: bool  # on this rank
    loss: float  # this rank's mean of the epoch so far
    positions: tf.Tensor | None  # int64 [batch, 2]: positions and crops of the step's batch
    before: tf.Tensor | None  # of the batch before


class Results:
    """The last step's results, and what earlier ones told."""

    unread: Unread | None = None
    positions: tf.Tensor | None = None  # of the step before that
    not_finite = 0  # steps in a row whose loss was not finite
    first: NotFinite | None = None


class RunModel(keras.Model):
    """A functional model that trains on the batches of a Loader, named and with the time at which they were ready.

    Its subclasses train a step. Keras' fit calls their training functions, which take the batches themselves, so that
    the wait can be measured.
    """

    jit: bool | str
    """Keras' `jit_compile`."""
    world = World()
    meter: Meter | None = None
    """Meter of the training steps: the loader's."""
    train_function: Any
    """Keras' attribute: None until `make_train_function` has run."""
    loader: Loader | None = None
    """Source of the batches."""
    positions: tf.Tensor | None = None
    """int64 [batch, 2]: stream positions and crop numbers of the batch trained last."""
    dropped_images = 0
    """Images that `data.on_error` "skip" has left out in the current epoch, over all ranks."""
    requests = Requests()
    """This rank's requests, which are met after the step that follows the next one; on one rank, after the next."""
    agreed = Requests()
    """Requests that every rank makes for after the next step, and that need no agreement."""
    granted = Requests()
    """Requests to meet now, of any rank; the same on every rank."""
    _results: Results | None = None
    """An object of its own: Keras looks through each value that is set as an attribute, for 20 to 40 microseconds."""

    def train_on(self, loader: Loader) -> None:
        """Sets the source of the batches."""
        self.loader, self.meter = loader, loader.meter

    def take(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Takes the next batch, which begins a step: (images, labels, weights)."""
        assert self.loader is not None, "a run sets it"
        batch = next(self.loader)
        self.positions = batch.positions
        return weighed(batch.data, "tfpipe train")

    def finish(self, logs: Mapping[str, Any], asked: Any, reduce_s: Any) -> dict[str, float]:
        """Ends the step, but reads what the step before gave: a device that is a step behind is never idle.

        Args:
            logs: the step's metrics, scalars of the backend.
            asked: float [4]: what the ranks asked in it, above 0 where any did, which is not read with one rank;
                whether the loss is not finite on any rank, and on this one. None: one rank; `logs` has its loss.
            reduce_s: seconds spent averaging over ranks: a float, or a scalar of the backend.

        Returns:
            The metrics after the step before, in the first step of an epoch those of the step itself.
        """
        assert self.meter is not None, "take() has used it"
        results = self.results
        before, results.unread = results.unread, Unread(logs, asked, self.positions)
        values = {name: float(value) for name, value in (before.logs if before else logs).items()}
        self._grant(self.agreed, before)
        self._note(before)
        self.meter.finish(reduce_s)
        return values

    def settle(self) -> None:
        """Adds what the ranks asked in the last step of an epoch to `granted`."""
        self._grant(self.granted, self.results.unread)
        self._note(self.results.unread)
        self.results.unread = None

    @property
    def results(self) -> Results:
        """The last step's results, and what earlier ones told."""
        if self._results is None:
            self._results = Results()
        return self._results

    def ask(self, requests: Requests, agreed: Requests) -> None:
        """Sets the requests of this rank, and of all ranks, for the next step."""
        if (requests, agreed) != (self.requests, self.agreed):
            self.requests, self.agreed = requests, agreed

    def _note(self, before: Unread | None) -> None:
        """Notes whether the loss of the last step but the open one was finite."""
        if before is None:
            return
        assert self.meter is not None, "take() has used it"
        results = self.results
        if before.asked is None:
            anywhere = own = not math.isfinite(float(before.logs["loss"]))
        else:
            anywhere, own = (np.asarray(before.asked)[2:] > 0).tolist()
        if anywhere and not results.not_finite:
            loss = float(before.logs["loss"])
            results.first = NotFinite(self.meter.steps, own, loss, before.positions, results.positions)
        results.not_finite = results.not_finite + 1 if anywhere else 0
        results.positions = before.positions

    def _grant(self, granted: Requests, before: Unread | None) -> None:
        asked = self.requests
        if self.world.size > 1:
            asked = Requests() if before is None else Requests(*(np.asarray(before.asked)[:2] > 0).tolist())
        granted = Requests(granted.save or asked.save, granted.stop or asked.stop)
        if granted != self.granted:
            self.granted = granted
