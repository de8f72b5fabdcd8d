"""Measures memory, what a process can still allocate and what it holds; sets what it keeps of freed memory."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Parameters of mallopt (malloc.h). A block of at least MMAP_BYTES, glibc's own upper bound, is given back when it is
# freed; of smaller ones, as images, crops and most batches are, TRIM_BYTES of freed memory stay. By itself glibc raises
# both to the largest block freed so far and twice that: then a pipeline takes 6 fresh pages a crop of 224x224, each
# cleared by the kernel, 20 microseconds of 850 in all (profiles/kept_memory.py).
M_TRIM_THRESHOLD, TRIM_BYTES = -1, 256 << 20
M_TOP_PAD, TOP_PAD_BYTES = -2, 64 << 20
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 32 << 20
# Environment variables by which users set the same (mallopt(3)).
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


class Version(NamedTuple):
    """File names of one of the two versions of Linux's control groups."""

    mount: str
    limit: str
    used: str
    cached: tuple[str, str]
    """Keys in memory.stat of the page cache's bytes, which the kernel drops before a limit is reached."""


# By controller, as in /proc/self/cgroup; lines of version 2 name none.
VERSIONS = {
    "": Version("sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")),
    "memory": Version(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
}


def free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that can be allocated without swapping; the machine's whole memory if the system has no figure.

    `root` contains proc/ and sys/.
    """
    return max(0, min([_of_machine(root), *_of_groups(root)]))


def private_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process shares with no other; 0 if the system has no figure.

    Pages of mapped files do not count: the kernel drops them when memory is short, and other processes use the same.
    `root` contains proc/.
    """
    try:
        return 1024 * _value(root / "proc/self/smaps_rollup", "Private_Dirty:")
    except (OSError, StopIteration):
        return 0


@functools.cache
def keep_freed_memory() -> None:
    """Makes this process keep freed memory, up to TRIM_BYTES; later calls do nothing.

    Leaves everything as it is if the user has set malloc up by one of OWN, or the C library is not glibc.
    """
    if any(name in os.environ for name in OWN):
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(M_TOP_PAD, TOP_PAD_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


def _of_machine(root: Path) -> int:
    try:
        return 1024 * _value(root / "proc/meminfo", "MemAvailable:")
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups(root: Path) -> Iterator[int]:
    """Yields the bytes left to each control group of this process that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in VERSIONS.keys() & controllers.split(","):
            version = VERSIONS[controller]
            # A job's limit also holds for the groups of its steps. In a container, only its own group may be mounted.
            inner = Path(path.lstrip("/"))
            for group in dict.fromkeys((inner, *inner.parents)):
                yield from _left(root / version.mount / group, version)


def _left(group: Path, version: Version) -> Iterator[int]:
    try:
        limit = (group / version.limit).read_text().strip()
        if limit != "max":
            cached = sum(_value(group / "memory.stat", name) for name in version.cached)
            yield int(limit) - int((group / version.used).read_text()) + cached
    except (OSError, StopIteration):  # the group is not mounted here, or has no limit
        return


def _value(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{name} "))
