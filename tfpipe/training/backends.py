"""Data-parallel training by Keras' backends: models that average gradients, and what keeps ranks' weights equal."""

import hashlib
import logging
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.runtime.clock import now_s
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.training.models import weighted_layers
from tfpipe.training.run_model import RunCallback, RunModel
from tfpipe.util.tensorflow_api import disable_op_determinism, is_op_determinism_enabled

logger = logging.getLogger(__name__)


class ParallelModel(RunModel):
    """A functional model whose training step averages the gradients over ranks.

    The allreduce precedes the optimizer's check, so that under mixed_float16 an overflow on one rank makes all ranks
    skip the step.
    """

    jit = False  # of Keras' own functions; `make_train_function` compiles the step
    xla = False
    """Whether XLA compiles the training step; with several ranks the part before the collectives, which it cannot."""

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
            images, labels, weights = (*self.take(), None)[:3]
            return self.finish(*step((images, labels, weights, tf.constant(self.requests, tf.float32))))

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


def broadcast(variables: Sequence[keras.Variable], world: World, name: str) -> None:
    """Broadcasts rank 0's values to every rank."""
    if world.size == 1:
        return
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


class OverRanks(RunCallback):
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
        logger.info("weights: bit-identical on all %s (SHA-256 %s...)", counted(world.size, "rank"), digests[0])


class BackendModel(RunModel):
    """A functional model that the training step of Keras' own backend trains; several ranks average the gradients."""

    jit = "auto"
    seed = 0  # seed of PyTorch's own generator, from which Keras' dropout draws there

    def make_train_function(self, force: bool = False) -> None:
        """Builds the training function, which takes the batches from the Loader."""
        if self.train_function is None or force:
            super().make_train_function(force)
            self.train_function = self.taking(self.train_function)

    @abstractmethod
    def taking(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns Keras' training function that takes a batch itself, for `step`, which is given one."""

    def average(self, gradients: Sequence[Any], not_finite: Any) -> tuple[list[Any], list[Any], float]:
        """Averages gradients over ranks, and with them, in the same message, the requests; all on the device.

        Returns the mean gradients; float [3], [1]: what `RunModel.finish` takes as `asked`; and the seconds spent.
        """
        ops = keras.ops
        here = ops.reshape(ops.cast(not_finite, "float32"), [1])
        requests = ops.concatenate([ops.convert_to_tensor(np.array(self.requests, np.float32)), here])
        began_s = time.perf_counter()
        *means, granted = self.world.tensors.average([*gradients, requests], "gradients", self.fp16_compression)
        return means, [granted, here], time.perf_counter() - began_s


class TorchModel(BackendModel):
    """A model that PyTorch trains."""

    def taking(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def train_function(_: Any) -> Any:
            batch = self.take()
            self._seed_torch()
            if self.world.size > 1:
                return self.finish(*self.parallel_step(batch))
            return self.finish(step([batch]), None, 0.0)

        return train_function

    def parallel_step(self, batch: tuple[Any, ...]) -> tuple[dict[str, Any], list[Any], float]:
        """Trains one step of several ranks; returns its logs, what the ranks asked, and the seconds of the average."""
        import torch

        images, labels, weights = (*batch, None)[:3]
        logits = self(images, training=True)
        self.zero_grad()
        loss = self._compute_loss(x=images, y=labels, y_pred=logits, sample_weight=weights, training=True)
        self._loss_tracker.update_state(loss, sample_weight=len(images))
        self.optimizer.scale_loss(loss).backward()
        trained = self.trainable_weights[:]
        with torch.no_grad():
            gradients = [variable.value.grad for variable in trained]
            # Weights that no rank has used keep None, as in one process, and Keras' optimizers leave them as they are.
            used = torch.tensor([float(gradient is not None) for gradient in gradients], device=loss.device)
            filled = [
                torch.zeros_like(variable.value) if gradient is None else gradient
                for gradient, variable in zip(gradients, trained, strict=True)
            ]
            (*means, used), asked, reduce_s = self.average([*filled, used], ~torch.isfinite(loss))
            if any(gradient is None for gradient in gradients):
                means = [mean if share else None for mean, share in zip(means, used.tolist(), strict=True)]
            self.optimizer.apply(means, trained)
        return self.compute_metrics(images, labels, logits, sample_weight=weights), asked, reduce_s

    def _seed_torch(self) -> None:
        """Seeds PyTorch's generator from the run's seed, the step and the rank: so a checkpoint need not hold its
        state, and dropout differs between ranks.
        """
        import torch

        assert self.meter is not None, "a run sets it"
        rank = self.world.rank
        seeds = np.random.SeedSequence([self.seed, self.meter.steps, *([rank] if rank else [])])
        torch.manual_seed(int(seeds.generate_state(1)[0]))


class JaxModel(BackendModel):
    """A model that JAX trains.

    Several ranks compile a step in two parts, with the sum over ranks between them: so each rank's own state, such as
    its random generators and moving statistics, stays on its own device.
    """

    def taking(self, step: Callable[..., Any]) -> Callable[..., Any]:
        if self.world.size > 1:
            self._make_parts()

        def train_function(state: Any, _: Iterator[Any]) -> Any:
            batch = self.take()
            if self.world.size > 1:
                logs, state, asked, reduce_s = self.parallel_step(state, batch)
                return self.finish(logs, asked, reduce_s), state
            logs, state = step(state, iter([batch]))
            return self.finish(logs, None, 0.0), state

        return train_function

    def parallel_step(self, state: Any, batch: tuple[Any, ...]) -> tuple[dict[str, Any], Any, list[Any], float]:
        """Trains one step of several ranks; returns its logs, the new state, what the ranks asked, and the seconds of
        the average.
        """
        weights, others, slots, metrics = state
        logs, not_finite, gradients, others, metrics = self._gradients(weights, others, slots, metrics, batch)
        gradients[0].block_until_ready()
        gradients, asked, reduce_s = self.average(gradients, not_finite)
        weights, slots = self._apply(slots, gradients, weights)
        return logs, (weights, others, slots, metrics), asked, reduce_s

    def _make_parts(self) -> None:
        import jax

        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        # With the device named, a state that a callback has assigned needs no compilation of its own.
        compiled: Any = partial(jax.jit, in_shardings=device, out_shardings=device)
        if not self.jit_compile:
            compiled = lambda function, **_: function  # noqa: E731
        # Donates nothing: the state must outlive an average that fails, since Keras then assigns it to the model.
        self._gradients = compiled(self._gradient_step)
        self._apply = compiled(self.optimizer.stateless_apply, donate_argnums=(0, 2))

    def _gradient_step(self, weights: Any, others: Any, slots: Any, metrics: Any, batch: Any) -> tuple[Any, ...]:
        """The first part of Keras' `train_step`: all but the optimizer, whose variables `slots` only scale the loss."""
        import jax

        images, labels, sample_weight = (*batch, None)[:3]
        gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, logits, others, metrics)), gradients = gradient(
            weights, others, metrics, images, labels, sample_weight, training=True, optimizer_variables=slots
        )
        logs, metrics = self._update_metrics_variables(metrics, loss, images, labels, logits, sample_weight)
        return logs, ~jax.numpy.isfinite(loss), gradients, others, metrics


def make_model(network: keras.Model, config: Config, world: World) -> RunModel:
    """Makes the model that trains `network` over the ranks of `world`, by the backend of Keras."""
    kinds = {"tensorflow": ParallelModel, "jax": JaxModel, "torch": TorchModel}
    model = kinds[keras.backend.backend()](network.input, network.output, name=network.name)
    model.fp16_compression = config.training.compression == "fp16"
    if isinstance(model, ParallelModel):
        model.xla = config.training.xla
    else:
        model.seed = config.training.seed
    model.world = world
    return model


@contextmanager
def kept_determinism() -> Iterator[None]:
    """Makes operations after `with` deterministic only if they were before: it slows down what else a process does."""
    before, torch = is_op_determinism_enabled(), sys.modules.get("torch")
    of_torch = torch is not None and torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        if not before:
            disable_op_determinism()
        if torch is not None:
            torch.use_deterministic_algorithms(of_torch)


def prepare_backend(config: Config, world: World) -> None:
    """Makes the backend's operations deterministic if the config says so; JAX's are, except on GPUs (`XLA_FLAGS`).

    Raises ConfigError if the backend cannot train this run.
    """
    name = keras.backend.backend()
    accepted = ("horovod", "mpi", "tensorflow") if name == "tensorflow" else (name,)
    if world.size > 1 and world.backend not in accepted:
        raise ConfigError(
            f"KERAS_BACKEND={name} needs ranks connected by {' or '.join(accepted)}, and {counted(world.size, 'rank')} "
            f'are connected by {world.backend}: set training.collectives to "auto"'
        )
    if config.training.xla and name == "torch":
        raise ConfigError(
            "training.xla compiles the step by KERAS_BACKEND=tensorflow or jax; received: KERAS_BACKEND=torch: set "
            "training.xla to false"
        )
    if name == "torch":
        import torch

        if world.size > 1 and world.threads is not None:
            torch.set_num_threads(world.threads)
        if config.training.deterministic:
            torch.use_deterministic_algorithms(mode=True)
    elif config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
