"""Windows: those of boxes, of evaluation, letterboxes and random ones, against references in NumPy and Pillow."""

import io
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from scipy import stats

from tests.support import decoding
from tests.support.examples import examples
from tests.support.images import encoded, picture
from tests.support.windows import random_window
from tfpipe.config import make_config
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import EncodedImages, choose_decoder
from tfpipe.data.images.whole import image_sizes
from tfpipe.data.images.windows import (
    Candidates,
    Ranges,
    box_windows,
    draw_flips,
    full_windows,
    letterbox_windows,
    place_windows,
    random_windows,
    target_of,
)
from tfpipe.native import native


def test_sizes_are_found_where_they_are_unknown() -> None:
    """Sizes of a JPEG, a PNG named so, and a JPEG with a fill byte; no image is an error, no file has no size."""
    jpeg, png = encoded(picture(20, 30)), encoded(picture(40, 50), format="PNG")
    images = [jpeg, png, b"", b"\xff\xd8\xff" + jpeg[2:], jpeg]
    known = [[0, 0], [0, 0], [0, 0], [0, 0], [7, 9]]
    found = image_sizes(tf.constant(images), tf.constant(known), decoding.PLAIN)
    assert found.numpy().tolist() == [[20, 30], [40, 50], [0, 0], [20, 30], [7, 9]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        image_sizes(tf.constant([jpeg, b"no image"]), tf.constant(known[:2]), decoding.PLAIN)


def test_boxes_are_windows_of_whole_pixels() -> None:
    """At least one, also at the image's edges."""
    corners = np.sort(np.random.default_rng(1).random((40, 2, 2)), axis=1)
    corners[:5, 0] = 0
    corners[5:10, 1] = 1
    boxes, size = corners.reshape(40, 4).astype(np.float32), np.array([211, 317])
    edges = np.round(boxes * np.tile(size, 2)).astype(int)
    expected = np.concatenate([edges[:, :2], np.maximum(edges[:, 2:] - edges[:, :2], 1)], axis=1)
    assert (box_windows(boxes, tf.constant([size] * 40, tf.int32)).numpy() == expected).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 1000), (375, 500)])
def test_every_window_is_inside_the_image_and_not_empty(size: tuple[int, int]) -> None:
    random = np.random.default_rng(2)
    corners = np.sort(random.random((500, 2, 2)), axis=1)
    corners[:100, 1] = corners[:100, 0]
    corners[100:150] = 1
    windows = box_windows(corners.reshape(-1, 4).astype(np.float32), tf.constant([size] * 500)).numpy()
    assert (windows[:, :2] >= 0).all()
    assert (windows[:, 2:] >= 1).all()
    assert (windows[:, :2] + windows[:, 2:] <= size).all()


@pytest.mark.parametrize(
    ("size", "target", "fraction", "place"),
    [
        ((375, 500), (224, 224), 0.875, [-16, -58, 256, 341]),  # torchvision: Resize(256), CenterCrop(224)
        ((500, 375), (224, 224), 224 / 232, [-42, -4, 309, 232]),  # Resize(232) of its newer recipes
        ((375, 500), (224, 224), 0.95, [-6, -44, 235, 313]),  # timm: floor(224 / 0.95)
        ((375, 500), (100, 200), 0.5, [-100, -100, 300, 400]),  # timm's ResizeKeepRatio
        ((10, 20), (224, 224), 1.0, [0, -112, 224, 448]),
        ((1, 1), (7, 3), 1.0, [0, -2, 7, 7]),
    ],
)
def test_a_center_crop_is_the_middle_of_the_resized_image(
    size: tuple[int, int], target: tuple[int, int], fraction: float, place: list[int]
) -> None:
    keys = {"train_filelist": "x", "crop": "center", "crop_image_size": target, "center_fraction": fraction}
    chosen = target_of(make_config({"data": keys}).data, "train")
    assert place_windows(tf.constant([size]), chosen).numpy().tolist() == [place]


@pytest.mark.parametrize("decoder", ["native", "graph"])
@pytest.mark.parametrize("kernel", ["antialias", "bicubic"])
def test_an_evaluation_is_torchvisions_and_timms(decoder: str, kernel: str) -> None:
    """At most one level off in 99.9 % of values: Pillow's resize of the whole image, of which the middle is cut out."""
    resample = Image.Resampling.BILINEAR if kernel == "antialias" else Image.Resampling.BICUBIC
    random, values, beyond = np.random.default_rng(5), 0, 0
    for number in range(examples(6)):
        size, part, short = random.integers(60, 260, 2).tolist(), *((56, 64), (56, 58), (48, 48))[number % 3]
        contents = encoded(picture(*size, seed=number))
        image = Image.open(io.BytesIO(contents))
        height, width = (int(short * side / min(size)) for side in size)
        top, left = (round((side - part) / 2) for side in (height, width))
        right = np.asarray(image.resize((width, height), resample), int)[top : top + part, left : left + part]
        keys = {"train_filelist": "x", "crop": "center", "crop_image_size": [part] * 2, "resize": kernel}
        keys |= {"center_fraction": part / short, "decoder": decoder}
        zero, windows = tf.zeros([1], tf.int64), full_windows(tf.constant([size]))
        crops = choose_decoder(make_config({"data": keys}).data).decode(
            EncodedImages(tf.constant([contents])),
            tf.constant([size]),
            Windows(zero, zero, windows, tf.zeros([1], tf.int32)),
            tf.zeros([0], tf.bool),
        )
        difference = np.abs(crops.numpy()[0].astype(int) - right)
        values, beyond = values + difference.size, beyond + (difference > 1).sum()
    assert beyond <= 0.001 * values


@pytest.mark.parametrize("target", [(224, 224), (100, 37), (1, 50), (31, 1)])
def test_a_letterbox_is_the_largest_size_that_fits_in_the_middle(target: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    sizes = np.concatenate([random.integers(1, 700, (400, 2)), [[65500, 1], [1, 65500], [65500, 65499], target]])
    for (high, wide), inner in zip(
        sizes.tolist(), letterbox_windows(tf.constant(sizes), target).numpy().tolist(), strict=True
    ):
        scale = min(Fraction(target[0], high), Fraction(target[1], wide))
        height, width = (max(1, math.floor(side * scale + Fraction(1, 2))) for side in (high, wide))
        assert inner == [(target[0] - height) // 2, (target[1] - width) // 2, height, width]
        assert height == target[0] or width == target[1]


PLAIN = Ranges((0.08, 1.0), (3 / 4, 4 / 3), 0.0)


def draw_windows(size: tuple[int, int], count: int, how: Ranges = PLAIN, boxes: Any = ()) -> np.ndarray:
    """Returns int32 [count, 4]: windows that the library draws of one image."""
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    spans, images = np.tile(np.int64([[0, len(boxes)]]), (count, 1)), np.zeros(count, np.int64)
    seeds = np.stack([np.full(count, 6), np.arange(count)], axis=1)[:, None]
    candidates = Candidates(tf.constant(boxes), tf.constant(spans), tf.constant(images))
    return random_windows(tf.constant([size]), candidates, tf.constant(seeds), [how]).numpy()[:, 0]


def torchvisions(random: np.random.Generator, size: tuple[int, int], how: Ranges = PLAIN) -> tuple[int, int, int, int]:
    """Draws a window as RandomResizedCrop.make_params of torchvision 0.29 does, line by line."""
    height, width = size
    for _ in range(10):
        target_area = height * width * random.uniform(*how.area)
        aspect_ratio = math.exp(random.uniform(*map(math.log, how.aspect)))
        w, h = round(math.sqrt(target_area * aspect_ratio)), round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(random.integers(0, height - h + 1)), int(random.integers(0, width - w + 1)), h, w
    in_ratio, (h, w) = width / height, size
    if in_ratio < min(how.aspect):
        h = round(width / min(how.aspect))
    elif in_ratio > max(how.aspect):
        w = round(height * max(how.aspect))
    return (height - h) // 2, (width - w) // 2, h, w


def measures(windows: np.ndarray, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns areas as shares, aspect ratios, and the places of windows among those that their sizes allow."""
    top, left, height, width = windows.astype(float).T
    areas, aspects = height * width / (size[0] * size[1]), np.log(width / height)
    return {"area": areas, "aspect": aspects, "top": top / size[0], "left": left / size[1]}


SIZES = [(375, 500), (500, 375), (64, 64), (120, 900), (1200, 101)]


@pytest.mark.parametrize("size", SIZES)
def test_random_windows_have_torchvisions_distribution(size: tuple[int, int]) -> None:
    """Kolmogorov and Smirnov's test over 5,000 draws, also of images that are too long for most windows."""
    drawn, random = draw_windows(size, 5000), np.random.default_rng(1)
    expected = np.array([torchvisions(random, size) for _ in range(5000)])
    for name, values in measures(drawn, size).items():
        assert stats.ks_2samp(values, measures(expected, size)[name], method="asymp").pvalue > 0.01, name
    assert abs((drawn[:, 2:] == size).all(axis=1).mean() - (expected[:, 2:] == size).all(axis=1).mean()) < 0.01


@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((1000, 10), [493, 0, 13, 10]),
        ((10, 1000), [0, 493, 10, 13]),
        ((1, 1), [0, 0, 1, 1]),
        ((30, 40), [0, 0, 30, 40]),
    ],
)
def test_where_no_draw_fits_a_window_is_torchvisions_middle(size: tuple[int, int], window: list[int]) -> None:
    windows = draw_windows(size, 20, Ranges((1.0, 1.0), (3 / 4, 4 / 3) if size != (30, 40) else (4 / 3, 4 / 3), 0.0))
    assert windows.tolist() == [window] * 20


@pytest.mark.parametrize("side", [3, 40, 700, 6000])
def test_random_windows_are_those_of_the_reference(side: int) -> None:
    """For images of any shape, any number of boxes, and ranges that can hardly be met or not at all."""
    random = np.random.default_rng(side)
    sizes, counts = random.integers(1, side, (48, 2)).astype(np.int32), random.integers(0, 4, 48)
    boxes = np.sort(random.random((counts.sum(), 2, 2)), axis=1).reshape(-1, 4).astype(np.float32)
    spans = np.stack([np.cumsum(counts) - counts, np.cumsum(counts)], axis=1)
    ranges = [
        PLAIN,
        Ranges((0.3, 0.31), (0.2, 5), 0.6),
        Ranges((1, 1), (1, 1), 0.1),
        Ranges((0.001, 0.9), (0.01, 300), 1),
        Ranges((1e-9, 1e-9), (0.1, 0.1), 0),
    ]
    seeds, images = random.integers(-(2**63), 2**63 - 1, (48, 5, 2)), random.integers(0, 48, 48)
    of_crops = Candidates(tf.constant(boxes), tf.constant(spans), tf.constant(images))
    drawn = random_windows(tf.constant(sizes), of_crops, tf.constant(seeds), ranges).numpy()
    for crop, image in enumerate(images):
        own = boxes[slice(*spans[crop])]
        expected = [random_window(seeds[crop, view], sizes[image], own, how) for view, how in enumerate(ranges)]
        assert drawn[crop].tolist() == expected
    assert len(np.unique(drawn.reshape(-1, 4), axis=0)) > min(side, 8)
    assert (drawn[..., 2:] >= 1).all() and (drawn[..., :2] >= 0).all()
    assert (drawn[..., :2] + drawn[..., 2:] <= sizes[images][:, None]).all()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"boxes": [[0, 0, 1.5, 1]]}, "the edge of a box is not within [0, 1]"),
        ({"boxes": [[0, 0, np.nan, 1]]}, "the edge of a box is not within [0, 1]"),
        ({"spans": [[0, 2]]}, "spans are not within the boxes"),
        ({"spans": [[1, 0]]}, "spans are not within the boxes"),
        ({"images": [1]}, "images are not within [0, n)"),
        ({"seeds": [[[0, 0], [0, 0]]]}, "seeds are not [k, ranges, 2]"),
        ({"ranges": [[1, 1, 1]]}, "ranges have another layout"),
    ],
)
def test_inputs_that_do_not_fit_are_an_error(change: dict, problem: str) -> None:
    inputs = {"sizes": [[5, 5]], "boxes": [[0, 0, 1, 1]], "spans": [[0, 1]], "images": [0], "seeds": [[[0, 0]]]}
    inputs |= {"ranges": [[1, 1, 1, 1, 0, 0, 0]]} | change
    types = {"sizes": tf.int32, "boxes": tf.float32, "ranges": tf.float64}
    tensors = {name: tf.constant(value, types.get(name, tf.int64)) for name, value in inputs.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(problem)):
        native().windows(**tensors)


def test_flips_about_half_and_the_same_for_the_same_seed() -> None:
    seeds = tf.stack([tf.zeros([400], tf.int64), tf.range(400, dtype=tf.int64)], 1)
    flips = draw_flips(seeds).numpy()
    assert flips.dtype == bool and 160 < flips.sum() < 240
    assert (draw_flips(seeds).numpy() == flips).all()
    assert (draw_flips(seeds + tf.constant([1, 0], tf.int64)).numpy() != flips).sum() > 100
