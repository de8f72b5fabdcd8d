"""CPUs of a process: by quotas of made trees of /proc and /sys, and by the sets of the ranks of a host."""

import math
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.util.resources import CpuSet, cpu_share, own_cpus, usable_cpus

HYBRID = "4:cpu,cpuacct:/job/step\n2:memory:/job\n0::/"


def v1(group: str, quota_us: int, period_us: int) -> dict[str, str]:
    name = f"cpu{group}/cpu.cfs"
    return {f"{name}_quota_us": str(quota_us), f"{name}_period_us": str(period_us)}


# The groups of a process, files of /sys/fs/cgroup, and the quota that they state.
QUOTAS = {
    "no groups": (None, {}, math.inf),
    "2": ("0::/pod", {"pod/cpu.max": "150000 100000"}, 1.5),
    "2, none set": ("0::/pod", {"pod/cpu.max": "max 100000"}, math.inf),
    "2, in a container": ("0::/", {"cpu.max": "400000 100000"}, 4),
    "2, whose path is the host's": ("0::/pods/7", {"cpu.max": "400000 100000"}, 4),
    "2, the least of all above": (
        "0::/job/step",
        {"job/cpu.max": "200000 100000", "job/step/cpu.max": "800000 100000"},
        2,
    ),
    "2, of another group": ("0::/a", {"b/cpu.max": "100000 100000"}, math.inf),
    "1": (HYBRID, v1("/job", -1, 100000) | v1("/job/step", 250000, 50000), 5),
}


@pytest.mark.parametrize("allowed", [2, 96])
@pytest.mark.parametrize("case", QUOTAS)
def test_threads_are_at_most_the_quota_and_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, allowed: int
) -> None:
    groups, files, quota = QUOTAS[case]
    files = {f"sys/fs/cgroup/{name}": contents for name, contents in files.items()}
    for name, contents in (files | ({"proc/self/cgroup": groups} if groups else {})).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{contents}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    assert own_cpus(tmp_path).quota == quota
    assert usable_cpus(tmp_path) == (allowed if quota == math.inf else min(allowed, math.ceil(quota)))


def sets(*cpus: range, **more: float) -> list[CpuSet]:
    return [CpuSet("host", tuple(each), **more) for each in cpus]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (sets(range(64)), [64]),
        (sets(*[range(64)] * 4), [16] * 4),  # not bound
        (sets(*[range(16)] * 4), [4] * 4),  # not bound, in a job's 16 of 64
        (sets(range(16), range(16, 32), range(32, 48), range(48, 64)), [16] * 4),  # bound
        (sets(range(32), range(32), range(32, 64), range(32, 64)), [16] * 4),  # bound to sockets, two to each
        (sets(range(4), range(2)), [3, 1]),  # two of the first are shared
        (sets(*[range(2)] * 3), [1] * 3),  # more ranks than CPUs
        (sets(*[range(96)] * 2, quota=4.0), [2, 2]),  # a quota of both
        ([*sets(range(8)), CpuSet("other", tuple(range(8)))], [8, 8]),
    ],
)
def test_equal_sets_of_a_hosts_ranks_are_divided_and_disjoint_ones_are_not(
    ranks: list[CpuSet], expected: list[int]
) -> None:
    assert [cpu_share(ranks, rank) for rank in range(len(ranks))] == expected


@given(st.lists(st.sets(st.integers(0, 15), min_size=1), min_size=1, max_size=6))
def test_all_shares_fit_their_cpus(drawn: list[set[int]]) -> None:
    ranks = [CpuSet("host", tuple(sorted(each))) for each in drawn]
    shares = [cpu_share(ranks, rank) for rank in range(len(ranks))]
    users = Counter(cpu for each in drawn for cpu in each)
    for share, each in zip(shares, drawn, strict=True):
        assert 1 <= share <= len(each)
        assert all(users[cpu] > 1 for cpu in each) or share >= sum(users[cpu] == 1 for cpu in each)
    assert sum(share for share in shares if share > 1) <= len(set().union(*drawn))
