"""Data-parallel training: a model that averages its gradients over ranks, and functions that keep weights equal."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfpipe.data.runtime.clock import now_s
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError
from tfpipe.training.pretrained import weighted_layers
from tfpipe.training.run_model import RunModel

logger = logging.getLogger(__name__)


class ParallelModel(RunModel):
    """A functional model whose training step averages the gradients over ranks.

    The allreduce precedes the optimizer's check, so that under mixed_float16 an overflow on one rank makes all ranks
    skip the step.
    """

    jit = False  # of Keras' own functions; `make_train_function` compiles the step
    xla = False
    """Whether XLA compiles the training step; it cannot compile Horovod's ops."""
    fp16_compression = False

    def train_step(self, data: Any) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        """Trains one step on a batch of (images, labels, weights or None, requests).

        Returns:
            The logs; float [4]: the mean over ranks of the requests and of whether the loss is not finite, and whether
            this rank's is not; and the seconds (float64) spent averaging over ranks.
        """
        images, labels, weights, requests = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self._compute_loss(x=images, y=labels, y_pred=logits, sample_weight=weights, training=True)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(labels)[0])
            not_finite = tf.cast([~tf.math.is_finite(loss)], tf.float32)
            loss = self.optimizer.scale_loss(loss)
        trained = self.trainable_weights
        # The requests are reduced with the gradients: agreeing costs no extra message.
        sums = [*tape.gradient(loss, trained), tf.concat([requests, not_finite], 0)]
        (*gradients, granted), reduce_s = timed_average(sums, self.world, self.fp16_compression)
        self.optimizer.apply(gradients, trained)
        return (
            self.compute_metrics(images, labels, logits, sample_weight=weights),
            tf.concat([granted, not_finite], 0),
            reduce_s,
        )

    def make_train_function(self, force: bool = False) -> Any:
        """Builds Keras' training function, but takes the batch outside the graph, where the wait can be measured."""
        if self.train_function is not None and not force:
            return self.train_function
        # A trace for each size of crops, if there are several: one for all would be slower.
        reduce = None not in self.input_shape[1:]
        # AutoGraph would take seconds to find no Python `if` or `for` that depends on a tensor.
        step = tf.function(self.train_step, reduce_retracing=reduce, autograph=False, jit_compile=self.xla)

        def train_function(_: Iterator[Any]) -> Any:
            return self.finish(*step((*self.take(), tf.constant(self.requests, tf.float32))))

        self.train_function = train_function
        return train_function


def timed_average(
    gradients: list[tf.Tensor], world: World, fp16_compression: bool = False
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the gradients' mean over ranks, and the seconds (float64) from the last gradient to it; 0 on one rank."""
    if world.size == 1:
        return gradients, tf.constant(0.0, tf.float64)
    import horovod.tensorflow as hvd

    compression = hvd.Compression.fp16 if fp16_compression else hvd.Compression.none
    before_s = now_s(gradients)
    # Read the clock first: otherwise a fast allreduce might precede it.
    with tf.control_dependencies([before_s]):
        ready = [tf.identity(gradient) for gradient in gradients]
        # Horovod matches tensors by name; Keras' automatic names may differ between ranks, which would hang.
        averaged = hvd.grouped_allreduce(ready, op=hvd.Average, compression=compression, name="gradients")
    return averaged, now_s(averaged) - before_s


def broadcast(variables: Iterable[keras.Variable], world: World, name: str) -> None:
    """Broadcasts rank 0's values to every rank."""
    if world.size == 1:
        return
    import horovod.tensorflow as hvd

    for number, variable in enumerate(variables):
        value = tf.convert_to_tensor(variable.value)
        variable.assign(hvd.broadcast(value, root_rank=0, name=f"{name}.{number}"))


def averaged_statistics(model: keras.Model, world: World) -> list[np.ndarray]:
    """Returns the non-trainable weights (batch normalisation's moving statistics), averaged over ranks.

    Those of frozen layers stay as they are: the mean of three equal numbers differs from them in the last bit.
    """
    variables = model.non_trainable_weights
    if world.size == 1:
        return [variable.numpy() for variable in variables]
    import horovod.tensorflow as hvd

    frozen = {id(variable) for layer in weighted_layers(model) if not layer.trainable for variable in layer.weights}

    def averaged(number: int, variable: keras.Variable) -> np.ndarray:
        value = tf.convert_to_tensor(variable.value)
        if value.dtype.is_floating and id(variable) not in frozen:
            value = hvd.allreduce(value, op=hvd.Average, name=f"statistics.{number}")
        return value.numpy()

    return [averaged(number, variable) for number, variable in enumerate(variables)]


class OverRanks(keras.callbacks.Callback):
    """Replaces each metric by its mean over ranks, and averages the moving statistics of normalisation layers.

    The mean is exact, since every rank has trained the same number of crops.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        names = sorted(logs)
        means = self.world.sum(np.array([float(logs[name]) for name in names])) / self.world.size
        logs.update(zip(names, means.tolist(), strict=True))
        statistics = averaged_statistics(self.model, self.world)
        for variable, mean in zip(self.model.non_trainable_weights, statistics, strict=True):
            variable.assign(mean)


def check_weights(model: keras.Model, world: World) -> None:
    """Checks that every rank has the same weights, bit for bit. Raises TfpipeError if they differ."""
    digest = hashlib.sha256()
    for variable in model.weights:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    digests = world.gather(digest.hexdigest()[:16])
    if len(set(digests)) > 1:
        raise TfpipeError(f"the ranks' weights differ after training: {', '.join(digests)}")
    if world.size > 1:
        logger.info("weights: bit-identical on all %d ranks (SHA-256 %s...)", world.size, digests[0])
