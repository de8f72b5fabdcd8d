"""Measures memory, what a process can still allocate and what it holds; its share of CPUs, and the wait for them."""

import math
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple


class Version(NamedTuple):
    """File names of one of the two versions of Linux's control groups."""

    limit: str
    used: str
    prefix: str
    """Prefix of the keys in memory.stat of the page cache's bytes, which the kernel drops before a limit is reached."""


# By controller, as in /proc/self/cgroup; lines of version 2 name none.
VERSIONS = {
    "": Version("memory.max", "memory.current", ""),
    "memory": Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


def free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that can be allocated without swapping; the machine's whole memory if the system has no figure.

    `root` contains proc/ and sys/.
    """
    of_groups = (_room(group, VERSIONS[controller]) for controller, group in groups_of(root) if controller in VERSIONS)
    kib = _value(root / "proc/meminfo", "MemAvailable:")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if kib is None else 1024 * kib
    return max(0, min([machine, *chain.from_iterable(of_groups)]))


def private_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process shares with no other; 0 if the system has no figure.

    Pages of mapped files do not count: the kernel drops them when memory is short. `root` contains proc/.
    """
    return 1024 * (_value(root / "proc/self/smaps_rollup", "Private_Dirty:") or 0)


def groups_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields the controller, "" for all of version 2, and the folder of each control group of this process.

    Its limits hold for the groups in it too. In a container, only the own group may be mounted, in place of all.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = Path(path.lstrip("/"))
        for controller in controllers.split(","):
            for group in dict.fromkeys((inner, *inner.parents)):
                yield controller, root / "sys/fs/cgroup" / controller / group


def _room(group: Path, version: Version) -> Iterator[int]:
    with suppress(OSError):  # the group is not mounted here, or has no limit
        limit = (group / version.limit).read_text().strip()
        names = (f"{version.prefix}active_file", f"{version.prefix}inactive_file")
        cached = [_value(group / "memory.stat", name) for name in names]
        if limit != "max" and None not in cached:
            yield int(limit) - int((group / version.used).read_text()) + sum(filter(None, cached))


def _value(file: Path, name: str) -> int | None:
    with suppress(OSError):
        lines = file.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)
    return None


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


class CpuSet(NamedTuple):
    """The CPUs that a process may use."""

    host: str
    cpus: tuple[int, ...]  # numbers of those that it may run on
    quota: float = math.inf  # CPU seconds in a second that all processes of its group together may take
    group: str = ""  # the group, of all processes that have the same text


def own_cpus(root: Path = Path("/")) -> CpuSet:
    """Returns the CPUs of this process; `root` contains proc/ and sys/."""
    group = ""
    with suppress(OSError):  # not Linux
        group = (root / "proc/self/cgroup").read_text()
    quota = min(_quotas(root), default=math.inf)
    return CpuSet(socket.gethostname(), tuple(sorted(os.sched_getaffinity(0))), quota, group)


def usable_cpus(root: Path = Path("/")) -> int:
    """Returns the number of CPUs that this process can keep busy, as if it were alone."""
    return cpu_share([own_cpus(root)], 0)


def cpu_share(ranks: Sequence[CpuSet], rank: int) -> int:
    """Returns the number of threads, at least 1, by which a rank uses its share of CPUs.

    A CPU is divided among the ranks that may run on it: sets of a launcher that binds ranks are theirs alone, equal
    ones are shared. So is a quota, of whose CPUs the last one may be a part.
    """
    here = ranks[rank]
    near = [other for other in ranks if other.host == here.host]
    users = Counter(cpu for other in near for cpu in other.cpus)
    cpus = math.fsum(1 / users[cpu] for cpu in here.cpus)
    quota = here.quota / sum(other.group == here.group for other in near)
    return max(1, math.floor(min(cpus + 1e-9, quota if quota == math.inf else math.ceil(quota))))


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quota of each control group of this process that has one, in CPUs."""
    for controller, group in groups_of(root):
        with suppress(OSError, ValueError):  # not mounted here, or "max"
            if controller == "":
                quota_us, period_us = (group / "cpu.max").read_text().split()
            elif controller == "cpu":
                quota_us, period_us = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            else:
                continue
            if int(quota_us) > 0:
                yield int(quota_us) / int(period_us)
