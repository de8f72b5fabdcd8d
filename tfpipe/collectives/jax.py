"""JAX's own collectives: Gloo between CPUs, NCCL between GPUs."""

import glob
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tfpipe.collectives.connected import HubCollectives, first_line
from tfpipe.collectives.protocol import Backend, LostRankError, by_type, in_messages
from tfpipe.errors import TfpipeError
from tfpipe.util.process import bypass_proxy, redirect

START_S = 120


class JaxCollectives(HubCollectives):
    """The ranks of a launch, connected for tensors by a mesh of one device of each rank.

    Only the sums over ranks run on the mesh. All else runs on the rank's own device, so that ranks may differ, e.g. in
    the number of test batches.
    """

    name: Backend = "jax"
    overlaps = False
    _shards: Any = None

    def start(self) -> None:
        """Connects the devices of all ranks. Raises TfpipeError if it cannot."""
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        if self._shards is not None:
            return
        # It would take SIGTERM away from the run.
        jax.config.update("jax_enable_preemption_service", val=False)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        port = self.broadcast(port)
        leader = self.hub.leader_address() or "127.0.0.1"
        bypass_proxy([leader])
        jax.config.update("jax_check_proxy_envs", val=False)  # no warning of the proxy
        try:
            jax.distributed.initialize(
                f"{leader}:{port}", self.size, self.rank, [_own_gpu(self.local_rank)],
                cluster_detection_method="deactivate", initialization_timeout=START_S,
                coordinator_bind_address=f"0.0.0.0:{port}",
            )  # fmt: skip
            devices = [next(device for device in jax.devices() if device.process_index == r) for r in range(self.size)]
            mesh = Mesh(np.array(devices), ("ranks",))
            self._shards = NamedSharding(mesh, PartitionSpec("ranks"))
            self._sum = jax.jit(partial(jax.numpy.sum, axis=0), out_shardings=NamedSharding(mesh, PartitionSpec()))
            sys.stdout.flush()
            with open(os.devnull, "w") as nothing, redirect(1, nothing.fileno()):
                self._add(jax.numpy.zeros(1))  # Gloo prints a line on each rank
            # The devices are connected, and keep their connections. JAX's service would only do harm from here on: it
            # aborts a process of which another one ends first, and lets a failed one wait for all others.
            jax.distributed.shutdown()
        except RuntimeError as error:
            raise TfpipeError(
                f"rank {self.rank}: JAX's collectives cannot start ({first_line(error)}): the host's name must "
                "resolve to an address that the other ranks reach; start the run again, which takes another port"
            ) from error
        self._flatten = jax.jit(_flatten, static_argnums=1)
        self._split = jax.jit(_split, static_argnums=1)

    def average(self, tensors: Sequence[Any], name: str, fp16_compression: bool = False) -> list[Any]:  # noqa: ARG002
        """Sends the tensors of each type in one message."""

        def mean(parts: list[Any]) -> list[Any]:
            total = self._add(self._flatten(parts, fp16_compression and parts[0].dtype.itemsize > 2))
            return self._split(total, self.size, parts)

        return in_messages(tensors, by_type(tensors), mean)

    def _add_words(self, words: np.ndarray, name: str) -> np.ndarray:  # noqa: ARG002
        import jax

        return np.asarray(self._add(jax.numpy.asarray(words)))

    def _add(self, vector: Any) -> Any:
        """Returns the sum of a vector over ranks. Raises LostRankError if a rank has stopped."""
        import jax

        shape = (self.size, *vector.shape)
        vectors = jax.make_array_from_single_device_arrays(shape, self._shards, [vector[None]])
        try:
            # On a CPU an error may come only after the wait, and as a ValueError; a GPU idles until the host goes on.
            return self._sum(vectors).addressable_data(0).block_until_ready()
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise LostRankError(f"rank {self.rank}: another rank has stopped ({first_line(error)})") from error


def _flatten(tensors: Sequence[Any], as_float16: bool) -> Any:
    import jax.numpy as jnp

    flat = jnp.concatenate([tensor.reshape(-1) for tensor in tensors])
    return flat.astype(jnp.float16) if as_float16 else flat


def _split(total: Any, size: int, like: Sequence[Any]) -> list[Any]:
    """Returns the total, divided by `size`, in the shapes and the type of the tensors `like`."""
    import jax.numpy as jnp

    mean = total.astype(like[0].dtype) / size
    parts = jnp.split(mean, np.cumsum([tensor.size for tensor in like])[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _own_gpu(local_rank: int) -> int:
    """Returns the number of this rank's GPU among the visible ones; 0 without GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(glob.glob("/dev/nvidia[0-9]*")) if visible is None else len(visible.split(","))
    return local_rank % max(count, 1)
