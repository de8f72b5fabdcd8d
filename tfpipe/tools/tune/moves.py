"""The changes that tune tries: keys that change neither pixels nor order, with their values."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.runtime.parallelism import READS, thread_budget
from tfpipe.distributed import World

READ_LADDER = (16, 32, READS, 2 * READS, 4 * READS)
REQUEST_LADDER = (16, 64, 128, 256)
PREFETCHED = (2, 8)
FRACTIONS = (0.25, 0.5, 0.75, 1.0)

# Defaults of the keys that tune may change, as --set takes them.
DEFAULTS = {
    "data.num_parallel_readers": "auto",
    "data.parallel.read": "auto",
    "data.parallel.decode": "auto",
    "data.prefetch_buffer_size": "auto",
    "data.threads": "null",
}

Setting = tuple[tuple[str, str], ...]
"""Overrides of the config, each a key and its value as --set takes them."""


class Move(NamedTuple):
    """Changes of which at most one is kept."""

    name: str
    candidates: tuple[Setting, ...]


def put(setting: Setting, changes: Setting) -> Setting:
    """Returns a setting with changes on top of it."""
    return tuple({**dict(setting), **dict(changes)}.items())


def flags(setting: Setting) -> str:
    """Returns a setting as command-line arguments."""
    return " ".join(f"--set {key}={value}" for key, value in setting)


def moves(data: DataConfig, catalog: Catalog, world: World) -> Iterator[Move]:
    """Yields the moves for the pipeline alone, those that usually gain most first."""
    away = tuple((key, value) for key, value in DEFAULTS.items() if not _is_default(data, key))
    if away:
        yield Move("defaults", (away,))
    default = {"threads": None, "cpu_fraction": 1.0, "num_parallel_readers": "auto"}
    threads = thread_budget(data.model_copy(update=default), world)
    if data.service is None and catalog.source.stores == "images":
        if catalog.paths.remote:
            yield _ladder("data.remote.concurrency", REQUEST_LADDER)
        else:
            yield _ladder("data.parallel.read", READ_LADDER)
        yield _ladder("data.parallel.decode", (*((1,) if threads > 1 else ()), "autotune"))
        yield _ladder("data.threads", (2 * threads,))
    yield _ladder("data.prefetch_buffer_size", PREFETCHED)


def fractions(data: DataConfig, world: World) -> Move:
    """Returns the shares of the CPUs that differ in their number of threads, without the one in use.

    `data.threads` overrides a share, so it is unset.
    """
    cpus = world.threads or len(os.sched_getaffinity(0))
    seen, values = {thread_budget(data, world)}, []
    for fraction in FRACTIONS:
        threads = max(1, round(fraction * cpus))
        if threads not in seen:
            seen.add(threads)
            values.append(fraction)
    unset = () if data.threads is None else (("data.threads", "null"),)
    return Move("data.cpu_fraction", tuple((*unset, ("data.cpu_fraction", f"{value:g}")) for value in values))


def _ladder(key: str, values: tuple[Any, ...]) -> Move:
    return Move(key, tuple(((key, str(value)),) for value in values))


def _is_default(data: DataConfig, key: str) -> bool:
    value: Any = data
    for name in key.split(".")[1:]:
        value = getattr(value, name)
    return value in (None, "auto")
