"""Records the CPU time of each test file, with that of the commands and ranks that its tests start.

A pytest plugin: `pytest --durations-to FILE` writes the table. A test's time is that of its worker's threads, of the
processes that it has waited for, and of those that the warm server has forked for it.
"""

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm import ADDRESS

HEADER = ("file", "tests", "cpu_s", "wall_s")
STARTING = "(starting and collecting)"
KEY = "durations"


def cpu_s() -> float:
    """Returns the CPU time of this process and of the processes that it has waited for, in seconds."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def read(path: Path) -> dict[str, tuple[int, float, float]]:
    """Returns (tests, CPU seconds, wall seconds) by test file."""
    rows = (line.split("\t") for line in path.read_text().splitlines()[1:])
    return {name: (int(tests), float(cpu), float(wall)) for name, tests, cpu, wall in rows}


class Recorder:
    """Adds up times in the worker that runs a test, and writes the table in the process that starts the workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        self.each: list[tuple[float, float, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measures a test with the fixtures that it is the first to use."""
        self.begin = (cpu_s(), time.monotonic())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[pytest.TestReport]:
        """Attaches a phase's times to its report, which pytest-xdist sends on."""
        report = yield
        now = (cpu_s(), time.monotonic())
        report.user_properties.append((KEY, [now[0] - self.begin[0], now[1] - self.begin[1]]))
        self.begin = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a phase to its file."""
        # The report of a worker that was killed has no times.
        cpu, wall = next((value for name, value in reversed(report.user_properties) if name == KEY), (0.0, 0.0))
        row = self.tests[report.nodeid.partition("::")[0]]
        row[0] += report.when == "call"
        row[1] += cpu
        row[2] += wall
        self.each.append((cpu, wall, f"{report.when} {report.nodeid}"))

    def add_forks(self) -> None:
        """Adds the times of the warm server's children, which it has noted next to its socket."""
        notes = Path(f"{os.environ.get(ADDRESS)}.cpu")
        for line in notes.read_text().splitlines() if notes.exists() else ():
            cpu, _, name = line.partition("\t")
            self.tests[name.partition("::")[0]][1] += float(cpu)
            self.each.append((float(cpu), 0.0, f"fork {name}"))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Takes the notes of the warm server before its folder goes."""
        if not hasattr(session.config, "workerinput"):
            self.own_s = sum(row[1] for row in self.tests.values())
            self.add_forks()

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if hasattr(config, "workerinput"):
            return
        self.tests[STARTING][1] = cpu_s() - self.own_s
        if not any(os.path.exists(arg.partition("::")[0]) for arg in config.invocation_params.args):
            for path in (config.rootpath / "tests").rglob("test_*.py"):
                self.tests[str(path.relative_to(config.rootpath))]  # all of whose tests are in full.txt: a row of zeros
        lines = ["\t".join(HEADER)]
        lines += [f"{name}\t{row[0]:.0f}\t{row[1]:.1f}\t{row[2]:.1f}" for name, row in sorted(self.tests.items())]
        self.path.write_text("\n".join(lines) + "\n")
        self.path.with_suffix(".each").write_text(
            "\n".join(f"{cpu:.2f}\t{wall:.2f}\t{name}" for cpu, wall, name in sorted(self.each, reverse=True)) + "\n"
        )
