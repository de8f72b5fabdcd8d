"""Data-parallel training: the model whose gradients are averaged over ranks, and equal weights on all of them."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfpipe.distributed import World


class ParallelModel(keras.Model):
    """A functional model whose training step averages the gradients over ranks.

    Reduces before the optimizer sees them, so that under mixed_float16 an overflow on one rank makes all of them
    skip the step alike.
    """

    world = World()
    fp16_compression = False
    input_wait_s = 0.0
    """Seconds spent waiting for the input so far."""
    positions: tf.Tensor | None = None
    """int64 [batch, 2]: stream position and crop of the batch trained last."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step on a batch of (images, labels)."""
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self._compute_loss(x=images, y=labels, y_pred=logits, sample_weight=None, training=True)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(labels)[0])
            loss = self.optimizer.scale_loss(loss)
        weights = self.trainable_weights
        gradients = average(tape.gradient(loss, weights), self.world, self.fp16_compression)
        self.optimizer.apply(gradients, weights)
        return self.compute_metrics(images, labels, logits, sample_weight=None)

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras', but the batch is taken outside the graph, where the time waited for it can be seen."""
        if self.train_function is not None and not force:
            return self.train_function
        step = tf.function(self.train_step, reduce_retracing=True)

        def train_function(iterator: Iterator[Any]) -> Any:
            started = time.perf_counter()
            images, labels, positions = next(iterator)
            self.input_wait_s += time.perf_counter() - started
            logs = step((images, labels))
            self.positions = positions
            return logs

        self.train_function = train_function
        return train_function


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


def average_statistics(model: keras.Model, world: World) -> None:
    """Averages what is not trained (batch normalisation's moving statistics), which each rank gathers on its own."""
    if world.size == 1:
        return
    import horovod.tensorflow as hvd

    for number, variable in enumerate(model.non_trainable_weights):
        value = tf.convert_to_tensor(variable.value)
        if value.dtype.is_floating:
            variable.assign(hvd.allreduce(value, op=hvd.Average, name=f"statistics.{number}"))


def weights_digest(model: keras.Model) -> str:
    """A hash of all weights, trained and not: equal if and only if they are, bit for bit."""
    digest = hashlib.sha256()
    for variable in model.weights:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()[:16]
