"""The faults of tests/mutants still fit the source that they change, and its runner counts them."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import TABLES
from tests.mutants import __main__ as runner
from tests.mutants.mutant import Mutant
from tests.support.changed import Graph

FAULTS = [fault for table in TABLES.values() for fault in table]
FAULT = Mutant("data/x.py", "a", "b")


def test_each_fault_changes_one_place():
    counts = {(fault.file, fault.old): runner.places(fault) for fault in FAULTS}
    assert set(counts.values()) == {1}, [place for place, count in counts.items() if count != 1]


def test_no_fault_is_there_twice_or_changes_nothing():
    same = Counter((fault.file, fault.old, fault.new) for fault in FAULTS)
    assert [fault for fault, count in same.items() if count > 1] == []
    assert [fault for fault in FAULTS if fault.old == fault.new] == []


def test_the_tables_have_as_many_faults_as_the_runner_says():
    assert len(FAULTS) >= 80
    (counted,) = re.findall(r"Puts (\d+) small faults", runner.__doc__)
    assert int(counted) == len(FAULTS)
    for name in TABLES:
        (counted,) = re.findall(rf"(\d+) in {name}\.py", runner.__doc__)
        assert int(counted) == len(TABLES[name])


def test_the_tests_that_faults_name_are_there():
    named = {name.partition("::")[0] for fault in FAULTS for name in fault.tests.split()}
    assert [name for name in named if not (runner.ROOT / "tests" / name).exists()] == []


def test_named_tests_run_first_then_the_nearest_then_all_others():
    texts = dict.fromkeys(("tfpipe/data/x.py", "tests/data/test_x.py", "tests/test_far.py", runner.IGNORED), "")
    graph = Graph(Path(), texts, {"tfpipe/data/x.py": {"tests/test_far.py"}})
    texts |= dict.fromkeys(("tests/order/test_a.py", "tests/order/test_b.py"), "")
    assert list(runner.stages(graph, FAULT, {})) == [
        ("0", ["tests/data/test_x.py", "tests/test_far.py"]),
        ("all", ["tests/order/test_a.py", "tests/order/test_b.py"]),
    ]
    assert list(runner.stages(graph, FAULT._replace(tests="test_far.py order"), {})) == [
        ("named", ["tests/test_far.py", "tests/order"]),
        ("0", ["tests/data/test_x.py"]),
    ]


@pytest.mark.parametrize(("missed", "only_full", "code"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (0, 3, 1)])
def test_nine_in_ten_must_be_found_by_tests_of_make_test(
    missed: int, only_full: int, code: int, capsys: pytest.CaptureFixture[str]
):
    ends = [("", False)] * missed + [("tests/test_c.py::c", True)] * only_full
    ends += [("tests/test_a.py::a", False)] * (20 - len(ends))
    assert runner.report([runner.Result(FAULT, test, "0", full) for test, full in ends]) == code
    out = capsys.readouterr().out
    assert out.count("MISSED") == missed + only_full
    assert f"{20 - missed - only_full} of 20 faults" in out


class Scripted(runner.Runner):
    """A runner whose tests fail as a table says: with a fault by its `new`, and without one."""

    def __init__(self, fails: dict[str, list[str]], unsound: set[str]):
        self.fails, self.fails_anyway, self.full, self.unsound = fails, unsound, False, set()

    def _find(self, mutant: Mutant):
        found = [test for test in self.fails[mutant.new] if test not in self.unsound]
        return runner.Result(mutant, found[0] if found else "", "0", False)

    def broken(self, tests: set[str], *, full: bool):
        return tests & self.fails_anyway


def test_a_test_that_fails_without_a_fault_finds_none(capsys: pytest.CaptureFixture[str]):
    """The fault is tried again without it."""
    fails = {"b": ["unsound", "sound"], "c": ["sound"], "d": ["unsound", "unsound too"]}
    faults = [FAULT._replace(new=new) for new in fails]
    results = Scripted(fails, {"unsound", "unsound too"}).find_all(list(enumerate(faults, 1)), 1)
    assert [result.test for result in results] == ["sound", "sound", ""]
    assert capsys.readouterr().out.count("INVALID") == 3


@pytest.mark.parametrize(
    ("out", "test"),
    [
        ("tests/a.py::t[1 - b] PASSED [ 50%]\ntests/a.py::t[2 - c] FAILED   [100%]\n", "tests/a.py::t[2 - c]"),
        ("tests/a.py::t ERROR                                     [ 10%]\n", "tests/a.py::t"),
    ],
)
def test_the_test_that_fails_is_named(out: str, test: str):
    assert runner.VERDICT.findall(out) == [test]


@pytest.mark.parametrize("end", ["", " Fatal Python error: Segmentation fault", " FAILED [ 3%]"])
def test_the_test_in_which_pytest_hangs_or_crashes_is_named(end: str):
    out = f"tests/a.py::t[x y] PASSED [ 1%]\ntests/b.py::u[x y]{end}"
    assert runner.STARTED.findall(out)[-1] == "tests/b.py::u[x y]"


def test_a_file_that_cannot_be_imported_is_named():
    assert runner.SUMMARY.findall("ERROR tests/a.py - NameError: x\nERROR tests/b.py") == ["tests/a.py", "tests/b.py"]
