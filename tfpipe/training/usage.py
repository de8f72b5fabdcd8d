"""What this process uses: CPU time, memory, bytes read, and the files behind what it has trained."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.distributed import World


class Usage(NamedTuple):
    """Since the process's start."""

    cpu_s: float
    """Of all its threads."""
    read_bytes: int
    """By read calls, whether from storage or the page cache; what is mapped into memory does not count."""
    storage_bytes: int
    """Fetched from storage for it; a network file system may not count here."""


class Visited(NamedTuple):
    """What some batches were made of."""

    images: int
    files: int
    """JPEGs, and XMLs where they are read."""


def usage() -> Usage:
    """Of this process, now; bytes are 0 where the kernel does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        lines = []
    counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return Usage(time.process_time(), counts.get("rchar", 0), counts.get("read_bytes", 0))


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allowed_cores(world: World) -> int:
    """CPUs that this rank may use."""
    return world.threads or len(os.sched_getaffinity(0))


class Visits:
    """Counts the images and files of batches, by their positions."""

    def __init__(self, catalog: Catalog, config: DataConfig, world: World) -> None:
        """For the training batches of this rank."""
        self._annotated = None if catalog.boxes is not None else catalog.annotated
        self._order, self._world = catalog.order(config), world
        self._last = -1

    def count(self, batches: Sequence[np.ndarray]) -> Visited:
        """What is new in batches of these positions, int64 [batch, 2] each: an image's crops may lie in two of them.

        Works out the items anew, at 0.4 microseconds each.
        """
        if not batches:
            return Visited(0, 0)
        positions = np.unique(np.concatenate([batch[:, 0] for batch in batches]))
        new = positions[positions != self._last]
        self._last = batches[-1][-1, 0]
        if self._annotated is None or not len(new):
            return Visited(len(new), len(new))
        annotated = self._annotated[self._order.items(new, self._world)]
        return Visited(len(new), len(new) + int(annotated.sum()))
