"""Data-parallel training: the model whose gradients are averaged over ranks, and equal weights on all of them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfpipe.data.clock import now_s
from tfpipe.distributed import World
from tfpipe.training.meter import Meter
from tfpipe.training.recovery import Recovery


class Wishes(NamedTuple):
    """What a rank asks of all of them."""

    save: bool = False
    """Write a checkpoint."""
    stop: bool = False
    """Write a checkpoint and end the run."""


class ParallelModel(keras.Model):
    """A functional model whose training step averages the gradients over ranks.

    Reduces before the optimizer sees them, so that under mixed_float16 an overflow on one rank makes all of them
    skip the step alike.
    """

    world = World()
    fp16_compression = False
    meter: Meter | None = None
    """Of the training steps; made with the training function, if there is none."""
    input_wait_s = 0.0
    """Seconds spent waiting for the input so far."""
    train_function: Callable[[Iterator[Any]], Any] | None
    """As Keras has it: None until it is made."""
    recovery: Recovery | None = None
    """From errors that may pass, if any."""
    positions: tf.Tensor | None = None
    """int64 [batch, 2]: stream position and crop of the batch trained last."""
    wishes = Wishes()
    """What this rank asks of all after the next step."""
    agreed = Wishes()
    """What any rank has asked for, after the last step; the same on every rank."""

    def train_step(self, data: Any) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        """One step on a batch of (images, labels, wishes).

        Returns:
            The logs, the wishes' mean over ranks, and the seconds (float64) that averaging over ranks took.
        """
        images, labels, wishes = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self._compute_loss(x=images, y=labels, y_pred=logits, sample_weight=None, training=True)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(labels)[0])
            loss = self.optimizer.scale_loss(loss)
        weights = self.trainable_weights
        # The wishes travel with the gradients: to agree costs no message of its own.
        own = [*tape.gradient(loss, weights), wishes]
        (*gradients, agreed), reduce_s = timed_average(own, self.world, self.fp16_compression)
        self.optimizer.apply(gradients, weights)
        return self.compute_metrics(images, labels, logits, sample_weight=None), agreed, reduce_s

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras', but the batch is taken outside the graph, where the time waited for it can be seen."""
        if self.train_function is not None and not force:
            return self.train_function
        # AutoGraph would take seconds to find no Python `if` or `for` that depends on a tensor.
        step = tf.function(self.train_step, reduce_retracing=True, autograph=False)
        self.meter = meter = self.meter or Meter()

        def train_function(iterator: Iterator[Any]) -> Any:
            batch = self.recovery.take(iterator, meter.take, self.positions) if self.recovery else meter.take(iterator)
            images, labels, positions, ready_at_s = batch
            logs, agreed, reduce_s = step((images, labels, tf.constant(self.wishes, tf.float32)))
            self.positions = positions
            self.agreed = Wishes(*(agreed.numpy() > 0))
            self.input_wait_s += meter.finish(float(reduce_s), float(ready_at_s)).wait_s
            return logs

        self.train_function = train_function
        return train_function


def timed_average(
    gradients: list[tf.Tensor], world: World, fp16_compression: bool = False
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The gradients' mean over ranks, and the seconds (float64) from the last gradient to it; 0 with one rank."""
    if world.size == 1:
        return gradients, tf.constant(0.0, tf.float64)
    before_s = now_s(gradients)
    # Not before the clock has been read: else a fast allreduce might come first.
    with tf.control_dependencies([before_s]):
        averaged = average([tf.identity(gradient) for gradient in gradients], world, fp16_compression)
    return averaged, now_s(averaged) - before_s


def average(gradients: list[tf.Tensor], world: World, fp16_compression: bool = False) -> list[tf.Tensor]:
    """The gradients' mean over ranks, in one grouped allreduce."""
    if world.size == 1:
        return gradients
    import horovod.tensorflow as hvd

    compression = hvd.Compression.fp16 if fp16_compression else hvd.Compression.none
    # Horovod matches tensors by name, and Keras' automatic names may differ between ranks: that hangs.
    return hvd.grouped_allreduce(gradients, op=hvd.Average, compression=compression, name="gradients")


def broadcast(variables: Iterable[keras.Variable], world: World, name: str) -> None:
    """Gives every rank the values of rank 0."""
    if world.size == 1:
        return
    import horovod.tensorflow as hvd

    for number, variable in enumerate(variables):
        value = tf.convert_to_tensor(variable.value)
        variable.assign(hvd.broadcast(value, root_rank=0, name=f"{name}.{number}"))


def averaged_statistics(model: keras.Model, world: World) -> list[np.ndarray]:
    """What is not trained (batch normalisation's moving statistics), which each rank gathers on its own: the mean."""
    values = [tf.convert_to_tensor(variable.value) for variable in model.non_trainable_weights]
    if world.size > 1:
        import horovod.tensorflow as hvd

        values = [
            hvd.allreduce(value, op=hvd.Average, name=f"statistics.{number}") if value.dtype.is_floating else value
            for number, value in enumerate(values)
        ]
    return [value.numpy() for value in values]


def weights_digest(model: keras.Model) -> str:
    """A hash of all weights, trained and not: equal if and only if they are, bit for bit."""
    digest = hashlib.sha256()
    for variable in model.weights:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()[:16]
