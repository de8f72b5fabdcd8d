"""The kernels of the core's resize: Pillow's, and exact means over areas, within a level."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.core import ARGUMENT, KERNELS, Core, build_core, generated_jpeg, generated_pixels, reference
from tests.support.examples import examples
from tests.support.images import bilinear, encoded, picture, resized

RESAMPLE = {"antialias": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# Values that may differ by more than a level, of "bicubic": Pillow clips between its passes, the core after both.
SHARE = 0.001
TARGETS = ((40, 40), (1, 1), (3, 200), (150, 4), (90, 61))
Window = tuple[int, int, int, int]


def window_of(draw: random.Random, size: tuple[int, int]) -> Window:
    height, width = (draw.choice((1, 2, side, draw.randint(1, side))) if side > 1 else 1 for side in size)
    return draw.randint(0, size[0] - height), draw.randint(0, size[1] - width), height, width


def expected(pixels: np.ndarray, window: Window, target: tuple[int, int], kernel: str) -> np.ndarray:
    """Returns the window, uint8 [height, width, channels], resized by Pillow, or without rounding before the end."""
    top, left, height, width = window
    cut = np.ascontiguousarray(pixels[top : top + height, left : left + width])
    if kernel in RESAMPLE:
        image = Image.fromarray(cut[..., 0] if cut.shape[2] == 1 else cut)
        return np.asarray(image.resize(target[::-1], RESAMPLE[kernel]), int).reshape(*target, -1)
    exact = bilinear(cut.astype(float), target) if kernel == "bilinear" else resized(cut, target, kernel)
    return np.rint(exact).astype(int)


@pytest.mark.parametrize("kernel", KERNELS)
def test_crops_are_pillows_within_a_level(core: Core, kernel: str) -> None:
    """Windows of all shapes, several of an image, shrunk and enlarged, gray and in colour, mirrored and not."""
    draw, values, beyond = random.Random(1), 0, 0
    core.kernel = kernel
    for _ in range(examples(150)):
        size, channels = (draw.randint(1, 200), draw.randint(1, 200)), draw.choice((3, 3, 1))
        jpeg = encoded(picture(*size, seed=draw.getrandbits(32)), subsampling=draw.randrange(3))
        windows = [window_of(draw, size) for _ in range(draw.randint(1, 4))]
        target, flips = draw.choice(TARGETS), [draw.random() < 0.5 for _ in windows]
        crops = core.crops(jpeg, size, windows, target, channels, flips)
        pixels = reference(jpeg, channels)
        again = core.resize(pixels, windows, target, flips)
        assert (again == crops).all()
        for crop, flip, window in zip(crops, flips, windows, strict=True):
            right = expected(pixels, window, target, kernel)
            difference = np.abs(crop.astype(int) - (right[:, ::-1] if flip else right))
            values, beyond = values + difference.size, beyond + (difference > 1).sum()
    assert beyond <= (SHARE * values if kernel == "bicubic" else 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_window_that_covers_is_the_middle_of_the_resized_one(core: Core, kernel: str) -> None:
    """To the bit, for windows of all shapes, shrunk, enlarged and copied, mirrored and not; of JPEGs and of pixels."""
    draw = random.Random(2)
    core.kernel = kernel
    for _ in range(examples(150)):
        size, channels = (draw.randint(1, 150), draw.randint(1, 150)), draw.choice((3, 1))
        target = draw.randint(1, 60), draw.randint(1, 60)
        cover = target[0] + draw.choice((0, 1, 7, 40)), target[1] + draw.choice((0, 1, 7, 40))
        cover = draw.choice((cover, (max(cover),) * 2))
        window = draw.choice((window_of(draw, size), (0, 0, *size)))
        high, wide = window[2:]
        ratio = min(high / cover[0], wide / cover[1])
        whole = round(high / ratio), round(wide / ratio)
        if cover[0] == cover[1]:
            whole = tuple(int(cover[0] * side / min(high, wide)) for side in (high, wide))
        if max(whole) > 20_000:
            continue
        top, left = (round((side - part) / 2) for side, part in zip(whole, target, strict=True))
        pixels, flip = generated_pixels(draw, *size)[..., :channels], draw.random() < 0.5
        (right,) = core.resize(pixels, [window], whole)
        right = right[top : top + target[0], left : left + target[1]]
        (crop,) = core.resize(pixels, [window], target, [flip], cover=cover)
        assert (crop == (right[:, ::-1] if flip else right)).all(), (size, window, cover, target)
        jpeg = encoded(picture(*size, seed=draw.getrandbits(32)), subsampling=draw.randrange(3))
        (right,) = core.resize(reference(jpeg, channels), [window], target, [flip], cover=cover)
        (crop,) = core.crops(jpeg, size, [window], target, channels, [flip], cover=cover)
        assert (crop == right).all(), (size, window, cover, target)


def test_sides_to_cover_that_are_less_than_the_crop_are_refused(core: Core) -> None:
    assert core.resize(np.zeros((9, 9, 3), np.uint8), [(0, 0, 9, 9)], (5, 5), cover=(4, 4)) == ARGUMENT


@pytest.mark.parametrize("kernel", ["antialias", "bicubic", "area"])
def test_noise_too_is_within_a_level_of_sums_without_rounding(core: Core, kernel: str) -> None:
    draw = random.Random(2)
    core.kernel = kernel
    for _ in range(examples(100)):
        size = draw.randint(1, 120), draw.randint(1, 120)
        pixels, target = generated_pixels(draw, *size), draw.choice(TARGETS)
        (crop,) = core.resize(pixels, [(0, 0, *size)], target)
        right = np.rint(resized(pixels, target, kernel)).clip(0, 255)
        assert np.abs(crop - right).max() <= 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_kinds_of_instructions_give_the_same_crops(library: Path, kernel: str) -> None:
    draw, core = random.Random(4), Core(library)
    core.kernel = kernel
    for _ in range(examples(300)):
        jpeg, size = generated_jpeg(draw)
        windows, target = [window_of(draw, size) for _ in range(3)], (draw.randint(1, 90), draw.randint(1, 90))
        channels, crops = draw.choice((1, 3)), []
        for level in (0, 1):
            core.library.tfpipe_use_simd(level)
            crops.append(core.crops(jpeg, size, windows, target, channels, [True, False, True]))
        assert (crops[0] == crops[1]).all()


@pytest.fixture(scope="module")
def plain_and_avx2(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """A core for tests that make many calls."""
    return Core(build_core(tmp_path_factory.mktemp("resize")))


@settings(max_examples=examples(300), deadline=None)
@given(
    kernel=st.sampled_from(KERNELS),
    source=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    target=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    level=st.sampled_from([0, 1, 127, 128, 254, 255]),
)
def test_a_flat_image_stays_as_it_is(
    plain_and_avx2: Core, kernel: str, source: tuple[int, int], target: tuple[int, int], level: int
) -> None:
    """The weights of every pixel sum to 1 exactly."""
    plain_and_avx2.kernel = kernel
    plain_and_avx2.library.tfpipe_use_simd(level % 2)
    for channels in (1, 3):
        pixels = np.full((*source, channels), level, np.uint8)
        assert (plain_and_avx2.resize(pixels, [(0, 0, *source)], target) == level).all()


@pytest.mark.parametrize("kernel", ["antialias", "bicubic", "area"])
def test_a_window_may_shrink_to_a_pixel(core: Core, kernel: str) -> None:
    """Of 20,000 pixels in a row or a column: their weights are below those that 14 bits hold."""
    core.kernel = kernel
    ramp = np.arange(20_000) * 255 / 19_999
    for shape in ((1, 20_000, 1), (20_000, 1, 1)):
        pixels = np.rint(ramp).astype(np.uint8).reshape(shape)
        (crop,) = core.resize(pixels, [(0, 0, *shape[:2])], (1, 1))
        assert abs(int(crop[0, 0, 0]) - 127.5) <= 1
        assert (core.resize(np.full_like(pixels, 255), [(0, 0, *shape[:2])], (1, 1)) == 255).all()


def test_there_is_no_other_kernel(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.core.KERNELS", (*KERNELS, "lanczos"))
    core.kernel = "lanczos"
    assert core.resize(np.zeros((5, 5, 3), np.uint8), [(0, 0, 5, 5)], (5, 5)) == ARGUMENT
