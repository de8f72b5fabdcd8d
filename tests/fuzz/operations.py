"""Random operations on random crops through the native core: Pillow's or torchvision's levels."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.support.augment import REFERENCES, Operation, random_operation, reference
from tests.support.core import Core, build_core, generated_pixels

KINDS = sorted(REFERENCES)
SIDES = (1, 2, 3, 9, 40, 40, 40, 120)
# Shares of levels that may differ by one; all others are equal. Torch sums a blur's products in float32, the core has 6
# fractional bits between the directions. Pillow interpolates warps in double, the core in float32: a level that is
# almost a whole number may be truncated to another. The quantiles of the noise have 12 fractional bits.
DIFFER = {Operation.BLUR: 0.01, Operation.WARP: 0.001, Operation.ERASE_NOISE: 0.001}


def random_case(draw: random.Random, kind: Operation) -> tuple[np.ndarray, np.ndarray]:
    """Returns a crop (uint8 [height, width, 1 or 3]), and an OPERATION [1] of the kind."""
    size = draw.choice(SIDES), draw.choice(SIDES)
    pixels = generated_pixels(draw, *size)
    if draw.random() < 0.3:
        pixels = np.ascontiguousarray(pixels[..., :1])
    return pixels, random_operation(draw, kind, size)


def fuzz_operations(count: int, seed: int) -> Counter[str]:
    """Counts cases by kind, their levels, and those that differ by one from the reference.

    Raises:
        AssertionError: more levels of a kind differ than DIFFER allows, or one by more than one.
    """
    outcomes: Counter[str] = Counter()
    levels: Counter[Operation] = Counter()
    differ: Counter[Operation] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        core = Core(build_core(Path(folder)))
        for number in range(count):
            kind, draw = KINDS[number % len(KINDS)], random.Random(f"{seed} {number}")
            pixels, operation = random_case(draw, kind)
            core.library.tfpipe_use_simd(draw.randrange(2))
            crop = core.operate(pixels, operation)
            difference = abs(crop.astype(int) - reference(pixels, operation[0]))
            where = f"case {number} of seed {seed}, {kind.name} of {pixels.shape} by {operation.tolist()}"
            assert difference.max() <= (kind in DIFFER), f"{where}: {difference.max()}"
            levels[kind] += difference.size
            differ[kind] += int(np.count_nonzero(difference))
            outcomes[kind.name.lower()] += 1
    assert all(differ[kind] <= DIFFER.get(kind, 0) * levels[kind] for kind in KINDS), differ
    outcomes["levels"] = levels.total()
    return outcomes + Counter({f"levels by {kind.name.lower()} that differ by one": differ[kind] for kind in DIFFER})
