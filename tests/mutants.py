"""Puts 41 small faults into tfpipe/, one at a time, and says which of them the tests of `make test` find.

    python -m tests.mutants              # all; -k recovery: those of files whose path holds the word; --list

Each fault goes into a copy of the repository. The tests that mirror the file run first, then, if these pass, all the
others; a fault that no test fails at is missed. Takes about half an hour on 2 cores.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# A fault that makes a test hang is found, too.
TIMEOUT_S = 1800


class Mutant(NamedTuple):
    """A fault: in a file, one text in place of another."""

    file: str
    old: str
    new: str
    tests: str = ""
    """Tests that should find it, to save time; by default those that mirror the file."""


MUTANTS = (
    # The order.
    Mutant("data/order/permutation.py", "begin + (world.rank - begin) % world.size", "begin + world.rank"),
    Mutant("data/order/permutation.py", "places, epochs = steps % cycle", "places, epochs = (steps + 1) % cycle"),
    Mutant("data/order/permutation.py", "(self.seed, world.rank)", "(self.seed, 0)"),
    Mutant("data/order/permutation.py", "if self.reshuffle else epochs * 0", "if self.reshuffle else epochs"),
    Mutant("data/order/permutation.py", "math.ceil(crops / (batch_size * size))", "crops // (batch_size * size)"),
    Mutant("data/order/stream.py", "int(crop[1]) + 1)", "int(crop[1]))"),
    Mutant("data/order/mixture.py", "of_list + start", "of_list"),
    # Windows and boxes.
    Mutant(
        "data/images/windows.py", "corners = tf.clip_by_value(edges[:, :2], 0, sizes - 1)", "corners = edges[:, :2]"
    ),
    Mutant("data/images/windows.py", "MARGIN = (0, 2)", "MARGIN = (0, 0)"),
    Mutant("data/images/windows.py", "(sizes - sides) // 2", "(sizes - sides) // 3"),
    Mutant("data/images/windows.py", 'DCT = "INTEGER_ACCURATE"', 'DCT = "INTEGER_FAST"'),
    Mutant(
        "data/annotations/voc.py",
        'EDGES = ("ymin", "xmin", "ymax", "xmax")',
        'EDGES = ("xmin", "ymin", "xmax", "ymax")',
    ),
    Mutant(
        "data/annotations/cleaning.py",
        "kept = (high > low).all(axis=1)",
        "kept = (high > low).any(axis=1)",
        "data/annotations data/catalog prepare",
    ),
    Mutant(
        "data/annotations/cleaning.py",
        "kept &= (classes < 0) | (classes == labels[images])",
        "kept &= classes == labels[images]",
        "data/annotations data/images data/catalog",
    ),
    Mutant(
        "data/annotations/cleaning.py", "np.all(sizes >= 1, axis=1)", "np.all(sizes > 0, axis=1)", "data/annotations"
    ),
    # The catalog.
    Mutant("data/catalog/labels.py", "zip(sorted(stems), lines, strict=True)", "zip(stems, lines, strict=True)"),
    Mutant("data/catalog/layout.py", "folder.rpartition(", "folder.partition(", "data/catalog"),
    Mutant("data/catalog/index.py", "!= expected.encode()", "== expected.encode() and False"),
    Mutant("distributed.py", "items[self.rank :: self.size]", "items[self.rank + 1 :: self.size]", "data/catalog"),
    # Sources.
    Mutant("data/sources/remote/fetcher.py", "return done > self.config.retries or not may_pass(", "return True or ("),
    Mutant("data/sources/remote/fetcher.py", "PAUSE_S * 2 ** (tries - 1)", "PAUSE_S * 2 ** tries"),
    Mutant("data/runtime/store.py", 'return tf.where(intact, contents, "")', "return contents"),
    Mutant("data/sources/packed/pixels.py", "len(beyond := np.flatnonzero(", "len(beyond := 0 * np.flatnonzero("),
    Mutant("data/sources/packed/manifest.py", 'yield "" if same else', 'yield "" if True else'),
    # Failures.
    Mutant("data/failures/missing.py", "missing = new & ~np.isin(", "missing = ~np.isin("),
    Mutant("data/failures/diagnose.py", "done + 1).item[-1]", "done + 2).item[-1]"),
    Mutant(
        "data/failures/stalled.py", "visits.position < split.order.count", "visits.position <= split.order.count + 99"
    ),
    # Training.
    Mutant("util/retry.py", "TRIES = 5", "TRIES = 1"),
    Mutant("util/retry.py", "FIRST_PAUSE_S * 2**self._tries", "FIRST_PAUSE_S"),
    Mutant("training/evaluate.py", "positions.numpy()[:, 1] == 0", "positions.numpy()[:, 1] == 1"),
    Mutant("training/compile.py", 'var_names=["bias", "gamma", "beta"]', 'var_names=["bias", "gamma"]'),
    Mutant("collectives/horovod.py", "op=hvd.Average, compression", "op=hvd.Sum, compression", "test_mpi.py"),
    Mutant("training/skipping.py", "or any(self.model.granted):", "or self.model.granted.stop:", "test_faults.py"),
    Mutant("training/checkpointing/checkpoints.py", "paths[number + keep :]", "paths[number + keep - 1 :]"),
    Mutant(
        "training/checkpointing/resume.py",
        "(self.state.total_steps + 1) % every == 0",
        "self.state.total_steps % every == 0",
        "test_resume.py",
    ),
    Mutant(
        "training/checkpointing/start.py",
        "<= state.total_steps)",
        "<= state.total_steps + 1)",
        "training test_resume.py",
    ),
    Mutant("training/monitor/stalls.py", "LONGER = 1.25", "LONGER = 0.5"),
    # Preparing, the command line, ranks.
    Mutant("prepare/stage.py", "annotated % node.size == node.rank", "annotated % node.size == 0"),
    Mutant("prepare/index.py", "if not bad:", "if True:"),
    Mutant("errors.py", "exit_code = 75", "exit_code = 74"),
    Mutant("distributed.py", "max(1, cpus // local_size)", "max(1, cpus)"),
)


def copy_of_repository(folder: Path) -> Path:
    """Copies what git tracks, as it is now, so that a fault never reaches the repository itself."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(None, names.stdout.splitlines()):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def mirrored(mutant: Mutant) -> list[str]:
    """Returns the test files that mirror a module: tests/data/test_x.py or the folder's tests for data/x.py."""
    if mutant.tests:
        return [f"tests/{name}" for name in mutant.tests.split()]
    path = Path("tests") / mutant.file
    test = path.with_name(f"test_{path.name}")
    return [str(test)] if (ROOT / test).exists() else [str(path.parent)]


def fails(folder: Path, tests: list[str]) -> str | None:
    """Runs tests until one fails; returns its name, None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not full", "-n", "2"]
    environ = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    try:
        done = subprocess.run(
            [*command, *tests], cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else done.stdout[-300:] + done.stderr[-300:]


def find(mutant: Mutant) -> str | None:
    """Puts a fault into a copy; returns the test that finds it, None if none does.

    Raises:
        ValueError: the text that the fault replaces is not in the file exactly once.
    """
    with tempfile.TemporaryDirectory(prefix="tfpipe-mutant-") as name:
        folder = copy_of_repository(Path(name))
        path = folder / "tfpipe" / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} holds {text.count(mutant.old)} times: {mutant.old}")
        path.write_text(text.replace(mutant.old, mutant.new))
        return fails(folder, mirrored(mutant)) or fails(folder, ["tests"])


def main() -> int:
    """Tries the faults; returns 0 if at most two are missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-k", default="", metavar="WORD", help="only the faults of files whose path holds this word")
    parser.add_argument("--list", action="store_true", help="print the faults and check that their files hold them")
    args = parser.parse_args()
    missed = []
    for number, mutant in enumerate(MUTANTS, 1):
        if args.k not in mutant.file:
            continue
        if args.list:
            count = (ROOT / "tfpipe" / mutant.file).read_text().count(mutant.old)
            print(f"{number:2} {count} {mutant.file}: {mutant.old}  ->  {mutant.new}")
            continue
        found = find(mutant)
        print(f"{number:2} {mutant.file}: {mutant.old}  ->  {mutant.new}: {found or 'MISSED'}", flush=True)
        if found is None:
            missed.append(mutant)
    if not args.list:
        print(f"{len(missed)} missed")
    return int(len(missed) > 2)


if __name__ == "__main__":
    sys.exit(main())
