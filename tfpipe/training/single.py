"""Training by Keras' JAX and PyTorch backends, in one process."""

from typing import Any

import keras
import tensorflow as tf

from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.training.parallel import ParallelModel
from tfpipe.training.run_model import RunModel

BACKENDS = ("tensorflow", "jax", "torch")


class SingleModel(RunModel):
    """A functional model that the training step of Keras' own backend trains."""

    jit = "auto"

    def make_train_function(self, force: bool = False) -> None:
        """Builds Keras' training function, but takes the batches from the Loader."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        # JAX's takes its state and an iterator, PyTorch's a list of batches.
        keras_function, given = self.train_function, iter if keras.backend.backend() == "jax" else list

        def train_function(*args: Any) -> Any:
            images, labels, ready_at_s = self.take()
            result = keras_function(*args[:-1], given([(images.numpy(), labels.numpy())]))
            logs = result[0] if args[:-1] else result
            for name, value in logs.items():
                logs[name] = float(value)  # waits for the end of the step, which its time is to include
            self.finish(self.requests, 0.0, ready_at_s)
            return result

        self.train_function = train_function


def make_model(network: keras.Model, config: Config, world: World) -> RunModel:
    """Makes the model that trains `network`: TensorFlow's, over the ranks of `world`, or that of another backend.

    Raises ConfigError for what another backend does not do.
    """
    if keras.backend.backend() == "tensorflow":
        model: RunModel = ParallelModel(network.input, network.output, name=network.name)
        model.fp16_compression = config.training.compression == "fp16"
    else:
        model = SingleModel(network.input, network.output, name=network.name)
    model.world = world
    return model


def make_deterministic() -> None:
    """Makes the backend's operations reproducible bit for bit; JAX's are, except on GPUs (`XLA_FLAGS`)."""
    if keras.backend.backend() == "torch":
        import torch

        torch.use_deterministic_algorithms(True)
    else:
        tf.config.experimental.enable_op_determinism()


def check_backend(config: Config, world: World) -> None:
    """Checks that the backend of Keras can train this run. Raises ConfigError if not."""
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise ConfigError(f"KERAS_BACKEND={name} cannot train here; accepted: {', '.join(BACKENDS)}")
    if name == "tensorflow":
        return
    alone = f"KERAS_BACKEND={name} trains in one process"
    if world.size > 1:
        raise ConfigError(
            f"{alone}, and there are {world.size} ranks: unset KERAS_BACKEND, or set it to tensorflow, whose gradients "
            "Horovod averages; or train in a loop of your own with tfpipe.Loader"
        )
    if config.training.compression != "none":
        raise ConfigError(f"{alone}: there is nothing for training.compression to compress; leave it out")
