"""A model in training, on any backend of Keras: its batches, their times, and the requests of its rank."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfpipe.data.loader import Loader
from tfpipe.distributed import World
from tfpipe.training.monitor.meter import Meter


class Requests(NamedTuple):
    """Requests of a rank to all ranks."""

    save: bool = False  # write a checkpoint
    stop: bool = False  # write a checkpoint and end the run


class RunModel(keras.Model):
    """A functional model that trains on the batches of a Loader, with positions and the time at which they were ready.

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
    """This rank's requests for after the next step."""
    granted = Requests()
    """Requests that any rank made in the last step; the same on every rank."""

    def take(self) -> tuple[tf.Tensor, tf.Tensor, float]:
        """Takes the next batch, which begins a step: images, labels, and the time at which they were ready."""
        assert self.meter is not None and self.loader is not None, "a run sets them"
        images, labels, self.positions, ready_at_s = self.meter.take(self.loader)
        return images, labels, float(ready_at_s)

    def finish(self, granted: Requests, reduce_s: float, ready_at_s: float) -> None:
        """Ends the step; it spent `reduce_s` seconds averaging over ranks."""
        assert self.meter is not None, "take() has used it"
        self.granted = granted
        self.input_wait_s += self.meter.finish(reduce_s, ready_at_s).wait_s
