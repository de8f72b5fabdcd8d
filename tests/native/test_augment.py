"""Operations on crops: the levels of Pillow and torchvision, by both kinds of instructions."""

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.augment import (
    DIFFER,
    KINDS,
    MIXES,
    REFERENCES,
    Operation,
    augmix,
    operation,
    random_case,
    random_operation,
    reference,
)
from tests.support.core import ARGUMENT, SANITIZERS, WARNINGS, Core, core_sources, generated_pixels, installed
from tests.support.examples import examples

HARNESS = Path(__file__).resolve().parents[1] / "fuzz" / "operations.c"
NAN, INFINITY = float("nan"), float("inf")
COLOURS = (Operation.BRIGHTNESS, Operation.CONTRAST, Operation.SATURATION, Operation.HUE)


def test_every_operation_has_a_reference() -> None:
    """A row of native/augment/augment.h without one in tests/support/augment.py would have untested pixels."""
    assert set(Operation) == REFERENCES | MIXES


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
def test_levels_are_the_references(core: Core, kind: Operation) -> None:
    draw = random.Random(kind.name)
    differ = levels = 0
    for _ in range(examples(500)):
        pixels, one = random_case(draw, kind)
        difference = abs(core.operate(pixels, one).astype(int) - reference(pixels, one[0]))
        assert difference.max() <= (kind in DIFFER), one
        differ, levels = differ + np.count_nonzero(difference), levels + difference.size
    assert differ <= DIFFER.get(kind, 0) * levels


def test_a_mix_is_augmixs(core: Core) -> None:
    """Each branch begins with the original; operations between use the same scratch."""
    draw = random.Random(1)
    for _ in range(examples(200)):
        size = draw.randint(1, 50), draw.randint(1, 50)
        pixels = generated_pixels(draw, *size)
        weights = np.random.default_rng(draw.getrandbits(32)).dirichlet((1, 1, 1, 1)).astype(np.float32).tolist()
        chains = [[random_operation(draw, draw.choice(KINDS), size) for _ in range(draw.randint(0, 3))] for _ in "123"]
        branches = [core.operate(pixels, np.concatenate([operation(Operation.IDENTITY), *chain])) for chain in chains]
        operations = [operation(Operation.SAVE, weights[0])]
        for chain, weight in zip(chains, weights[1:], strict=True):
            operations += [*chain, operation(Operation.ADD, weight)]
        mixed = core.operate(pixels, np.concatenate([*operations, operation(Operation.LOAD)]))
        assert (mixed == augmix(pixels, weights, branches)).all()


def test_both_kinds_of_instructions_give_the_same_crops(library: Path) -> None:
    draw, core = random.Random(2), Core(library)
    for number in range(examples(1000)):
        pixels, one = random_case(draw, KINDS[number % len(KINDS)])
        operations = np.concatenate([one, *(random_operation(draw, kind, pixels.shape[:2]) for kind in KINDS[:3])])
        crops = []
        for level in (0, 1):
            core.library.tfpipe_use_simd(level)
            crops.append(core.operate(pixels, operations))
        assert (crops[0] == crops[1]).all(), one


@pytest.mark.parametrize(
    "one",
    [
        operation(-1),
        operation(max(Operation) + 1),
        *(operation(kind, value) for kind in (*COLOURS, Operation.SHARPNESS) for value in (NAN, INFINITY, 1e39)),
        *(operation(Operation.POSTERIZE, bits) for bits in (-1, 9, 3.5, NAN)),
        operation(Operation.SOLARIZE, NAN),
        *(operation(Operation.HUE, shift) for shift in (-0.51, 0.51)),
        *(operation(Operation.BLUR, *values) for values in ((2, 3, 1, 1), (3, 0, 1, 1), (3, -1, 1, 1), (3.5, 3, 1, 1))),
        *(operation(Operation.BLUR, *values) for values in ((9, 3, 1, 1), (3, 13, 1, 1), (3, 3, 0, 1), (3, 3, 1, -1))),
        *(operation(Operation.WARP, 1, 0, 0, 0, 1, value) for value in (NAN, INFINITY)),
        operation(Operation.WARP, 1, 0, 0, 0, 1, 0, interpolation=2),
        *(operation(Operation.ERASE, *values) for values in ((-1, 0, 2, 2), (5, 0, 2, 2), (0, 4, 1, 1), (0, 0, 1, -1))),
        *(operation(Operation.ERASE_NOISE, *values) for values in ((0, 0, 7, 1), (0, 1, 1, 4), (0.5, 0, 1, 1))),
        operation(Operation.SAVE, NAN),
        operation(Operation.ADD, 1),
        operation(Operation.LOAD),
    ],
    ids=lambda one: str(one.tolist()),
)
def test_values_that_are_not_accepted_are_refused(core: Core, one: np.ndarray) -> None:
    """Before anything is changed: the crop is as it was, though a valid operation is the first."""
    pixels = generated_pixels(random.Random(3), 6, 4)
    assert core.operate(pixels, np.concatenate([operation(Operation.INVERT), one])) == ARGUMENT


@pytest.mark.parametrize(
    "shape", [(0, 4, 3), (4, 0, 3), (4, 4, 2), (4, 4, 4), (65501, 1, 1), (20000, 20000, 3)], ids=str
)
def test_crops_of_other_shapes_are_refused(core: Core, shape: tuple[int, int, int]) -> None:
    one = operation(Operation.IDENTITY)
    assert core.library.tfpipe_operate(core.scratch, None, *shape, one.ctypes.data, 1) == ARGUMENT


def test_noise_is_normal_and_its_seeds_differ(core: Core) -> None:
    pixels = np.zeros((224, 224, 3), np.uint8)
    noise = [core.operate(pixels, operation(Operation.ERASE_NOISE, 0, 0, 224, 224, seed=seed)) for seed in (5, 6)]
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02
    for seeded in noise:
        assert abs(seeded.mean((0, 1)) / 255 - (0.485, 0.456, 0.406)).max() < 0.005
        # A tenth is beyond 0 and 1, where levels end.
        assert abs(seeded.std((0, 1)) / 255 - (0.229, 0.224, 0.225)).max() < 0.01
        shifted = np.corrcoef(seeded[:, :-1].ravel(), seeded[:, 1:].ravel())[0, 1]
        assert abs(shifted) < 0.02 and len(np.unique(seeded)) > 200


def test_random_operations_pass_under_sanitizers(tmp_path: Path) -> None:
    """Both sanitizers and both kinds of instructions, every allocation of exact size."""
    program = tmp_path / "harness"
    build = ["cc", *WARNINGS, *SANITIZERS, "-DSTANDALONE", str(HARNESS), *core_sources(), "-o", str(program), "-lm"]
    subprocess.run(build, check=True)
    run = subprocess.run([program, "2", "1"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    crops, refused = (int(part.split()[0]) for part in run.stdout.split(", "))
    assert 0.1 * crops < refused < 0.6 * crops


def test_the_installed_library_augments() -> None:
    pixels = generated_pixels(random.Random(5), 30, 40)
    operations = np.concatenate([operation(Operation.INVERT), operation(Operation.FLIP_VERTICAL)])
    assert (installed().operate(pixels, operations) == 255 - pixels[::-1]).all()
    assert (installed().operate(pixels, operations[:0]) == pixels).all()
    assert installed().operate(pixels, operation(-4)) == ARGUMENT
