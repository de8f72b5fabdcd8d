"""Training by Keras' JAX and PyTorch backends, in one process."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.training.parallel import ParallelModel
from tfpipe.training.run_model import RunModel


class SingleModel(RunModel):
    """A functional model that the training step of Keras' own backend trains."""

    jit = "auto"
    seed = 0
    """Seed of PyTorch's own generator, from which Keras' dropout draws there."""

    def make_train_function(self, force: bool = False) -> None:
        """Builds Keras' training function, but takes the batches from the Loader."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        step = self.train_function

        def jax_function(state: Any, _: Iterator[Any]) -> Any:
            logs, state = step(state, iter([_arrays(self.take())]))
            return self.finish(logs, None, 0.0), state

        def torch_function(_: Any) -> Any:
            batch = self.take()
            self._seed_torch()
            return self.finish(step([_arrays(batch)]), None, 0.0)

        self.train_function = jax_function if keras.backend.backend() == "jax" else torch_function

    def _seed_torch(self) -> None:
        """Seeds PyTorch's generator from the run's seed and the step: so a checkpoint need not hold its state."""
        import torch

        assert self.meter is not None, "a run sets it"
        seeds = np.random.SeedSequence([self.seed, self.meter.steps])
        torch.manual_seed(int(seeds.generate_state(1)[0]))


def _arrays(batch: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    return tuple(part.numpy() for part in batch if part is not None)


def make_model(network: keras.Model, config: Config, world: World) -> RunModel:
    """Makes the model that trains `network`: TensorFlow's, over the ranks of `world`, or that of another backend.

    Raises ConfigError for what another backend does not do.
    """
    if keras.backend.backend() == "tensorflow":
        model: RunModel = ParallelModel(network.input, network.output, name=network.name)
        model.fp16_compression = config.training.compression == "fp16"
        model.xla = config.training.xla
    else:
        model = SingleModel(network.input, network.output, name=network.name)
        model.seed = config.training.seed
    model.world = world
    return model


def prepare_backend(config: Config, world: World) -> None:
    """Makes the backend's operations deterministic if the config says so; JAX's are, except on GPUs (`XLA_FLAGS`).

    Raises ConfigError if the backend cannot train this run.
    """
    name = keras.backend.backend()
    if name != "tensorflow" and world.size > 1:
        raise ConfigError(
            f"KERAS_BACKEND={name} trains in one process, and there are {world.size} ranks: unset KERAS_BACKEND, or "
            "set it to tensorflow, whose gradients Horovod averages; or write a loop of your own with tfpipe.Loader"
        )
    if name != "tensorflow" and config.training.compression != "none":
        raise ConfigError(
            f"KERAS_BACKEND={name} trains in one process, which has no gradients to send: training.compression must "
            f'be "none", received "{config.training.compression}"'
        )
    if config.training.xla and (name == "torch" or world.size > 1):
        raise ConfigError(
            "training.xla compiles the step of one rank, by KERAS_BACKEND=tensorflow or jax; received ranks: "
            f"{world.size}, KERAS_BACKEND={name}: set training.xla to false"
        )
    if config.training.deterministic and name == "torch":
        import torch

        torch.use_deterministic_algorithms(mode=True)
    elif config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
