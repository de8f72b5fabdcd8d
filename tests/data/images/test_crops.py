"""Crops: which objects of an image count, and which windows they give."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.targets import (
    BOX,
    CLASSES,
    DIRECTORY,
    LABEL,
    OBJECT,
    REAL,
    RELATIVE,
    WHOLE,
    catalog_of,
    data_config,
    targets_of,
)
from tfpipe.config import DataConfig, RandomResizedCrop
from tfpipe.data.annotations.objects import MIN_MAGNITUDE, TOLERANCE
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.crops import MAX_CROPS, OBJECT_COVERED, Targets, choose_windows, crop_seeds

# ---- targets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "boxes"),
    [
        pytest.param([("", BOX), ("n2", BOX), ("n02 ", BOX)], [RELATIVE] * 3, id="names-alike-are-unknown"),
        pytest.param([("n02", (5, 5, 5, 9))], WHOLE, id="only-empty"),
        pytest.param([("n02", (5, 5, 5, 9)), ("n02", BOX), ("n02", (5, 9, 8, 9))], [RELATIVE], id="empty-dropped"),
        pytest.param([("n02", (-500, -9, -3, 40))], WHOLE, id="only-outside"),
        pytest.param([("n02", (0, 200, 50, 250)), ("n02", (100, 0, 101, 9))], WHOLE, id="beyond-the-far-edges"),
    ],
)  # fmt: skip
def test_an_image_with_a_label_gives_its_own_objects_or_else_the_whole(objects, boxes):
    assert targets_of(objects) == (boxes, [LABEL] * len(boxes))


# The reader takes numbers below MIN_MAGNITUDE as 0.
EDGE = st.one_of(
    st.integers(-50, 350), st.floats(-50, 350, width=32).map(lambda edge: edge * (abs(edge) >= MIN_MAGNITUDE))
)
THINGS = st.lists(st.tuples(st.sampled_from([*CLASSES, "cow"]), st.tuples(EDGE, EDGE, EDGE, EDGE)), max_size=6)


@settings(max_examples=150)
@example([("n01", (0, 0, 0, 0)), ("n01", (0, 0, 0, 0.5))], False, (100.0, 200.0))
@given(THINGS, st.booleans(), st.sampled_from([(100.0, 200.0), (333.0, 250.0), (0.0, 250.0)]))
def test_targets_are_what_they_are_defined_to_be(things, by_object, stated):
    height, width = stated if all(stated) else REAL
    expected = []
    for name, (y1, x1, y2, x2) in things:
        top, bottom = (min(max(edge, 0), height) for edge in sorted((y1, y2)))
        left, right = (min(max(edge, 0), width) for edge in sorted((x1, x2)))
        wanted = name in CLASSES if by_object else name in (CLASSES[LABEL], "cow")
        if bottom > top and right > left and wanted:
            number = CLASSES.index(name) if by_object else LABEL
            expected.append(([top / height, left / width, bottom / height, right / width], number))
    if not by_object and not expected:
        expected = [(WHOLE[0], LABEL)]
    edges = [edge for _, box in things for edge in box]
    if (
        edges
        and min(edges) >= -TOLERANCE
        and max(edges) <= 1 + TOLERANCE
        and any(edge != round(edge) for edge in edges)
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="all boxes are from 0 to 1"):
            targets_of(things, by_object, stated=stated)
        return
    boxes, labels = targets_of(things, by_object, stated=stated)
    assert labels == [number for _, number in expected]
    np.testing.assert_allclose(np.reshape(boxes, [-1, 4]), np.reshape([box for box, _ in expected], [-1, 4]), atol=1e-6)
    assert all(0 <= value <= 1 for box in boxes for value in box)


# ---- windows ---------------------------------------------------------------------------------------------------

SIZE = (128, 256)
BOXES = [[0.25, 0.5, 0.5, 0.75], [0.0, 0.0, 0.125, 0.0625], [0.5, 0.5, 1.0, 1.0]]


def chooser(config: DataConfig, catalog: Catalog):
    """choose_windows, traced once: (boxes, labels, size, position) -> windows and labels, as lists.

    Crops of the image between two others of the same boxes; and of the image alone, which must be the same.
    """
    graphs = {
        count: tf.function(
            lambda targets, sizes, positions: choose_windows(
                targets, sizes, positions, config, catalog.split, catalog.by_object
            ),
            input_signature=[
                Targets(
                    tf.TensorSpec([None], tf.int64),
                    tf.TensorSpec([None, 4], tf.float32),
                    tf.TensorSpec([None], tf.int32),
                ),
                tf.TensorSpec([count, 2], tf.int32),
                tf.TensorSpec([count], tf.int64),
            ],
        )
        for count in (1, None)
    }

    def choose(boxes, labels, size=SIZE, position=0) -> tuple[list[list[int]], list[int]]:
        boxes = np.array(boxes, np.float32).reshape(-1, 4)
        together = Targets(
            tf.constant(np.repeat(np.arange(3), len(labels))),
            tf.constant(np.tile(boxes, (3, 1))),
            tf.constant(labels * 3, tf.int32),
        )
        alone = Targets(tf.zeros(len(labels), tf.int64), tf.constant(boxes), tf.constant(labels, tf.int32))
        sizes = tf.constant([(size[0] + 9, size[1] + 7), size, (50, 70)])
        positions = tf.constant([position + 1, position, position + 2], tf.int64)
        images, numbers, windows, labels = graphs[None](together, sizes, positions)
        ours = images.numpy() == 1
        others = graphs[1](alone, sizes[1:2], positions[1:2])
        for one, other in zip((numbers, windows, labels), others[1:], strict=True):
            np.testing.assert_array_equal(one.numpy()[ours], other)
        windows, labels = windows[ours], labels[ours]
        assert (images.dtype, windows.dtype, labels.dtype) == (tf.int64, tf.int32, tf.int32)
        assert windows.shape == [len(labels), 4] and numbers.numpy()[ours].tolist() == list(range(len(labels)))
        for top, left, height, width in windows.numpy():
            assert top >= 0 and left >= 0 and height >= 1 and width >= 1
            assert top + height <= size[0] and left + width <= size[1]
        return windows.numpy().tolist(), labels.numpy().tolist()

    return choose


def covered(window: list[int], box: list[float], size: tuple[int, int] = SIZE) -> float:
    """The share of `box` that `window` covers."""
    top, left, height, width = window
    y1, x1, y2, x2 = np.array(box) * [*size, *size]
    inside = max(0, min(top + height, y2) - max(top, y1)) * max(0, min(left + width, x2) - max(left, x1))
    return inside / ((y2 - y1) * (x2 - x1))


@pytest.mark.parametrize(
    ("box", "window"),
    [
        (RELATIVE, [32, 64, 64, 128]),
        (WHOLE[0], [0, 0, 128, 256]),
        ([0.5, 0.5, 1.0, 1.0], [64, 128, 64, 128]),
        ([0.5, 0.5, 0.5001, 0.5001], [64, 128, 1, 1]),  # at least one pixel
        ([0.999, 0.999, 1.0, 1.0], [127, 255, 1, 1]),
        ([10.4 / 128, 20.6 / 256, 30.6 / 128, 40.4 / 256], [10, 21, 21, 19]),  # to the nearest pixel
    ],
)
def test_crops_of_boxes_are_the_boxes_in_pixels(box, window):
    choose = chooser(data_config(), DIRECTORY)
    assert choose([box, WHOLE[0]], [1, 1]) == ([window, [0, 0, 128, 256]], [1, 1])


def test_without_an_object_there_is_no_crop_where_objects_have_the_labels():
    for crop in ("boxes", "random_resized"):
        assert chooser(data_config(label_source="object", crop=crop), OBJECT)([], []) == ([], [])


@pytest.mark.parametrize("crop", ["full", "center"])
def test_the_full_or_center_crop_is_of_the_whole_image_once(crop):
    assert chooser(data_config(crop=crop), DIRECTORY)(BOXES, [2, 2, 2]) == ([[0, 0, 128, 256]], [2])


def test_the_test_split_is_cropped_as_test_crop_says():
    config = data_config(crop="random_resized", test_crop="full")
    assert chooser(config, catalog_of([1], split="test"))(BOXES, [2, 2, 2]) == ([[0, 0, 128, 256]], [2])
    assert chooser(config, DIRECTORY)(BOXES, [2, 2, 2])[0] != [[0, 0, 128, 256]]


RANDOM = RandomResizedCrop(area=(0.08, 0.4))
POSITIONS = range(60)


@pytest.fixture(scope="module")
def random_crop():
    return chooser(data_config(crop="random_resized", random_resized=RANDOM), DIRECTORY)


@pytest.fixture(scope="module")
def random_crop_per_object():
    config = data_config(crop="random_resized", random_resized=RANDOM, label_source="object")
    return chooser(config, OBJECT)


def test_a_position_always_gives_the_same_random_window_and_others_give_others(random_crop):
    first = [random_crop(BOXES, [1, 1, 1], position=position)[0][0] for position in POSITIONS]
    again = [random_crop(BOXES, [1, 1, 1], position=position)[0][0] for position in reversed(POSITIONS)]
    assert first == again[::-1]
    assert len({tuple(window) for window in first}) > 0.9 * len(POSITIONS)
    # In another run, and another program, too.
    fresh = chooser(data_config(crop="random_resized", random_resized=RANDOM), DIRECTORY)
    assert fresh(BOXES, [1, 1, 1], position=7)[0][0] == first[7]


def test_a_random_window_is_one_per_image_within_its_ranges(random_crop):
    for position in POSITIONS:
        windows, labels = random_crop(BOXES, [1, 1, 1], position=position)
        assert labels == [1]
        ((_, _, height, width),) = windows
        assert 0.9 * 0.08 < height * width / (128 * 256) < 1.1 * 0.4
        assert 0.9 * 3 / 4 < width / height < 1.1 * 4 / 3


@pytest.mark.parametrize("min_covered", [0.1, 0.7, 1.0])
@pytest.mark.parametrize("boxes", [BOXES[:1], BOXES], ids=["one", "several"])
def test_a_random_window_covers_enough_of_a_box(min_covered, boxes):
    how = RandomResizedCrop(area=(0.08, 0.4), min_covered=min_covered)
    choose = chooser(data_config(crop="random_resized", random_resized=how), DIRECTORY)
    small = 0
    for position in POSITIONS:
        ((window,), _) = choose(boxes, [1] * len(boxes), position=position)
        assert max(covered(window, box) for box in boxes) >= min_covered - 1e-6
        small += window[2:] != list(SIZE)
    assert small > 0.9 * len(POSITIONS)  # the whole image would cover every box


def test_random_windows_of_objects_cover_each_its_own_and_keep_its_label(random_crop_per_object):
    per_object = [set() for _ in BOXES]
    for position in POSITIONS:
        windows, labels = random_crop_per_object(BOXES, [2, 0, 1], position=position)
        assert labels == [2, 0, 1]
        for window, box, seen in zip(windows, BOXES, per_object, strict=True):
            assert covered(window, box) >= OBJECT_COVERED - 1e-6
            seen.add(tuple(window))
    assert all(len(seen) > 0.9 * len(POSITIONS) for seen in per_object)


def test_objects_of_one_image_are_not_cropped_alike(random_crop_per_object):
    """The same box twice: the same draw would give the same window."""
    pairs = [random_crop_per_object([BOXES[0]] * 2, [0, 1], position=position)[0] for position in POSITIONS]
    assert sum(first == second for first, second in pairs) < 0.1 * len(pairs)


# ---- seeds -----------------------------------------------------------------------------------------------------

PLACES = st.tuples(st.integers(0, 99), st.integers(0, 2**46), st.integers(0, MAX_CROPS - 1))


@settings(max_examples=100)
@given(st.lists(PLACES, min_size=2, max_size=6, unique=True))
def test_every_seed_position_and_crop_has_a_seed_of_its_own(places):
    seeds = [crop_seeds(seed, *tf.constant([position, crop], tf.int64)).numpy() for seed, position, crop in places]
    assert all(seed.dtype == np.int64 and seed.shape == (2,) for seed in seeds)
    assert len({tuple(seed) for seed in seeds}) == len(places)


def test_neighbouring_positions_do_not_share_their_crops_seeds():
    seeds = [crop_seeds(3, tf.constant(position, tf.int64), tf.range(500, dtype=tf.int64)) for position in range(5)]
    seeds = [each.numpy() for each in seeds]
    assert len({tuple(seed) for rows in seeds for seed in rows}) == 2500
    for crop in (0, 499):
        np.testing.assert_array_equal(seeds[2][crop], crop_seeds(3, *tf.constant([2, crop], tf.int64)))
