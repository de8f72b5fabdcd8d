"""The CPUs and GPUs of a rank: what TensorFlow gets of them, and the GPUs that Keras' backend computes on."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfpipe.distributed import World
from tfpipe.errors import counted
from tfpipe.util.tensorflow_api import shareable

logger = logging.getLogger(__name__)

DEVICES = Path("/dev")
# What installs each backend of Keras with CUDA.
REMEDIES = {
    "tensorflow": "pip install 'tensorflow[and-cuda]'",
    "jax": "pip install 'jax[cuda12]'",
    "torch": "install PyTorch's build for CUDA, https://pytorch.org/get-started/locally",
}


def configure_devices(world: World, interop: int | None = None, intraop: int | None = None) -> None:
    """Sets TensorFlow's threads and GPU for this rank; must come before the first use of TensorFlow.

    `interop` and `intraop` are the threads between and within ops; None with several ranks for the rank's share of the
    node's CPUs. Under another backend of Keras, TensorFlow gets no GPU: it would take the backend's memory.
    """
    default = world.threads if world.size > 1 else None
    for threads, setting in (
        (interop or default, tf.config.threading.set_inter_op_parallelism_threads),
        (intraop or default, tf.config.threading.set_intra_op_parallelism_threads),
    ):
        if threads is not None:
            setting(threads)
    gpus = tf.config.list_physical_devices("GPU")
    if keras.backend.backend() != "tensorflow":
        tf.config.set_visible_devices([], "GPU")
        return
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if gpus:
        tf.config.set_visible_devices(gpus[world.local_rank % len(gpus)], "GPU")


def count_gpus() -> int:
    """Returns the number of GPUs that Keras' backend sees; with several ranks of JAX, those of this rank."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return sum(device.platform == "gpu" for device in jax.local_devices())
    if backend == "torch":
        import torch

        return torch.cuda.device_count()
    return len(tf.config.list_physical_devices("GPU"))


def check_gpus(world: World) -> int:
    """Returns the number of GPUs that Keras' backend sees, and warns if it leaves out GPUs of this host.

    Ranks of JAX must be connected before.
    """
    count, backend = count_gpus(), keras.backend.backend()
    there = sorted(DEVICES.glob("nvidia[0-9]*"))
    if there and not count and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        logger.warning(
            "%s is there, and KERAS_BACKEND=%s sees no GPU, so the model runs on CPUs: %s; nvidia-smi shows whether "
            "the driver works; CUDA_VISIBLE_DEVICES=-1 if CPUs are meant",
            *(there[0], backend, REMEDIES[backend]),
        )
    if count > 1 and world.size == 1:
        logger.warning("1 of %d GPUs used: mpirun -n %d --bind-to none python train.py ... uses all", count, count)
    return count


def mover() -> str | Callable[[tf.Tensor], Any] | None:
    """Returns a Loader's `device` for a run: TensorFlow's GPU, or what makes arrays on the backend's device of tensors.

    On a CPU the arrays share TensorFlow's memory, which nothing writes to.
    """
    if keras.backend.backend() == "tensorflow":
        return "GPU:0" if tf.config.get_visible_devices("GPU") else None
    if keras.backend.backend() == "jax":
        import jax

        return lambda part: jax.block_until_ready(jax.device_put(np.asarray(part)))
    import torch

    if not torch.cuda.is_available():
        return lambda part: torch.from_dlpack(shareable(part))
    gpu = torch.device("cuda", torch.cuda.current_device())  # of this thread; the Loader's may have another one
    # From pinned memory the copy is only queued, behind the step's work.
    return lambda part: torch.from_dlpack(shareable(part)).pin_memory().to(gpu, non_blocking=True)


def log_devices(world: World) -> None:
    """Logs the ranks, what connects them, and their CPUs and GPUs."""
    by = f" connected by {world.backend}" if world.size > 1 else ""
    of = "of this rank" if world.size > 1 and world.backend == "jax" else "on this host"
    gpus = check_gpus(world)
    cpus = counted(world.threads, "CPU") if world.threads else "all CPUs"
    logger.info("%s%s, each with %s; %s %s", counted(world.size, "rank"), by, cpus, counted(gpus, "GPU"), of)
