"""A model in training, on any backend of Keras: its batches, their times, and the requests of its rank."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfpipe.data.batch import weighed
from tfpipe.data.loader import Loader
from tfpipe.distributed import World
from tfpipe.training.monitor.meter import Meter


class Requests(NamedTuple):
    """Requests of a rank to all ranks."""

    save: bool = False  # write a checkpoint
    stop: bool = False  # write a checkpoint and end the run


class Results:
    """Logs and requests of the last step, which the device may not have ended yet."""

    unread: tuple[Mapping[str, Any], Any] | None = None


class RunModel(keras.Model):
    """A functional model that trains on the batches of a Loader, named and with the time at which they were ready.

    Its subclasses train a step. Keras' fit calls their training functions, which take the batches themselves, so that
    the wait can be measured.
    """

    jit: bool | str
    """Keras' `jit_compile`."""
    world = World()
    meter: Meter | None = None
    """Meter of the training steps; created with the training function if None."""
    input_wait_s = 0.0
    """Seconds waited for the input so far."""
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

    def take(self) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor | None], float]:
        """Takes the next batch, which begins a step: (images, labels, weights), and the time at which it was ready."""
        assert self.meter is not None and self.loader is not None, "a run sets them"
        batch = self.meter.take(self.loader)
        self.positions = batch.positions
        return weighed(batch.data, "tfpipe train"), float(batch.ready)

    def finish(self, logs: Mapping[str, Any], asked: Any, reduce_s: Any, ready_at_s: float) -> dict[str, float]:
        """Ends the step, but reads what the step before gave: a device that is a step behind is never idle.

        Args:
            logs: the step's metrics, scalars of the backend.
            asked: what the ranks asked in it: float [2], above 0 where any did; not read with one rank.
            reduce_s: seconds spent averaging over ranks: a float, or a scalar of the backend.
            ready_at_s: when the batch was ready.

        Returns:
            The metrics after the step before, in the first step of an epoch those of the step itself.
        """
        assert self.meter is not None, "take() has used it"
        if self._results is None:
            self._results = Results()
        results = self._results
        before, results.unread = results.unread, (logs, asked)
        values = {name: float(value) for name, value in (before[0] if before else logs).items()}
        self._grant(self.agreed, before)
        self.input_wait_s += self.meter.finish(reduce_s, ready_at_s).wait_s
        return values

    def settle(self) -> None:
        """Adds what the ranks asked in the last step of an epoch to `granted`."""
        assert self._results is not None, "a step has ended"
        self._grant(self.granted, self._results.unread)
        self._results.unread = None

    def ask(self, requests: Requests, agreed: Requests) -> None:
        """Sets the requests of this rank, and of all ranks, for the next step."""
        if (requests, agreed) != (self.requests, self.agreed):
            self.requests, self.agreed = requests, agreed

    def _grant(self, granted: Requests, before: tuple[Mapping[str, Any], Any] | None) -> None:
        asked = self.requests
        if self.world.size > 1:
            asked = Requests() if before is None else Requests(*(np.asarray(before[1]) > 0).tolist())
        granted = Requests(granted.save or asked.save, granted.stop or asked.stop)
        if granted != self.granted:
            self.granted = granted
