"""The collectives of MPI's COMM_WORLD, through mpi4py; for tools, which exchange no tensors."""

from typing import Any

import numpy as np

from tfpipe.collectives.protocol import Backend
from tfpipe.errors import ConfigError


class MpiCollectives:
    """All ranks that mpirun has started. Raises ConfigError if mpi4py or its MPI is not installed."""

    name: Backend = "mpi"

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigError(f"mpi4py cannot be imported ({error}); install tfpipe[mpi] and an MPI") from error
        self._world = MPI.COMM_WORLD
        local = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.rank, self.size = self._world.rank, self._world.size
        self.local_rank, self.local_size = local.rank, local.size

    def gather(self, value: Any) -> list[Any]:
        return self._world.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._world.bcast(value, root=0)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return self._world.allreduce(values)
