"""How much memory a process can still have: the machine's, or less in a container or a batch job that has a limit."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Version(NamedTuple):
    """Where one of the two versions of Linux's control groups keeps its numbers."""

    mount: str
    limit: str
    used: str
    cached: tuple[str, str]
    """Lines of memory.stat: bytes of files, which are given up before a limit is reached."""


# By the controllers that a line of /proc/self/cgroup names; version 2 names none.
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
    """Bytes that can be had without swapping; all there are where the system does not say.

    Args:
        root: of the tree that has /proc and /sys.
    """
    return max(0, min([_of_machine(root), *_of_groups(root)]))


def _of_machine(root: Path) -> int:
    try:
        return 1024 * _value(root / "proc/meminfo", "MemAvailable:")
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups(root: Path) -> Iterator[int]:
    """What is left to each control group that this process is in, where it has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in VERSIONS.keys() & controllers.split(","):
            version = VERSIONS[controller]
            # A job's limit holds for its steps. In a container, its own group may be all that is mounted.
            inner = Path(path.lstrip("/"))
            for group in dict.fromkeys((inner, *inner.parents)):
                yield from _left(root / version.mount / group, version)


def _left(group: Path, version: Version) -> Iterator[int]:
    try:
        limit = (group / version.limit).read_text().strip()
        if limit != "max":
            cached = sum(_value(group / "memory.stat", name) for name in version.cached)
            yield int(limit) - int((group / version.used).read_text()) + cached
    except (OSError, StopIteration):  # no such group here, or no limit on it
        return


def _value(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{name} "))
