"""Measures memory, what a process can still allocate and what it holds, and how long its threads wait for CPUs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Version(NamedTuple):
    """File names of one of the two versions of Linux's control groups."""

    mount: str
    limit: str
    used: str
    prefix: str
    """Prefix of the keys in memory.stat of the page cache's bytes, which the kernel drops before a limit is reached."""


# By controller, as in /proc/self/cgroup; lines of version 2 name none.
VERSIONS = {
    "": Version("sys/fs/cgroup", "memory.max", "memory.current", ""),
    "memory": Version("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


def free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that can be allocated without swapping; the machine's whole memory if the system has no figure.

    `root` contains proc/ and sys/.
    """
    return max(0, min([_of_machine(root), *_of_groups(root)]))


def private_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process shares with no other; 0 if the system has no figure.

    Pages of mapped files do not count: the kernel drops them when memory is short. `root` contains proc/.
    """
    try:
        return 1024 * _value(root / "proc/self/smaps_rollup", "Private_Dirty:")
    except (OSError, StopIteration):
        return 0


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
            names = (f"{version.prefix}active_file", f"{version.prefix}inactive_file")
            cached = sum(_value(group / "memory.stat", name) for name in names)
            yield int(limit) - int((group / version.used).read_text()) + cached
    except (OSError, StopIteration):  # the group is not mounted here, or has no limit
        return


def _value(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{name} "))


def queued_s() -> dict[str, float]:
    """Returns, by thread, the seconds spent runnable without a CPU so far; empty if the kernel does not report them."""
    delays_s = {}
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
            delays_s[thread] = 1e-9 * int(file.read().split()[1])
    return delays_s


def queued_since(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Returns the seconds of delay between two `queued_s`, summed over the threads that are in both."""
    return sum(seconds - before[thread] for thread, seconds in now.items() if thread in before)
