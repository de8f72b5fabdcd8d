"""The core on ARM, cross-compiled and emulated: plain C and NEON give the bytes of plain C on the machine at hand."""

import platform
import random
import shutil
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.support.augment import KINDS, random_case, random_operation
from tests.support.core import KERNELS, WARNINGS, core_sources, generated_jpeg, generated_pixels
from tests.support.examples import examples
from tfpipe.native import core

ARM = platform.machine() == "aarch64"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
PROGRAM = Path(__file__).with_name("neon.c")
# As setup.py builds the library.
OPTIONS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-pthread", *WARNINGS[1:]]
FUNCTIONS = ("crops", "resize", "mix", "mirror", "operate")
# struct call of neon.c.
CALL = np.dtype(
    [
        *((name, "i4") for name in ("function", "kernel", "weight", "image_height", "image_width")),
        *((name, "i4") for name in ("count", "windows", "operations", "height", "width", "channels", "level")),
        ("size", "i8"),
    ]
)
Call = tuple[np.ndarray, bytes]


def call(function: str, data: bytes, target: tuple[int, ...], count: int, /, *parts: bytes, **numbers: int) -> Call:
    """Returns a call, and its windows, flips, operations and data. target: height, width and channels of a crop."""
    made = np.zeros(1, CALL)
    made[["height", "width", "channels"]] = target
    numbers |= {"function": FUNCTIONS.index(function), "count": count, "size": len(data)}
    for name, number in numbers.items():
        made[name] = number
    return made, b"".join((*parts, data))


def windows_of(draw: random.Random, size: tuple[int, int], count: int) -> tuple[list[list[int]], bytes, bytes]:
    """Returns windows of an image, their bytes, and flips."""
    windows = []
    for _ in range(count):
        height, width = (draw.choice((side, draw.randint(1, side))) for side in size)
        windows.append([draw.randint(0, size[0] - height), draw.randint(0, size[1] - width), height, width])
    return windows, np.array(windows, "<i4").tobytes(), bytes(draw.randrange(2) for _ in windows)


def cropped(draw: random.Random, function: str, data: bytes, size: tuple[int, int], channels: int) -> Call:
    """Returns a call that crops an image: some windows, or one that is copied."""
    windows, places, flips = windows_of(draw, size, draw.choice((1, 1, 3)))
    target = draw.randint(1, 90), draw.randint(1, 90)
    if len(windows) == 1 and draw.random() < 0.4:
        target = windows[0][2], windows[0][3]
    numbers = {"windows": len(windows), "kernel": draw.randrange(len(KERNELS)), "level": draw.choice((-1, -1, 114))}
    numbers |= {"image_height": size[0], "image_width": size[1]}
    return call(function, data, (*target, channels), len(windows), places, flips, **numbers)


def forged(draw: random.Random, jpeg: bytes) -> bytes:
    """Returns a JPEG with other bytes, or with factors that make coefficients larger than 16 bits hold."""
    changed = bytearray(jpeg)
    if draw.random() < 0.5:
        at = jpeg.index(b"\xff\xdb") + 5  # the first quantization table
        changed[at : at + 64] = bytes(draw.randint(1, 255) for _ in range(64))
    else:
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(20, len(jpeg))] = draw.randrange(256)
    return bytes(changed)


def calls(function: str) -> Iterator[Call]:
    """Yields calls of a function without end: random ones, always the same."""
    draw = random.Random(function)
    while True:
        size, channels = (draw.randint(1, 100), draw.randint(1, 100)), draw.choice((3, 3, 1))
        pixels = np.ascontiguousarray(generated_pixels(draw, *size)[..., :channels])
        if function == "crops":
            jpeg, size = generated_jpeg(draw, draw.choice((40, 120, 120, 400)))
            if draw.random() < 0.3:
                jpeg = forged(draw, jpeg)
            if draw.random() < 0.3:
                jpeg = core().store(jpeg) or jpeg  # coefficients, unless it is refused
            yield cropped(draw, function, jpeg, size, channels)
        elif function == "resize":
            yield cropped(draw, function, pixels.tobytes(), size, channels)
        elif function == "mix":
            crops = np.concatenate([pixels, pixels[::-1], 255 - pixels])
            _, box, flip = windows_of(draw, size, 1)
            weight = draw.choice((0, 1, 2**14, 2**15 - 1, draw.randint(0, 2**15)))
            yield call(function, crops.tobytes(), pixels.shape, 3, box, flip, windows=1, weight=weight)
        elif function == "mirror":
            yield call(function, pixels.tobytes(), pixels.shape, 1)
        else:
            pixels, operation = random_case(draw, draw.choice(KINDS))
            more = [random_operation(draw, draw.choice(KINDS), pixels.shape[:2]) for _ in range(draw.randrange(3))]
            operations = np.concatenate([operation, *more])
            numbers = {"operations": len(operations)}
            yield call(function, pixels.tobytes(), pixels.shape, 1, operations.tobytes(), **numbers)


def results(written: bytes, made: list[Call]) -> list[bytes]:
    """Returns the status of each call, and its crops if that is 0."""
    found, at = [], 0
    for one, _ in made:
        size = int(one["count"][0] * one["height"][0] * one["width"][0] * one["channels"][0])
        end = at + 4 + (0 if any(written[at : at + 4]) else size)
        found.append(written[at:end])
        at = end
    assert at == len(written)
    return found


def run(program: list[str], folder: Path, made: list[Call], level: int) -> tuple[str, list[bytes]]:
    """Returns the name of the instructions that a program has used, and its results."""
    inputs, outputs = folder / "calls", folder / "results"
    inputs.write_bytes(b"".join(one.tobytes() + parts for one, parts in made))
    done = subprocess.run([*program, inputs, outputs, str(level)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip(), results(outputs.read_bytes(), made)


def build(folder: Path, compiler: str, *inputs: str) -> str:
    """Returns the path of the program, built by a compiler."""
    program = folder / "program"
    subprocess.run([compiler, *OPTIONS, str(PROGRAM), *inputs, "-o", str(program), "-lm"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def here(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [build(tmp_path_factory.mktemp("here"), "cc", str(library))]


@pytest.fixture(scope="module")
def arm(here: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Builds the program for ARM, and returns the words that run it."""
    if ARM:
        return here
    if lacking := [tool for tool in (COMPILER, EMULATOR) if not shutil.which(tool)]:
        pytest.skip(f"NEON is not tested without {' and '.join(lacking)}: apt install {PACKAGES}")
    return [EMULATOR, build(tmp_path_factory.mktemp("arm"), COMPILER, "-static", *core_sources())]


@pytest.mark.parametrize("level", [0, 1], ids=["plain", "neon"])
def test_arm_gives_the_same_bytes(here: list[str], arm: list[str], tmp_path: Path, level: int) -> None:
    made = [one for function in FUNCTIONS for one in islice(calls(function), examples(2000))]
    _, expected = run(here, tmp_path, made, 0)
    instructions, found = run(arm, tmp_path, made, level)
    assert instructions == ("plain", "neon")[level]
    assert sum(any(each[:4]) for each in expected) <= 0.1 * len(made)  # forged files
    for number, (right, other) in enumerate(zip(expected, found, strict=True)):
        assert right == other, (number, made[number][0])
