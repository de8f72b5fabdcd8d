"""Selects the tests that a change concerns, and runs them: python -m tests.support.changed --since main [-- -k crops].

A change reaches tests through imports, those within functions and modules named in strings too. Distance 0 are changed
tests, the tests that mirror a changed module, those that import it, and those that name a changed file of another kind.
Each import in between, of a module or of a helper of the tests, adds 1: the tests that mirror an importer have
distance 1. Distance 0 is always taken; farther tests are taken, nearest first, as far as their CPU time
(tests/durations.tsv) fits in the budget.
"""

import argparse
import ast
import heapq
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tests.support.durations import read

ROOT = Path(__file__).resolve().parents[2]
DURATIONS = "tests/durations.tsv"
BUDGET_S = 120.0  # of CPU time: with the start, under two minutes on 2 cores
UNKNOWN_S = 5.0  # a test file without a row
PYTEST = ("-n", "2", "--dist", "worksteal", "-m", "not full")

PACKAGES = ("tfpipe", "tests")
CONFTEST = "tests/conftest.py"
LIBRARY = "tfpipe/native/__init__.py"
NATIVE = "tfpipe/native/"
NAMED = re.compile(r"\b(?:tfpipe|tests)(?:[./]\w+)+\.?")
INCLUDED = re.compile(r'^#include "([\w./]+\.h)"', re.MULTILINE)
# Tests of files that are no modules, besides the tests that name them.
FOLDERS = {
    **{"docs": "tests/docs", "mkdocs.yml": "tests/docs", "jobs": "tests/jobs", "configs": "tests/config"},
    "profiles": "tests/profiles",
}

# Why a test is taken, the strongest first.
MIRRORS, IMPORTS, FOLDER, EVERY = range(4)


class Concern(NamedTuple):
    distance: int
    """Imports between the change and the module or the test that concerns the file; see the module's docstring."""
    rank: int
    """MIRRORS, IMPORTS, FOLDER or EVERY."""
    cpu_s: float
    file: str
    """Path below the root."""
    reason: str


class Graph(NamedTuple):
    """The Python modules of tfpipe/ and tests/ and the C in tfpipe/native, by their paths below `root`."""

    root: Path
    texts: dict[str, str]
    users: dict[str, set[str]]
    """Modules that import a module, or C files that include a header."""

    @property
    def tests(self) -> list[str]:
        return sorted(filter(is_test, self.texts))


def is_test(path: str) -> bool:
    return path.startswith("tests/") and PurePosixPath(path).match("test_*.py")


def module_name(path: str) -> str:
    """Returns the name under which a file is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Names:
    """Finds the file that a dotted name stands for, through the names that packages pass on."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = {module_name(path): path for path in paths}
        self.passed_on: dict[str, dict[str, str]] = defaultdict(dict)
        """The home of a name that a package only passes on, by the package and the name."""

    def files(self, dotted: str, at_least: int = 1) -> Iterator[str]:
        """Yields the module with the longest name that `dotted` begins with, and the home of a name that it passes on.

        Nothing unless `at_least` parts of the name are known.
        """
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in self.paths:
                home = self.passed_on[name].get(parts[length]) if length < len(parts) else None
                if length >= at_least or home:
                    yield self.paths[name]
                if home:
                    yield from self.files(home)
                return

    def below(self, package: str) -> Iterator[str]:
        """Yields the modules of a package, at any depth."""
        yield from (path for name, path in self.paths.items() if name.startswith(f"{package}."))


def imports(nodes: list[ast.AST], package: str) -> Iterator[tuple[str, str]]:
    """Yields the imports of a module in `package`, also those within functions: the local name and the dotted one."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from ((each.asname or each.name, f"{base}.{each.name}") for each in node.names)


def attributes(nodes: list[ast.AST]) -> Iterator[str]:
    """Yields names such as tfpipe.distributed.World that expressions hold."""
    for node in nodes:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in PACKAGES:
            yield ".".join([node.id, *reversed(parts)])


def strings(nodes: list[ast.AST]) -> Iterator[str]:
    """Yields the dotted names and paths within strings, docstrings left out; one that continues ends in a dot."""
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            for match in NAMED.finditer(node.value):
                dotted = match[0].replace("/", ".")
                yield dotted if match.end() == len(node.value) else dotted.rstrip(".")


def python_targets(sources: Mapping[str, list[ast.AST]], names: Names) -> dict[str, set[str]]:
    """Returns the modules that each module imports or names, by path; `sources` are the nodes of its syntax tree."""
    found: dict[str, set[str]] = defaultdict(set)
    edges: list[tuple[str, str]] = []
    for name, nodes in sources.items():
        module = module_name(name)
        edges += [(name, dotted) for dotted in attributes(nodes)]
        if not name.endswith("/__init__.py"):
            package = module.rpartition(".")[0]
            edges += [(name, dotted) for _, dotted in imports(nodes, package)]
            if name.startswith("tests/"):  # a script finds the modules of its own folder
                beside = (
                    names.files(f"{package}.{dotted}", module.count(".") + 1) for _, dotted in imports(nodes, package)
                )
                found[name].update(*beside)
            continue
        # A package passes names on: a module that takes one depends on the name's home, not on all of them.
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        for local, dotted in imports(nodes, module):
            if local in used:
                edges.append((name, dotted))
            elif dotted.rpartition(".")[0] != module:
                names.passed_on[module][local] = dotted
    for name, dotted in edges:
        found[name].update(names.files(dotted))
    for name, nodes in sources.items():
        for dotted in strings(nodes) if not name.endswith("/__init__.py") else ():
            found[name].update(names.files(dotted.rstrip("."), at_least=2))
            if dotted.endswith("."):
                found[name].update(names.below(dotted.rstrip(".")))
    return found


def build_graph(root: Path, gone: Collection[str] = ()) -> Graph:
    """Reads tfpipe/ and tests/ below `root`; `gone` are paths of deleted modules, which others may still import."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    paths += sorted((root / NATIVE).rglob("*.[ch]"))
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths}
    sources = {name: list(ast.walk(ast.parse(text))) for name, text in texts.items() if name.endswith(".py")}
    found = python_targets(sources, Names([*sources, *(path for path in gone if path.endswith(".py"))]))
    for name, text in texts.items():
        if not name.endswith(".py"):
            found[name].update(os.path.normpath(f"{name}/../{header}") for header in INCLUDED.findall(text))
        elif name.endswith("/conftest.py") and name != CONFTEST:
            for test in filter(is_test, texts):
                if test.startswith(name.removesuffix("conftest.py")):
                    found[test].add(name)
    users: dict[str, set[str]] = defaultdict(set)
    for name, targets in found.items():
        for target in targets - {name}:
            users[target].add(name)
    return Graph(root, texts, users)


def mirrors(graph: Graph, path: str) -> tuple[list[str], int]:
    """Returns the tests that mirror a module of tfpipe/ and MIRRORS, or those of its folder and FOLDER.

    The tests of its folder mirror a package itself. Modules next to tfpipe/__init__.py have no folder: next to
    tests/__init__.py are the tests of whole runs.
    """
    if not path.startswith("tfpipe/"):
        return [], MIRRORS
    place = PurePosixPath("tests", *PurePosixPath(path).parts[1:])
    if path.startswith(NATIVE) and not path.endswith(".py"):
        place = PurePosixPath(f"tests/native/{place.name}")
    if (own := place.with_name(f"test_{place.stem}.py").as_posix()) in graph.texts:
        return [own], MIRRORS
    for folder in place.parents:
        tests = [test for test in graph.tests if PurePosixPath(test).parent == folder]
        if folder == PurePosixPath("tests") or tests:
            rank = MIRRORS if path.endswith("/__init__.py") else FOLDER
            return tests if folder != PurePosixPath("tests") else [], rank
    return [], FOLDER


def distances(graph: Graph, starts: Mapping[str, int]) -> dict[str, tuple[int, str]]:
    """Returns the distances of the modules that import `starts`, at any depth, and the module before on the way.

    A header is a part of the C files that include it, at the same distance; they are used by the library.

    Args:
        starts: the distance at which each module begins.
    """
    reached: dict[str, tuple[int, str]] = {}
    heap = [(distance, "", start) for start, distance in starts.items()]
    heapq.heapify(heap)
    while heap:
        distance, before, node = heapq.heappop(heap)
        if node not in reached:
            reached[node] = (distance, before)
            in_c = node.startswith(NATIVE) and not node.endswith(".py")
            for user in graph.users.get(node, ()):
                heapq.heappush(heap, (distance + (not in_c), node, user))
            if in_c:
                heapq.heappush(heap, (distance + 1, node, LIBRARY))
    return reached


def naming(graph: Graph, path: str) -> tuple[list[str], str]:
    """Returns the modules whose text has the name of a file, and that name; those of tfpipe/ for a file in tfpipe/.

    If none has, the name is that of the file's folder, and so on; not one that means a folder of tfpipe/.
    """
    package = "" if path.startswith("tfpipe/") else "tests/"
    folders = {part for name in graph.texts if name.startswith("tfpipe/") for part in name.split("/")[:-1]}
    for part in reversed(PurePosixPath(path).parts):
        if part not in {*folders, *PACKAGES, *FOLDERS, "__init__.py", "__main__.py"}:
            named = re.compile(rf"(?<![\w.-]){re.escape(part)}(?!\w)")
            if found := [
                name
                for name, text in graph.texts.items()
                if name not in (path, CONFTEST) and name.startswith(package) and named.search(text)
            ]:
                return found, part
    return [], path


class Selection:
    """The test files that a change concerns, and the distances of modules."""

    def __init__(self, graph: Graph, costs: Mapping[str, float]) -> None:
        self.graph, self.costs = graph, costs
        self.best: dict[str, Concern] = {}

    def add(self, test: str, distance: int, rank: int, reason: str) -> None:
        """Adds a test file, unless it is there as a nearer one; ignores other files, deleted tests too."""
        if test in self.graph.texts and is_test(test):
            concern = Concern(distance, rank, self.costs.get(test, UNKNOWN_S), test, reason)
            self.best[test] = min(concern, self.best.get(test, concern))

    def add_naming(self, path: str) -> dict[str, int]:
        """Adds the tests of a file that no module imports; returns the helpers that name it, and their distances."""
        found, name = naming(self.graph, path)
        for module in found:
            self.add(module, 0, MIRRORS, f"names {name}")
        if folder := FOLDERS.get(path.partition("/")[0]):
            for test in self.graph.tests:
                if test.startswith(f"{folder}/"):
                    self.add(test, int(bool(found)), FOLDER, f"is in {folder}")
        return {module: 1 for module in found if not is_test(module)}

    def add_reached(self, starts: Mapping[str, int]) -> None:
        """Adds the tests that import modules, at any depth, and those that mirror the importers."""
        for node, (distance, before) in distances(self.graph, starts).items():
            # A test that imports a changed module has the module's distance.
            reason = f"imports {before}" if before else "changed"
            self.add(node, max(0, distance - 1), IMPORTS if before else MIRRORS, reason)
            by = f", which uses {before}" if before else ""
            tests, rank = mirrors(self.graph, node)
            for test in tests:
                self.add(test, distance, rank, f"{'mirrors' if rank == MIRRORS else 'is next to'} {node}{by}")

    def add_every(self) -> None:
        farthest = 1 + max((each.distance for each in self.best.values()), default=0)
        for test in self.graph.tests:
            self.add(test, farthest, EVERY, f"uses {CONFTEST}")


def concerned(graph: Graph, changed: Iterable[str], costs: Mapping[str, float]) -> list[Concern]:
    """Returns the test files that a change of the files `changed` concerns, nearest first; of equal ones, cheap first.

    Args:
        graph: the tree after the change.
        changed: paths below its root, of deleted files too.
        costs: CPU seconds by test file; a file that is not there counts UNKNOWN_S.
    """
    selection, starts = Selection(graph, costs), {}
    for path in sorted(changed):
        is_module = path.startswith(tuple(f"{package}/" for package in PACKAGES)) and path.endswith(".py")
        if is_module or (path.startswith(NATIVE) and path.endswith((".c", ".h"))):
            starts[path] = 0
        if path not in starts or not (graph.users.get(path) or is_test(path)):
            starts = selection.add_naming(path) | starts
    selection.add_reached(starts)
    if CONFTEST in distances(graph, {path: 0 for path in starts if path.startswith("tests/")}):
        selection.add_every()
    return sorted(selection.best.values())


def within(concerns: Iterable[Concern], budget_s: float) -> tuple[list[Concern], list[Concern]]:
    """Returns the tests that a budget of CPU seconds has room for, the nearest first, and the others.

    Distance 0 is taken whole. A test that takes more than what is left does not keep farther ones out.
    """
    taken: list[Concern] = []
    left: list[Concern] = []
    for each in concerns:
        fits = sum(other.cpu_s for other in taken) + each.cpu_s <= budget_s
        (taken if fits or each.distance == 0 else left).append(each)
    return taken, left


def changed_since(root: Path, commit: str) -> list[str]:
    """Returns the files that differ from where this branch left `commit`: committed or not, untracked and deleted too.

    Raises:
        subprocess.CalledProcessError: there is no such commit.
    """
    commands = (
        ("diff", "--name-only", "--no-renames", "-z", "--merge-base", commit),
        ("ls-files", "--others", "--exclude-standard", "-z"),
    )
    found = [
        subprocess.run(["git", *words], cwd=root, stdout=subprocess.PIPE, text=True, check=True) for words in commands
    ]
    return sorted({name for done in found for name in done.stdout.split("\0") if name})


def cpu_seconds(root: Path) -> dict[str, float]:
    """Returns the CPU seconds of test files, as `make durations` has measured them."""
    path = root / DURATIONS
    return {name: cpu for name, (_, cpu, _) in read(path).items()} if path.exists() else {}


def main() -> int:
    """Prints the selection to stderr and runs it; returns the exit code of pytest, or of git if it fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--since", default="main", metavar="COMMIT", help="the commit to compare with (%(default)s)")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="CPU seconds of the tests (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the files to stdout instead of running them")
    parser.add_argument("pytest", nargs="*", metavar="ARG", help="further arguments of pytest, after --")
    args = parser.parse_args()
    try:
        changed = changed_since(ROOT, args.since)
    except subprocess.CalledProcessError as error:
        return error.returncode
    graph = build_graph(ROOT, gone=[path for path in changed if not (ROOT / path).exists()])
    taken, left = within(concerned(graph, changed, cpu_seconds(ROOT)), args.budget_s)
    for each in taken:
        print(f"{each.distance} {each.cpu_s:6.1f} s  {each.file}: {each.reason}", file=sys.stderr)
    total_s = sum(each.cpu_s for each in taken)
    print(f"{len(changed)} files changed, {len(taken)} test files, {total_s:.0f} s of CPU time", file=sys.stderr)
    if total_s > args.budget_s:
        print(f"more than {args.budget_s:.0f} s: so many tests import a changed module themselves", file=sys.stderr)
    if left:
        print(f"{len(left)} farther test files are left out: make test", file=sys.stderr)
    files = [each.file for each in taken]
    if args.list or not files:
        print("\n".join(files), end="\n" if files else "")
        return 0
    # PATH: tests that start mpirun find the one next to Python, unless the machine has its own.
    environ = {**os.environ, "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *PYTEST, *args.pytest, *files], cwd=ROOT, env=environ, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
