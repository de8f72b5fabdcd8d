"""Free memory: the least of what the machine has and what each control group leaves, by made trees of /proc, /sys."""

from pathlib import Path

import pytest

from tfpipe.util.resources import free_memory, private_memory

GB = 10**9
MEMINFO = "MemTotal: 99000000 kB\nMemFree: 1 kB\nMemAvailable: 50000000 kB\n"
FREE = 50_000_000 * 1024
NO_LIMIT_V1 = 9223372036854771712


def tree(root: Path, files: dict[str, object]) -> Path:
    for name, contents in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{contents}\n")
    return root


def v2(group: str, limit: object, used: int, cached: int = 0) -> dict[str, object]:
    folder = f"sys/fs/cgroup{group}"
    stat = f"anon 1\nfile 77\ninactive_file {cached // 2}\nactive_file {cached - cached // 2}"
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": used, f"{folder}/memory.stat": stat}


def v1(group: str, limit: object, used: int, cached: int = 0) -> dict[str, object]:
    name = f"sys/fs/cgroup/memory{group}/memory"
    stat = f"inactive_file 5\nactive_file 5\ntotal_inactive_file {cached}\ntotal_active_file 0"
    return {f"{name}.limit_in_bytes": limit, f"{name}.usage_in_bytes": used, f"{name}.stat": stat}


STEP, HYBRID = "0::/job_7/step_0", "12:cpuset:/\n4:memory:/job\n0::/"
# The groups of a process, their files, and what they leave free.
CASES = {
    "no groups": (None, {}, FREE),
    "2, none set": ("0::/a", v2("/a", "max", 7 * GB), FREE),
    "2": ("0::/a", v2("/a", 8 * GB, 3 * GB), 5 * GB),
    "2, files it holds are given up": ("0::/a", v2("/a", 8 * GB, 7 * GB, 4 * GB), 5 * GB),
    "2, a container sees its own as the root": ("0::/", v2("", 8 * GB, 3 * GB), 5 * GB),
    "2, the job's limit": (STEP, v2("/job_7", 9 * GB, GB) | v2("/job_7/step_0", "max", 1), 8 * GB),
    "2, the step's, below it": (STEP, v2("/job_7", 9 * GB, GB) | v2("/job_7/step_0", 2 * GB, 1), 2 * GB - 1),
    "2, more than the machine has": ("0::/a", v2("/a", 900 * GB, 3 * GB), FREE),
    "2, over its limit": ("0::/a", v2("/a", 2 * GB, 3 * GB), 0),
    "2, another's": ("0::/a", v2("/b", 8 * GB, 3 * GB), FREE),
    "1": (HYBRID, v1("/job", 8 * GB, 3 * GB, GB), 6 * GB),
    "1, none set": (HYBRID, v1("/job", NO_LIMIT_V1, 3 * GB), FREE),
    "1, in a container, whose path is the host's": (HYBRID, v1("", 8 * GB, 3 * GB), 5 * GB),
    "1, with other controllers": ("3:cpu,memory:/job:1", v1("/job:1", 8 * GB, 3 * GB), 5 * GB),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_of_machine_and_groups_is_free(tmp_path: Path, case: str) -> None:
    groups, files, expected = CASES[case]
    own = {"proc/self/cgroup": groups} if groups else {}
    assert free_memory(tree(tmp_path, own | files)) == expected


def test_where_the_system_says_nothing_it_is_all_there_is(tmp_path: Path) -> None:
    assert free_memory(tmp_path) > 10**8


def test_private_memory_counts_neither_mapped_files_nor_what_others_share(tmp_path: Path) -> None:
    figures = "Rss: 900 kB\nPss: 500 kB\nShared_Clean: 300 kB\nPrivate_Clean: 200 kB\nPrivate_Dirty: 100 kB"
    rollup = tree(tmp_path, {"proc/self/smaps_rollup": figures})
    assert private_memory(rollup) == 100 * 1024
    assert private_memory(tmp_path / "no proc") == 0
    before = private_memory()
    held = bytearray(b"x" * 50_000_000)
    assert private_memory() - before > 40_000_000 and held
