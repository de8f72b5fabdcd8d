"""Ranks that a hub connects, under any launcher: the base of the collectives of TensorFlow, JAX and PyTorch."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfpipe.collectives.launch import Launch
from tfpipe.collectives.rendezvous import connect
from tfpipe.errors import TfpipeError

BROADCAST_BYTES = 16 << 20


class HubCollectives(ABC):
    """The ranks of a launch, connected by a hub, which carries Python values; a framework carries the tensors."""

    def __init__(self, launch: Launch, folder: Path) -> None:
        """Connects the ranks, which meet in `folder`. Raises ConfigError if they do not come."""
        self.rank = launch.rank
        self.hub, self.size = connect(launch, folder)
        hosts = self.gather(socket.gethostname())
        local = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        self.local_rank, self.local_size = local.index(self.rank), len(local)

    def gather(self, value: Any) -> list[Any]:
        return self.hub.exchange(value, list)

    def broadcast(self, value: Any) -> Any:
        return self.hub.exchange(value if self.rank == 0 else None, lambda values: values[0])

    def sum(self, values: np.ndarray) -> np.ndarray:
        return self.hub.exchange(values, lambda arrays: np.sum(arrays, axis=0))

    def broadcast_arrays(self, arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
        """Adds rank 0's bytes, as int32, to the zeros of all others: any type arrives bit for bit."""
        kinds = [(array.shape, array.dtype.str, array.nbytes) for array in arrays]
        if any(others != kinds for others in self.gather(kinds)):
            raise TfpipeError(f"rank {self.rank}: the shapes of the {name} differ between ranks")
        length = sum(array.nbytes for array in arrays)
        content = np.zeros(-(-length // 4), np.int32)
        if self.rank == 0 and length:
            content.view(np.uint8)[:length] = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
        step = BROADCAST_BYTES // 4
        received = [self._add_words(content[begin : begin + step], name) for begin in range(0, len(content), step)]
        data = np.concatenate(received).tobytes() if received else b""
        results, begin = [], 0
        for array in arrays:
            results.append(np.frombuffer(data, array.dtype, array.size, begin).reshape(array.shape))
            begin += array.nbytes
        return results

    @abstractmethod
    def _add_words(self, words: np.ndarray, name: str) -> np.ndarray:
        """Returns the sum over ranks of an int32 vector, which has the same length on every rank."""


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message; those of frameworks go on with C++ stacks."""
    return str(error).partition("\n")[0]
