"""Puts 180 small faults into tfpipe/, one at a time, and says which of them the tests of `make test` find.

    python -m tests.mutants              # all; -k recovery: those of files whose path holds the word; --list
    python -m tests.mutants --full       # the tests of `make test-full` for those that `make test` misses

There are 45 in order.py, 65 in data.py, 46 in ranks.py and 24 in native.py. Each goes into a copy of the
repository, one copy for each of `--jobs` workers. The tests that a fault names run first, or those nearest by imports
(tests/support/changed.py), then farther ones, and at last all. A test finds a fault if it fails twice with it and, in a
control at the end, passes without it. The exit code is 1 if less than 90 % of the faults are found.
"""

import argparse
import ast
import compileall
import os
import py_compile
import queue
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants import TABLES
from tests.mutants.mutant import Mutant
from tests.support.changed import Graph, build_graph, concerned, cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
NEEDED = 0.9  # of the faults
# The time of a run of pytest without an end is that of its tests, many times over, plus that of its start. pytest ends
# a test that hangs in Python, after 600 s.
START_S, TIMES = 1500.0, 10
# Fails at each fault: it compares the table with the source.
IGNORED = "tests/test_mutants.py"
VERDICT = re.compile(r"^(tests/.*?) (?:FAILED|ERROR) +(?:\[ *\d+%\])?$", re.MULTILINE)
SUMMARY = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
STARTED = re.compile(r"^(tests/\S+?::.*?) *(?:(?:PASSED|SKIPPED|XFAIL|FAILED|ERROR|Fatal Python) .*)?$", re.MULTILINE)
UNKNOWN = re.compile(r"^ERROR: not found: (\S.*)$", re.MULTILINE)


class Result(NamedTuple):
    """The end of a fault's tests."""

    mutant: Mutant
    test: str
    """The id of the test that fails; "" if all pass."""
    distance: str
    """The distance of that test by imports, or "named"."""
    full: bool
    """The test is one that `make test` leaves out."""


def describe(mutant: Mutant) -> str:
    """Returns a fault in one line."""
    old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
    return f"{mutant.file}: {old}  ->  {new}"


def stages(graph: Graph, mutant: Mutant, costs: dict[str, float]) -> Iterator[tuple[str, list[str]]]:
    """Yields the tests of a fault, in the order in which they run: a name for the stage, and files, folders or ids."""
    by_distance: dict[int, list[str]] = defaultdict(list)
    for each in concerned(graph, [f"tfpipe/{mutant.file}"], costs):
        by_distance[each.distance].append(each.file)
    done = {IGNORED}
    if named := [f"tests/{name}" for name in mutant.tests.split()]:
        yield "named", named
        done |= {test for test in graph.tests for name in named if test == name or test.startswith(f"{name}/")}
    for distance, files in [*sorted(by_distance.items()), (-1, graph.tests)]:
        if rest := [file for file in files if file not in done]:
            done |= set(rest)
            yield "all" if distance < 0 else str(distance), rest


class Copy:
    """A copy of the repository that faults are put into."""

    def __init__(self, folder: Path) -> None:
        """Copies what git tracks, as it is now, and the libraries in C, which it ignores."""
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        libraries = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tfpipe/native").glob("*.so")]
        for name in {*filter(None, listed.stdout.split("\0")), *libraries}:
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # Python compares the source itself with that of the byte code, so that a fault of the same length and second
        # as the source before is seen.
        for package in ("tfpipe", "tests"):
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(folder / package, quiet=1, invalidation_mode=mode)
        self.libraries = Libraries(folder)
        self._check()

    def environ(self, *, full: bool) -> dict[str, str]:
        """Returns the environment of the copy's tests: its package and no setting of tfpipe's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TFPIPE_")}
        return {
            **kept,
            **({"TFPIPE_TESTS": "full"} if full else {}),
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]),
            "COLUMNS": "500",
        }

    def _check(self) -> None:
        """Raises RuntimeError unless the copy's tests import the copy, with its library in C."""
        text = "import tfpipe, tfpipe.native; tfpipe.native.core(); print(tfpipe.__file__)"
        environ = self.environ(full=False)
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=self.folder, env=environ, capture_output=True, text=True
        )
        if done.stdout.strip() != str(self.folder / "tfpipe/__init__.py"):
            raise RuntimeError(f"no tfpipe with its library in C in {self.folder}: {done.stdout}{done.stderr}")

    def put(self, mutant: Mutant) -> None:
        """Puts a fault in.

        Raises:
            ValueError: the text that it replaces is not there exactly once.
        """
        path = self.folder / "tfpipe" / mutant.file
        text = path.read_text()
        self.before = (path, text)
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} holds {text.count(mutant.old)} times: {mutant.old}")
        path.write_text(text.replace(mutant.old, mutant.new))
        if path.suffix != ".py":
            self.libraries.build()

    def restore(self) -> None:
        """Takes the fault out again."""
        path, text = self.before
        path.write_text(text)
        if path.suffix != ".py":
            self.libraries.restore()

    def run(self, tests: Sequence[str], *options: str, full: bool, limit_s: float) -> tuple[int | None, str]:
        """Runs tests in one process; returns pytest's exit code, None without an end, and its output."""
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--color=no", *options]
        command += [] if full else ["-m", "not full"]
        environ = self.environ(full=full)
        with tempfile.TemporaryFile("w+") as out:
            how = {"cwd": self.folder, "env": environ, "stdout": out, "stderr": subprocess.STDOUT}
            try:
                code = subprocess.run([*command, *tests], **how, timeout=limit_s).returncode
            except subprocess.TimeoutExpired:
                code = None
            out.seek(0)
            return code, out.read()

    def failing(self, tests: Sequence[str], but: Collection[str] = (), *, full: bool, limit_s: float) -> str:
        """Runs tests, but not those with the ids `but`, until one fails or hangs; returns its id, "" if all pass.

        Raises:
            RuntimeError: pytest has not run the tests.
        """
        code, out = self.run(tests, "-x", *(f"--deselect={test}" for test in but), full=full, limit_s=limit_s)
        if code in (0, 5):  # 5: all tests are marked full
            return ""
        if code is None or code < 0:  # pytest hangs, or has crashed, in the last test that it has started
            found = STARTED.findall(out)[-1:]
        else:
            found = VERDICT.findall(out) or SUMMARY.findall(out)
        if found:
            return found[0]
        raise RuntimeError(f"pytest ended with {code}:\n{out[-3000:]}")


class Libraries:
    """The libraries of tfpipe/native in a copy, built as setup.py does, but only from C files that differ."""

    def __init__(self, folder: Path) -> None:
        self.native, self.objects = folder / "tfpipe/native", folder / "build/mutants"
        self.intact = {path: path.read_bytes() for path in self.native.glob("*.so")}
        found = re.search(r"extra_compile_args=(\[.*?\])", (folder / "setup.py").read_text())
        assert found, "setup.py has no extra_compile_args"
        python_flags = [word for name in ("CFLAGS", "CCSHARED") for word in shlex.split(sysconfig.get_config_var(name))]
        # tests/native builds the core so that warnings are errors: a fault that draws one would be found by that alone.
        version = f"-DTFPIPE_VERSION={runpy.run_path(str(self.native / 'version.py'))['VERSION']}"
        flags = [*python_flags, *ast.literal_eval(found[1]), version, "-Wall", "-Wextra", "-Werror"]
        self.compiler = [*shlex.split(sysconfig.get_config_var("CC")), *flags]
        self.compiled: dict[str, tuple[str, str]] = {}
        """The text of each C file and of all headers that its object is built from."""

    def build(self) -> None:
        """Compiles the C files that differ from their objects, and links both libraries."""
        self.objects.mkdir(parents=True, exist_ok=True)
        headers = "".join(path.read_text() for path in sorted(self.native.rglob("*.h")))
        sources = sorted(self.native.rglob("*.c"))
        targets = [self.objects / f"{'_'.join(source.relative_to(self.native).parts)}.o" for source in sources]
        for source, target in zip(sources, targets, strict=True):
            made_from = (source.read_text(), headers)
            if self.compiled.get(target.name) != made_from:
                subprocess.run([*self.compiler, "-c", str(source), "-o", str(target)], check=True)
                self.compiled[target.name] = made_from
        for path in self.intact:
            of_ops = path.name.startswith("_ops")
            parts = [str(each) for each in targets if each.name.startswith("ops_") == of_ops]
            new = self.objects / path.name
            subprocess.run([self.compiler[0], "-shared", "-pthread", *parts, "-lm", "-o", str(new)], check=True)
            new.replace(path)

    def restore(self) -> None:
        """Puts the libraries without a fault back; not into the files that a process may still have loaded."""
        for path, contents in self.intact.items():
            path.unlink()
            path.write_bytes(contents)


class Runner:
    """Tries faults in copies of the repository."""

    def __init__(self, folder: Path, jobs: int, *, full: bool) -> None:
        self.full = full
        self.copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            self.copies.put(Copy(folder / str(number)))
        self.graph, self.costs = build_graph(ROOT), cpu_seconds(ROOT)
        self.unsound: set[str] = set()
        """Tests that fail without a fault, and so find none."""

    def limit_s(self, tests: Sequence[str]) -> float:
        """Returns the seconds after which tests count as hanging."""
        files = [file for file in self.graph.tests for test in tests if file.startswith(test.partition("::")[0])]
        return START_S + TIMES * sum(self.costs.get(file, 5.0) for file in files)

    def find(self, number: int, mutant: Mutant) -> Result:
        """Runs tests with a fault until one finds it; prints the end, or why there is none."""
        begin, result = time.monotonic(), Result(mutant, "", "", False)
        try:
            result = self._find(mutant)
            end = f"found at {result.distance} by {result.test}{' (full)' * result.full}" if result.test else "MISSED"
        except (RuntimeError, subprocess.CalledProcessError) as error:
            end = f"MISSED, since {error}"
        print(f"{number:3} {describe(mutant)}: {end} ({time.monotonic() - begin:.0f} s)", flush=True)
        return result

    def find_all(self, tried: list[tuple[int, Mutant]], jobs: int) -> list[Result]:
        """Tries faults, and again those that only an unsound test has found: what fails without a fault finds none."""
        results: dict[Mutant, Result] = {}
        pending = tried
        while pending:
            with ThreadPoolExecutor(jobs) as pool:
                results |= {result.mutant: result for result in pool.map(lambda each: self.find(*each), pending)}
            unsound = set()
            for full in (False, True):
                found = {each.test for _, mutant in pending if (each := results[mutant]).test and each.full == full}
                unsound |= self.broken(found, full=full)
            pending = [(number, mutant) for number, mutant in pending if results[mutant].test in unsound]
            for _, mutant in pending:
                print(f"INVALID {describe(mutant)}: {results[mutant].test} fails without the fault, too", flush=True)
            self.unsound |= unsound
        return [results[mutant] for _, mutant in tried]

    def _find(self, mutant: Mutant) -> Result:
        copy = self.copies.get()
        try:
            copy.put(mutant)
            for full in (False, True) if self.full else (False,):
                for stage, tests in stages(self.graph, mutant, self.costs):
                    if test := self.failing_twice(copy, tests, full=full):
                        return Result(mutant, test, stage, full)
            return Result(mutant, "", "", self.full)
        finally:
            copy.restore()
            self.copies.put(copy)

    def failing_twice(self, copy: Copy, tests: Sequence[str], *, full: bool) -> str:
        """Runs tests until one fails that also does so alone; a test that fails now and then finds no fault."""
        but = {*self.unsound}
        while test := copy.failing(tests, but, full=full, limit_s=self.limit_s(tests)):
            if copy.failing([test], full=full, limit_s=self.limit_s([test])):
                return test
            but.add(test)
        return ""

    def broken(self, tests: set[str], *, full: bool) -> set[str]:
        """Returns those of the tests that do not pass without a fault.

        An id that only a fault has made, such as that of a cell of a table, stands for its file.
        """
        copy = self.copies.get()
        asked = {test: test for test in sorted(tests)}
        try:
            while asked:
                words = sorted(set(asked.values()))
                code, out = copy.run(words, full=full, limit_s=self.limit_s(words))
                unknown = {name[name.find("/tests/") + 1 :] for name in UNKNOWN.findall(out)}
                if not (code == 4 and unknown & set(asked.values())):
                    failed = {*VERDICT.findall(out), *SUMMARY.findall(out)}
                    failed |= {test.partition("::")[0] for test in failed}
                    return {test for test, word in asked.items() if word in failed} if code in (0, 1) else set(asked)
                asked = {test: word.partition("::")[0] if word in unknown else word for test, word in asked.items()}
        finally:
            self.copies.put(copy)
        return set()


def places(mutant: Mutant) -> int:
    """Returns how many places of its file hold the text that a fault replaces."""
    return (ROOT / "tfpipe" / mutant.file).read_text().count(mutant.old)


def print_list(chosen: list[tuple[int, Mutant]]) -> int:
    """Prints the faults with the number of places that hold them; returns 1 unless that is one for each."""
    for number, mutant in chosen:
        reason = f"  (equivalent: {mutant.equivalent})" if mutant.equivalent else ""
        print(f"{number:3} {places(mutant)} {describe(mutant)}{reason}")
    return int(any(places(mutant) != 1 for _, mutant in chosen))


def report(results: list[Result]) -> int:
    """Prints the faults that the tests of `make test` miss, and the share of the others; returns the exit code."""
    missed = [result.mutant for result in results if not result.test or result.full]
    for mutant in missed:
        print(f"MISSED {describe(mutant)}")
    share = 1 - len(missed) / max(1, len(results))
    print(f"{len(results) - len(missed)} of {len(results)} faults are found by the tests of make test: {share:.0%}")
    return int(share < NEEDED)


def main() -> int:
    """Tries the faults; returns 0 if nine in ten are found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-k", default="", metavar="WORD", help="only the faults of files whose path holds this word")
    parser.add_argument("--list", action="store_true", help="print the faults and check that their files hold them")
    parser.add_argument("--jobs", type=int, default=2, help="faults that are tried at a time (%(default)s)")
    parser.add_argument("--full", action="store_true", help="all tests, for the faults that those of make test miss")
    args = parser.parse_args()
    numbered = enumerate((mutant for table in TABLES.values() for mutant in table), 1)
    chosen = [(number, mutant) for number, mutant in numbered if args.k in mutant.file]
    unfit = [(number, mutant) for number, mutant in chosen if places(mutant) != 1]
    if args.list or unfit:
        return print_list(chosen if args.list else unfit)
    for _, mutant in chosen:
        if mutant.equivalent:
            print(f"equivalent {describe(mutant)}: {mutant.equivalent}")
    tried = [(number, mutant) for number, mutant in chosen if not mutant.equivalent]
    with tempfile.TemporaryDirectory(prefix="tfpipe-mutants-") as name:
        results = Runner(Path(name), args.jobs, full=args.full).find_all(tried, args.jobs)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
