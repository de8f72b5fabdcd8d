"""Changed files under AddressSanitizer and UndefinedBehaviorSanitizer: JPEGs by fuzz/jpegs.c, stored data by tfpipe."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.commands import ROOT
from tests.support.core import SANITIZERS, WARNINGS, core_sources, generated_jpeg, progressive_jpeg
from tests.support.images import inks_of
from tests.support.scans import random_jpeg

HARNESS = Path(__file__).with_name("jpegs.c")
FILES = 700
"""JPEGs that are changed."""
ASKED_BYTES = 8
STORED = {"packs": 150, "catalogs": 150, "tables": 150, "states": 5000, "pictures": 200}
"""What tfpipe itself reads under sanitizers in a turn, kinds of `python -m tests.fuzz`: two minutes with the build."""
# A process's memory is as large as numbers of forged catalogs say: what cannot be had is a MemoryError, as without.
OPTIONS = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "PYTHONFAULTHANDLER": "1",
}


def fuzz_sanitized(seconds: int, seed: int) -> Counter[str]:
    """Decodes changed JPEGs of all kinds for `seconds` of CPU time, with forged entry points and coefficients.

    Raises:
        AssertionError: the harness has ended before; its last lines say why.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = build_harness(Path(folder), "-O1")
        files = write_corpus(Path(folder), seed, FILES)
        command = [str(program), str(seconds), str(seed), *map(str, files)]
        environ = {**os.environ, "ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"the harness has ended with {done.returncode}: {done.stderr[-4000:]}"
    return Counter({"changed files": int(done.stdout.split()[2])})


def fuzz_stored(seconds: int, seed: int) -> Counter[str]:
    """Gives damaged and forged data to a tfpipe whose libraries have sanitizers, in turns, for `seconds` or a turn.

    Raises:
        AssertionError: a process has ended with an error; its last lines say why.
    """
    end_s, given = time.monotonic() + seconds, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, **OPTIONS, "LD_PRELOAD": build_package(Path(folder)), "PYTHONPATH": folder}
        while True:
            for kind, count in STORED.items():
                command = [sys.executable, "-m", "tests.fuzz", kind, str(count), "--seed", str(seed)]
                done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
                assert done.returncode == 0, f"{' '.join(command[2:])}: {done.returncode}: {done.stderr[-4000:]}"
                given[kind] += count
            if time.monotonic() >= end_s:
                return given
            seed += 1


def build_package(folder: Path) -> str:
    """Copies the package and the tests, and builds the libraries there; returns those to load before Python's."""
    for name in ("tfpipe", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    options = " ".join(SANITIZERS)
    environ = {**os.environ, "CFLAGS": f"{options} -O1", "LDFLAGS": options}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, env=environ, check=True, capture_output=True)
    asked = (["cc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so"))
    return " ".join(subprocess.check_output(each, text=True).strip() for each in asked)


def build_harness(folder: Path, *options: str) -> Path:
    """Compiles the harness, which changes files itself, into `folder`; `options` of the compiler come last."""
    program = folder / "jpegs"
    build = ["cc", *WARNINGS, *SANITIZERS, *options, "-DSTANDALONE", str(HARNESS), *core_sources(), "-o", str(program)]
    subprocess.run([*build, "-lm"], check=True)
    return program


def write_corpus(folder: Path, seed: int = 0, count: int = 60) -> list[Path]:
    """Writes inputs of the harness: random bytes that say what is asked, and a small JPEG of any kind that is read."""
    draw, paths = random.Random(seed), [folder / f"{number:03}" for number in range(count)]
    for number, path in enumerate(paths):
        side, make = draw.choice((8, 24, 60)), (generated_jpeg, progressive_jpeg, random_jpeg)[number % 4 % 3]
        size = draw.randint(1, side), draw.randint(1, side)
        path.write_bytes(
            draw.randbytes(ASKED_BYTES) + (inks_of(draw, size) if number % 4 == 3 else make(draw, side)[0])
        )
    return paths
