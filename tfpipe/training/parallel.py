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
from tfpipe.training.models import weighted_layers
from tfpipe.training.run_model import RunModel

logger = logging.getLogger(__name__)


class ParallelModel(RunModel):
    """A functional model whose training step averages the gradients over ranks.

    The allreduce precedes the optimizer's check, so that under mixed_float16 an overflow on one rank makes all ranks
    skip the step.
    """

    jit = False  # of Keras' own functions; `make_train_function` compiles the step
    xla = False
    """Whether XLA compiles the training step; with several ranks the part before the collectives, which it cannot."""
    fp16_compression = False

    def train_step(self, data: Any) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        """Trains one step on a batch of (images, labels, weights or None, requests).

        Returns the logs; float [4]: the mean over ranks of the requests and of whether the loss is not finite, and
        whether this rank's is not; and the seconds (float64) spent averaging over ranks.
        """
        *batch, requests = data
        before = self._gradient_step
        if self.xla and self.world.size > 1:
            before = tf.function(before, autograph=False, jit_compile=True)
        logs, gradients, not_finite = before(*batch)
        # The requests are reduced with the gradients: agreeing costs no extra message.
        sums = [*(gradient for gradient in gradients if gradient is not None), tf.concat([requests, not_finite], 0)]
        (*means, granted), reduce_s = timed_average(sums, self.world, self.fp16_compression)
        # Weights that the loss does not depend on have no gradient; Keras' optimizers leave them as they are.
        following = iter(means)
        gradients = [None if gradient is None else next(following) for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_weights)
        return logs, tf.concat([granted, not_finite], 0), reduce_s

    def _gradient_step(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None
    ) -> tuple[dict[str, Any], list[tf.Tensor | None], tf.Tensor]:
        """Does all of a step but what needs the other ranks: returns the logs, this rank's gradients, and, float [1],
        whether its loss is not finite.
        """
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self._compute_loss(x=images, y=labels, y_pred=logits, sample_weight=weights, training=True)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(labels)[0])
            not_finite = tf.cast([~tf.math.is_finite(loss)], tf.float32)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_weights)
        return self.compute_metrics(images, labels, logits, sample_weight=weights), gradients, not_finite

    def make_train_function(self, force: bool = False) -> Any:
        """Builds Keras' training function, but takes the batch outside the graph, where the wait can be measured."""
        if self.train_function is not None and not force:
            return self.train_function
        # A trace for each size of crops, if there are several: one for all would be slower.
        reduce = None not in self.input_shape[1:]
        # AutoGraph would take seconds to find no Python `if` or `for` that depends on a tensor.
        whole = self.xla and self.world.size == 1
        step = tf.function(self.train_step, reduce_retracing=reduce, autograph=False, jit_compile=whole)

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
    collectives = world.tensors
    before_s = now_s(gradients)
    # Read the clock first: otherwise a fast allreduce might precede it.
    with tf.control_dependencies([] if collectives.overlaps else [before_s]):
        ready = [tf.identity(gradient) for gradient in gradients]
        averaged = collectives.average(ready, "gradients", fp16_compression)
    return averaged, tf.maximum(now_s(averaged) - before_s, 0.0)


def broadcast(variables: Iterable[keras.Variable], world: World, name: str) -> None:
    """Broadcasts rank 0's values to every rank."""
    if world.size == 1:
        return
    variables = list(variables)
    values = world.tensors.broadcast_arrays([variable.numpy() for variable in variables], name)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def averaged_statistics(model: keras.Model, world: World) -> list[np.ndarray]:
    """Returns the non-trainable weights (batch normalisation's moving statistics), averaged over ranks.

    Those of frozen layers stay as they are: the mean of three equal numbers differs from them in the last bit.
    """
    variables = model.non_trainable_weights
    values = [keras.ops.convert_to_tensor(variable) for variable in variables]
    if world.size > 1:
        frozen = {id(variable) for layer in weighted_layers(model) if not layer.trainable for variable in layer.weights}
        averaged = [
            number
            for number, variable in enumerate(variables)
            if keras.backend.is_float_dtype(variable.dtype) and id(variable) not in frozen
        ]
        means = world.tensors.average([values[number] for number in averaged], "statistics") if averaged else []
        for number, mean in zip(averaged, means, strict=True):
            values[number] = mean
    return [keras.ops.convert_to_numpy(value) for value in values]


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
