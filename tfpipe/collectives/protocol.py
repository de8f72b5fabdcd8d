"""The protocol of collectives: every rank calls the same functions in the same order."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from tfpipe.errors import TfpipeError

Backend = Literal["none", "mpi", "horovod", "tensorflow", "jax", "torch"]


# In the errors of Horovod's and TensorFlow's ops when another rank has stopped.
LOST = ("Horovod has been shut down", "Collective ops is aborted")


class LostRankError(TfpipeError):
    """Another rank has stopped, which says why itself, if it can."""


def is_lost(error: BaseException) -> bool:
    """Returns whether a collective failed with `error` because another rank has stopped."""
    return isinstance(error, LostRankError) or any(text in str(error) for text in LOST)


def by_type(tensors: Sequence[Any]) -> Iterable[list[int]]:
    """Returns the numbers of the tensors of each type."""
    numbers: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        numbers.setdefault(tensor.dtype, []).append(number)
    return numbers.values()


def in_messages(
    tensors: Sequence[Any], messages: Iterable[list[int]], average: Callable[[list[Any]], Iterable[Any]]
) -> list[Any]:
    """Returns the means of tensors: `average` gets those of a message, by their numbers, and returns their means."""
    means: dict[int, Any] = {}
    for numbers in messages:
        means |= zip(numbers, average([tensors[number] for number in numbers]), strict=True)
    return [means[number] for number in range(len(tensors))]


class Collectives(Protocol):
    """Connected ranks that exchange Python values."""

    name: Backend
    rank: int
    size: int
    local_rank: int  # rank among those on this host
    local_size: int  # number of ranks on this host

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's `value`, by rank, on every rank."""

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's `value` on every rank."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of a float64 array over ranks, the same bits on every rank."""


class TensorCollectives(Collectives, Protocol):
    """Connected ranks that can train: they reduce and broadcast tensors."""

    overlaps: bool  # whether `average` sends a tensor before all of them are known

    def start(self) -> None:
        """Prepares the collectives of tensors; the framework's devices are set, and no op has run yet."""

    def average(self, tensors: Sequence[Any], name: str, fp16_compression: bool = False) -> list[Any]:
        """Returns the means over ranks of float tensors, the same bits on every rank; eagerly, or in TF's graph.

        Tensors are those of Keras' backend, and have equal shapes on every rank. With `fp16_compression` they are sent
        as float16.
        """

    def broadcast_arrays(self, arrays: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
        """Returns rank 0's arrays on every rank. Shapes and types are equal on every rank."""
