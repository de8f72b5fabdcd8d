"""What augmentation draws: torchvision's distributions, from the seed, the crop's position and the step alone."""

import itertools
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from tests.support.core import installed
from tfpipe.config import make_config
from tfpipe.config.augment import STEPS
from tfpipe.data.images.augment import choose_augment, step_rows
from tfpipe.data.images.crops import ALL
from tfpipe.data.order.permutation import GAMMA, mix
from tfpipe.errors import ConfigError
from tfpipe.native import core, native

SIZE = (96, 128)
KINDS = [*core().operations]
SAVE, ADD, LOAD = map(KINDS.index, ("SAVE", "ADD", "LOAD"))
# Below this share of chance a distribution is another one; the draws are fixed, so a test that passes always does.
UNLIKELY = 1e-3


def steps(*augment: Any) -> list[Any]:
    return make_config({"data": {"train_filelist": "x.txt", "augment": list(augment)}}).data.augment


def draw(step: Any, count: int = 4000, size: tuple[int, int] = SIZE, seed: int = 0) -> list[np.ndarray]:
    library = installed()
    (row,) = step_rows(steps(step))
    return [library.draw(row, 0, size, seed, (position, position % 3)) for position in range(count)]


def names(operations: np.ndarray) -> list[str]:
    return [KINDS[kind] for kind in operations["kind"]]


def assert_even(counts: Counter[Any], shares: dict[Any, float]) -> None:
    assert counts.keys() <= shares.keys(), counts
    expected = np.array([*shares.values()]) * counts.total()
    found = [counts[key] for key in shares]
    assert stats.chisquare(found, expected).pvalue > UNLIKELY, (counts, shares)


def test_the_configs_steps_are_the_librarys() -> None:
    library = core()
    assert {step.operation for step in STEPS} - {""} <= library.operations.keys()
    drawn = {step.__name__ for step in STEPS if not step.operation}
    assert library.steps.keys() == {"Operation", *drawn}


def test_a_draw_is_a_hash_of_seed_position_crop_and_step() -> None:
    library, p = installed(), 0.3
    (row,) = step_rows(steps({"name": "RandomInvert", "p": p}))

    def key(seed: int, position: int, crop: int, step: int) -> np.ndarray:
        words = [np.array([word], np.uint64) for word in (seed, position, crop + 1, step + 1)]
        state = mix(words[0] + GAMMA)
        state = mix(state + GAMMA * words[1])
        state = mix(state + GAMMA * words[2])
        return mix(state + GAMMA * words[3])

    applied = 0
    for place in np.ndindex(3, 20, 3, 4):
        seed, position, crop, step = (int(number) for number in place)
        uniform = float(mix(key(*place) + GAMMA)[0] >> np.uint64(11)) * 2.0**-53
        drawn = library.draw(row, step, SIZE, seed, (position, crop))
        assert len(drawn) == (uniform < p), place
        applied += len(drawn)
    assert 0.2 < applied / 720 < 0.4


SIGNED = {"BRIGHTNESS", "SATURATION", "CONTRAST", "SHARPNESS"}


def kind_of(operations: np.ndarray) -> str:
    """Returns the name of a policy's operation; warps are told apart by their coefficients."""
    if not len(operations):
        return "IDENTITY"
    (operation,) = operations
    a, b, c, d, e, f = operation["values"]
    name = KINDS[operation["kind"]]
    if name != "WARP":
        return name
    if a == e == 1 and (b or d):
        return "SHEAR_X" if b else "SHEAR_Y"
    if a == e == 1:
        return "MOVE_X" if c else "MOVE_Y" if f else "MOVE"
    return "ROTATE"


def test_trivial_augment_draws_one_of_fourteen_operations() -> None:
    drawn = draw("TrivialAugmentWide", 14_000)
    kinds = Counter(kind_of(operations) for operations in drawn)
    assert len(kinds) == 15, kinds  # a shift of 0 is neither along x nor along y
    kinds["SHIFT"] = sum(kinds.pop(name) for name in ("MOVE_X", "MOVE_Y", "MOVE"))
    # A shear or a rotation by nothing is told as a shift by nothing.
    for name in ("SHEAR_X", "SHEAR_Y", "ROTATE"):
        nothing = kinds.total() / 14 / 31
        kinds[name] += round(nothing)
        kinds["SHIFT"] -= round(nothing)
    assert_even(kinds, {name: (2 if name == "SHIFT" else 1) / 14 for name in kinds})


def linspace(first: float, last: float, bins: int) -> np.ndarray:
    """Returns torch.linspace, float32 [bins]: counted from the nearer end, and rounded once as by an FMA."""
    start, end = np.float32(first), np.float32(last)
    step, numbers = np.float64((end - start) / np.float32(bins - 1)), np.arange(bins)
    return np.where(numbers < bins // 2, start + step * numbers, end - step * (bins - 1 - numbers)).astype(np.float32)


# By magnitude's number of 31: what torch 2.13 gives, and double precision does not.
SOLARIZE = {
    16: "0x1.dddde00000000p-2",
    18: "0x1.99999c0000000p-2",
    24: "0x1.99999c0000000p-3",
    26: "0x1.1111120000000p-3",
}
BLEND = {20: "0x1.51eb860000000p-1", 28: "0x1.d916880000000p-1", 30: "0x1.fae1480000000p-1"}


def test_magnitudes_are_torch_linspaces_floats() -> None:
    """Those of TrivialAugmentWide, by the number that is drawn, and of RandAugment by its own."""
    assert {number: float(linspace(1, 0, 31)[number]).hex() for number in SOLARIZE} == SOLARIZE
    assert {number: float(linspace(0, 0.99, 31)[number]).hex() for number in BLEND} == BLEND
    spaces = {"BRIGHTNESS": linspace(0, 0.99, 31), "SOLARIZE": 255 * linspace(1, 0, 31).astype(np.float64)}
    spaces["MOVE_X"] = np.trunc(linspace(0, 32, 31))
    spaces["POSTERIZE"] = np.rint(8 - np.arange(31, dtype=np.float32) / np.float32(30 / 6))
    found: dict[str, set[float]] = {name: set() for name in spaces}
    for operations in draw("TrivialAugmentWide", 14_000):
        if (kind := kind_of(operations)) in spaces:
            value = operations["values"][0][2 if kind == "MOVE_X" else 0]
            found[kind].add(abs(float(value) - (kind == "BRIGHTNESS")) if kind != "SOLARIZE" else float(value))
    assert found["SOLARIZE"] == {*spaces["SOLARIZE"].tolist()}
    assert found["POSTERIZE"] == {*spaces["POSTERIZE"].tolist()}
    assert found["MOVE_X"] | {0.0} == {*spaces["MOVE_X"].tolist()}
    factors = 1 + np.outer([1, -1], spaces["BRIGHTNESS"].astype(np.float64))
    assert found["BRIGHTNESS"] == {abs(factor - 1) for factor in factors.ravel().tolist()}


@pytest.mark.parametrize(("bins", "magnitude"), [(31, 9), (31, 30), (31, 20), (11, 0), (10, 4)])
def test_rand_augment_has_one_magnitude_of_either_sign(bins: int, magnitude: int) -> None:
    step = {"name": "RandAugment", "num_ops": 1, "magnitude": magnitude, "num_magnitude_bins": bins}

    def of(last: float, first: float = 0) -> float:
        return float(linspace(first, last, bins)[magnitude])

    signs = Counter()
    for operations in draw(step, 2000):
        kind = kind_of(operations)
        if kind == "IDENTITY":
            continue
        values = operations["values"][0]
        if kind in SIGNED:
            assert values[0] in (1 + of(0.9), 1 - of(0.9))
            signs[values[0] < 1] += 1
        elif kind == "SOLARIZE":
            assert values[0] == 255 * of(0, 1)
        elif kind == "POSTERIZE":
            assert values[0] == round(8 - magnitude / ((bins - 1) / 4))
        elif kind == "SHEAR_X":
            assert abs(values[1]) == pytest.approx(of(0.3))
        elif kind == "MOVE_X":
            assert abs(values[2]) == int(of(150 / 331 * SIZE[1]))
        elif kind == "MOVE_Y":
            assert abs(values[5]) == int(of(150 / 331 * SIZE[0]))
        elif kind == "ROTATE":
            assert abs(math.degrees(math.atan2(values[1], values[0]))) == pytest.approx(of(30))
        assert kind != "INVERT"
    if magnitude:
        assert_even(signs, {True: 0.5, False: 0.5})


def test_rand_augment_draws_as_many_operations_as_asked_for() -> None:
    lengths = Counter(len(operations) for operations in draw({"name": "RandAugment", "num_ops": 3}))
    # 1 of 14 is the identity, which is no operation.
    assert_even(lengths, dict(enumerate(stats.binom(3, 13 / 14).pmf(range(4)))))


def test_auto_augment_draws_the_pairs_of_its_policy() -> None:
    drawn = Counter(tuple(names(operations)) for operations in draw("AutoAugment", 8000))
    # Table 9 of the paper has two of (Invert 0.6, Equalize 1.0), and one of (Sharpness 0.4, Invert 0.6).
    assert drawn["INVERT", "EQUALIZE"] / 8000 == pytest.approx(2 * 0.6 / 25, abs=0.01)
    assert drawn["SHARPNESS", "INVERT"] / 8000 == pytest.approx(0.4 * 0.6 / 25, abs=0.004)
    assert drawn["SATURATION", "CONTRAST"] / 8000 == pytest.approx(2 * 0.6 / 25, abs=0.01)
    assert drawn["POSTERIZE", "WARP"] / 8000 == pytest.approx(0.4 * 0.6 / 25, abs=0.004)
    both = drawn["EQUALIZE", "EQUALIZE"]
    assert both / 8000 == pytest.approx(2 * 0.8 * 0.6 / 25, abs=0.008)


def test_color_jitter_draws_factors_and_their_order_uniformly() -> None:
    step = {"name": "ColorJitter", "brightness": 0.4, "contrast": 1.5, "saturation": [0.5, 0.7], "hue": 0.1}
    ranges = {"BRIGHTNESS": (0.6, 1.4), "CONTRAST": (0, 2.5), "SATURATION": (0.5, 0.7), "HUE": (-0.1, 0.1)}
    orders: Counter[Any] = Counter()
    factors: dict[str, list[float]] = {name: [] for name in ranges}
    for operations in draw(step):
        orders[tuple(names(operations))] += 1
        for name, values in zip(names(operations), operations["values"], strict=True):
            factors[name].append(values[0])
    assert_even(orders, dict.fromkeys(orders, 1 / 24))
    assert len(orders) == 24
    for name, (low, high) in ranges.items():
        assert stats.kstest(factors[name], stats.uniform(low, high - low).cdf).pvalue > UNLIKELY, name
    # A range of which only the unchanged is left is no operation.
    assert {tuple(names(operations)) for operations in draw({"name": "ColorJitter", "hue": 0.1}, 50)} == {("HUE",)}


def erased(generator: np.random.Generator, size: tuple[int, int], scale: Any, ratio: Any) -> tuple[int, ...] | None:
    """Draws a rectangle by the rules of torchvision's RandomErasing."""
    for _ in range(10):
        area = size[0] * size[1] * generator.uniform(*scale)
        aspect = math.exp(generator.uniform(*np.log(ratio)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < size[0] and width < size[1]:
            return generator.integers(size[0] - height + 1), generator.integers(size[1] - width + 1), height, width
    return None


def test_random_erasing_draws_torchvisions_rectangles() -> None:
    scale, ratio, generator = (0.1, 0.9), (0.3, 3.3), np.random.default_rng(1)
    step = {"name": "RandomErasing", "p": 0.6, "scale": scale, "ratio": ratio, "value": [1, 2, 3]}
    drawn = [operations[0] for operations in draw(step, 6000) if len(operations)]
    expected = [erased(generator, SIZE, scale, ratio) for _ in range(6000)]
    rectangles = np.array([rectangle for rectangle in expected if rectangle])
    found = np.array([operation["values"][:4] for operation in drawn])
    share = len(rectangles) / 6000 * 0.6
    assert stats.binomtest(len(drawn), 6000, share).pvalue > UNLIKELY
    for column in range(4):
        assert stats.ks_2samp(found[:, column], rectangles[:, column]).pvalue > UNLIKELY, column
    # They reach all four edges of the crop, and go beyond none.
    assert found[:, :2].min(0).tolist() == [0, 0] and (found[:, :2] + found[:, 2:]).max(0).tolist() == [*SIZE]
    assert all(operation["fill"].tolist() == [1, 2, 3, 0] for operation in drawn)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_aug_mix_draws_weights_of_dirichlet_distributions(alpha: float) -> None:
    kept, parts, lengths = [], [], Counter()
    for operations in draw({"name": "AugMix", "alpha": alpha}, 2000):
        (saved,) = operations["values"][operations["kind"] == SAVE, 0]
        added = operations["values"][operations["kind"] == ADD, 0]
        assert len(added) == 3 and saved + added.sum() == pytest.approx(1)
        assert operations["kind"][0] == SAVE and operations["kind"][-1] == LOAD
        kept.append(saved)
        if saved < 1 - 1e-9:
            parts.append(added[0] / (1 - saved))
        lengths[np.flatnonzero(operations["kind"] == ADD)[0] - 1] += 1
    assert stats.kstest(kept, stats.beta(alpha, alpha).cdf).pvalue > UNLIKELY
    assert stats.kstest(parts, stats.beta(alpha, 2 * alpha).cdf).pvalue > UNLIKELY
    assert_even(lengths, {1: 1 / 3, 2: 1 / 3, 3: 1 / 3})


@given(degrees=st.floats(-720, 720), side=st.integers(2, 300), other=st.integers(2, 300))
def test_a_rotation_has_pillows_coefficients(degrees: float, side: int, other: int) -> None:
    library = installed()
    (row,) = step_rows(steps({"name": "RandomRotation", "degrees": [degrees, degrees]}))
    (operation,) = library.draw(row, 0, (side, other), 0, (0, 0))
    caught: list[Any] = []

    class Caught(Image.Image):
        def transform(self, size: Any, method: Any, data: Any = None, *args: Any, **options: Any) -> Any:
            caught.extend(data)
            return self

    image = Image.new("L", (other, side))
    image.__class__ = Caught
    image.rotate(degrees)
    if caught:  # right angles have other paths in Pillow, without coefficients
        assert operation["values"] == pytest.approx(caught, abs=1e-9)


@given(
    degrees=st.floats(-180, 180),
    scale=st.floats(0.2, 4),
    shears=st.tuples(st.floats(-60, 60), st.floats(-60, 60)),
    center=st.tuples(st.floats(0, 100), st.floats(0, 100)),
)
def test_an_affine_map_is_shear_rotation_scale_about_the_center(
    degrees: float, scale: float, shears: tuple[float, float], center: tuple[float, float]
) -> None:
    library = installed()
    step = {"name": "RandomAffine", "degrees": [degrees] * 2, "scale": [scale] * 2, "center": list(center)}
    (row,) = step_rows(steps({**step, "shear": [shears[0], shears[0], shears[1], shears[1]]}))
    (operation,) = library.draw(row, 0, SIZE, 0, (0, 0))
    angle, x, y = (math.radians(value) for value in (degrees, *shears))
    # The map from the crop to the image, in torchvision's words: T * C * RotateScaleShear * C^-1.
    rotate = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    shear = np.array([[1, 0], [-math.tan(y), 1]]) @ np.array([[1, -math.tan(x)], [0, 1]])
    rotated = scale * rotate @ shear
    inverse = np.linalg.inv(rotated)
    a, b, c, d, e, f = operation["values"]
    assert np.array([[a, b], [d, e]]) == pytest.approx(inverse, abs=1e-9)
    assert np.array([[a, b], [d, e]]) @ center + [c, f] == pytest.approx(np.array(center), abs=1e-7)


def test_an_affine_map_moves_by_whole_pixels_within_its_shares() -> None:
    step = {"name": "RandomAffine", "degrees": 0, "translate": [0.25, 0.5]}
    moves = np.array([operations["values"][0][[2, 5]] for operations in draw(step)])
    assert (moves == np.rint(moves)).all()
    for axis, (share, side) in enumerate(((0.25, SIZE[1]), (0.5, SIZE[0]))):
        assert abs(moves[:, axis]).max() == share * side
        jittered = moves[:, axis] + np.random.default_rng(axis).uniform(-0.5, 0.5, len(moves))
        even = stats.uniform(-share * side, 2 * share * side)
        assert stats.kstest(jittered, even.cdf).pvalue > UNLIKELY


def test_a_row_that_is_no_step_is_refused() -> None:
    library = installed()
    (row,) = step_rows(steps({"name": "AugMix"}))
    for column, value in ((0, 99), (0, -1), (7, 9), (8, 9), (9, 0), (9, math.nan), (3, 256), (1, math.inf)):
        wrong = row.copy()
        wrong[column] = value
        with pytest.raises(ValueError, match="no step"):
            library.draw(wrong, 0, SIZE, 0, (0, 0))


# A step, a key, values at its limits, and values just beyond them, which are refused.
BEYOND = 1.000_01e6
SPAN = ([-1e6, -1e6], [1e6, 1e6]), ([-BEYOND, 0], [0, BEYOND])
POSITIVE = ([1e-6, 1e-6], [1e6, 1e6]), ([0.9e-6, 1], [1, BEYOND])
FACTOR = (0, 1e6, [0, 0], [0, 1e6]), (-1e-9, BEYOND, [-1e-9, 1], [0, 1.1 * BEYOND])
LIMITS: list[tuple[dict[str, Any], str, tuple[Any, ...], tuple[Any, ...]]] = [
    ({"name": "RandomInvert"}, "p", (0, 1), (-0.01, 1.01)),
    ({"name": "RandAugment"}, "num_ops", (0, 16), (-1, 17)),
    ({"name": "RandAugment"}, "magnitude", (0, 30), (-1, 31)),
    ({"name": "TrivialAugmentWide"}, "num_magnitude_bins", (2, 1000), (1, 1001)),
    ({"name": "TrivialAugmentWide"}, "fill", (0, 255), (-1, 256)),
    ({"name": "AugMix"}, "severity", (1, 10), (0, 11)),
    ({"name": "AugMix"}, "mixture_width", (1, 8), (0, 9)),
    ({"name": "AugMix"}, "chain_depth", (-1, 8), (-2, 9)),
    ({"name": "AugMix"}, "alpha", (1e-6, 1e6), (0.9e-6, BEYOND, 1e9)),
    *(({"name": "ColorJitter"}, key, *FACTOR) for key in ("brightness", "contrast", "saturation")),
    ({"name": "ColorJitter"}, "hue", (0, 0.5, [-0.5, 0.5]), (-0.1, 0.51, [-0.51, 0], [0, 0.51])),
    ({"name": "GaussianBlur", "kernel_size": 3}, "sigma", (1e-6, 1e6, *POSITIVE[0]), (0, BEYOND, 1e39, *POSITIVE[1])),
    ({"name": "RandomSolarize"}, "threshold", (0, 255), (-1, 256)),
    ({"name": "RandomPosterize"}, "bits", (0, 8), (-1, 9)),
    ({"name": "RandomAdjustSharpness"}, "sharpness_factor", (0, 1e6), (-1, BEYOND)),
    ({"name": "RandomRotation"}, "degrees", (0, 1e6, *SPAN[0]), (-1, BEYOND, 1e10, *SPAN[1])),
    ({"name": "RandomRotation", "degrees": 3}, "center", SPAN[0], ([-BEYOND, 0], [0, 2 * BEYOND])),
    ({"name": "RandomAffine"}, "degrees", (0, 1e6, *SPAN[0]), (BEYOND, *SPAN[1])),
    ({"name": "RandomAffine", "degrees": 0}, "translate", ([0, 0], [1, 1]), ([-0.1, 0], [0, 1.1])),
    ({"name": "RandomAffine", "degrees": 0}, "scale", *POSITIVE),
    (
        {"name": "RandomAffine", "degrees": 0},
        "shear",
        (0, 89, [89, 89], [-89, -89, 89, 89]),
        (90, [90, 90], [-90, 0], [0, 0, 90, 90], [0, 0, -90, 0]),
    ),
    ({"name": "RandomErasing"}, "scale", ([0, 0], [1, 1]), ([-0.1, 0], [0, 1.1])),
    ({"name": "RandomErasing"}, "ratio", *POSITIVE),
]


@pytest.mark.parametrize(("step", "key", "accepted", "refused"), LIMITS, ids=lambda part: getattr(part, "name", ""))
def test_limits_of_steps_are_those_of_the_library(
    step: dict[str, Any], key: str, accepted: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    """What the config accepts the library draws and applies; what the library refuses is told with its key."""
    library = installed()
    step = {**step, "p": 1.0} if key != "p" else step
    for value in accepted:
        (row,) = step_rows(steps({**step, key: value}))
        pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
        for position in range(8):
            pixels = library.operate(pixels, library.draw(row, 0, (12, 16), 0, (position, 0)))
            assert isinstance(pixels, np.ndarray)
    (valid,) = steps({**step, key: accepted[0]})
    for value in refused:
        with pytest.raises(ConfigError, match=rf"data.augment\[0\].*{key}.*: received "):
            steps({**step, key: value})
        (row,) = step_rows([valid.model_copy(update={key: tuple(value) if isinstance(value, list) else value})])
        with pytest.raises(ValueError, match="no step"):
            library.draw(row, 0, (12, 16), 0, (0, 0))


def test_a_shear_within_its_limits_leaves_something_of_a_crop() -> None:
    library = installed()
    for shear in (89, -89):
        (row,) = step_rows(steps({"name": "RandomAffine", "degrees": 0, "shear": [shear, shear]}))
        pixels = np.full((64, 64, 3), 200, np.uint8)
        sheared = library.operate(pixels, library.draw(row, 0, (64, 64), 0, (0, 0)))
        assert (sheared > 0).mean() > 0.005


def test_a_kernel_larger_than_a_crop_is_an_error_that_says_so() -> None:
    blur = [{"name": "GaussianBlur", "kernel_size": [3, 17]}]
    config = make_config({"data": {"train_filelist": "x", "augment": blur, "crop_image_size": [8, 99]}}).data
    with pytest.raises(
        ConfigError, match=r"data.augment\[0\].kernel_size: received 17 for crops of 8 pixels.*up to 15"
    ):
        choose_augment(config, training=True)
    assert choose_augment(config, training=False) is None


@given(st.sets(st.integers(1, 6)), st.randoms())
@settings(max_examples=25)
def test_spans_of_crops_changed_in_any_order_are_all_of_them(ends: set[int], draw: random.Random) -> None:
    """And a span leaves the other crops as they are."""
    before = np.random.default_rng(len(ends)).integers(0, 256, (7, 12, 16, 3), np.uint8)
    how = [[position, 0] for position in range(7)], 3, step_rows(steps({"name": "RandAugment"}))
    whole = native().augment(before.copy(), *how, ALL).numpy()
    crops, expected = tf.constant(before.copy()), before.copy()
    spans = list(itertools.pairwise([0, *sorted(ends), 7]))
    draw.shuffle(spans)
    for first, end in spans:
        crops = native().augment(crops, *how, [first, end])
        expected[first:end] = whole[first:end]
        assert (crops.numpy() == expected).all()
    assert (whole != before).any()
