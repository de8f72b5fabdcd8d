"""Changed JPEGs through the native core under AddressSanitizer and UndefinedBehaviorSanitizer, by fuzz/jpegs.c."""

import os
import random
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.core import SANITIZERS, WARNINGS, core_sources, generated_jpeg, progressive_jpeg
from tests.support.images import inks_of
from tests.support.scans import random_jpeg

HARNESS = Path(__file__).with_name("jpegs.c")
FILES = 700
"""JPEGs that are changed."""
ASKED_BYTES = 8


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
