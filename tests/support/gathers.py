"""Ranks that are threads of one process: their gather really waits for all of them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tfpipe import Config, Loader, World

T = TypeVar("T")


class Gather:
    """The gathers of some ranks: each returns every rank's value once all have called."""

    def __init__(self, size: int) -> None:
        self._values: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=60)

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(value: Any) -> list[Any]:
            self._values[rank] = value
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
            return values

        return gather


@dataclass(frozen=True)
class ThreadRank(World):
    """A rank that is a thread."""

    of_all: Any = None
    """That of a Gather."""

    def gather(self, value: Any) -> list[Any]:
        return self.of_all(value)


def loaders_of(
    config: Config, size: int, split: str = "train", state: dict[str, Any] | None = None, **how: Any
) -> list[Loader]:
    """Returns the Loaders of all ranks, at the start or at a state."""
    gather = Gather(size)
    loaders = [Loader(config, split, World(rank, size), gather=gather.of(rank), **how) for rank in range(size)]
    for loader in loaders if state is not None else []:
        loader.load_state_dict(state)
    return loaders


def on_all(function: Callable[[Any], T], ranks: Sequence[Any]) -> list[T]:
    """Returns the result of `function` for each of `ranks`, called at the same time."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(function, ranks))
