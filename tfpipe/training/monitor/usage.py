"""Resource usage of this process: CPU time, memory, bytes read, and the files of the batches it has trained."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.split import Split
from tfpipe.distributed import World


class Usage(NamedTuple):
    """Resources used since the start of the process."""

    cpu_s: float  # CPU seconds of all threads
    read_bytes: int  # bytes of read calls, from storage or the page cache; memory-mapped files do not count
    storage_bytes: int  # bytes fetched from storage; reads of a network file system may be missing


class SampleCounts(NamedTuple):
    """Number of images and files that batches were made of."""

    images: int
    files: int  # JPEGs, plus XMLs if they are read


def usage() -> Usage:
    """Returns this process's usage so far; bytes are 0 if the kernel does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        lines = []
    counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return Usage(time.process_time(), counts.get("rchar", 0), counts.get("read_bytes", 0))


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allowed_cores(world: World) -> int:
    """Returns the number of CPUs that this rank may use."""
    return world.threads or len(os.sched_getaffinity(0))


class SampleCounter:
    """Counts the images and files of batches, by their positions."""

    def __init__(self, split: Split) -> None:
        """Counts training batches of this rank."""
        self._annotated = None if split.catalog.boxes is not None else split.catalog.annotated
        self._order, self._world = split.order, split.world
        self._last = -1

    def count(self, batches: Sequence[np.ndarray]) -> SampleCounts:
        """Counts the new images and files in batches of these positions, int64 [batch, 2] each.

        An image whose crops lie in two batches counts once. Looking up its item costs 0.4 microseconds.
        """
        if not batches:
            return SampleCounts(0, 0)
        positions = np.unique(np.concatenate([batch[:, 0] for batch in batches]))
        new = positions[positions != self._last]
        self._last = batches[-1][-1, 0]
        if self._annotated is None or not len(new):
            return SampleCounts(len(new), len(new))
        annotated = self._annotated[self._order.items(new, self._world)]
        return SampleCounts(len(new), len(new) + int(annotated.sum()))
