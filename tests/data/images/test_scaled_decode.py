"""Decoding at a part of the size: how small an image may be decoded, and where its windows then are."""

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.data.images.scaled_decode import choose_scale, scaled_windows

sides = st.integers(1, 5000)
targets = st.tuples(st.integers(1, 300), st.integers(1, 300))


def chosen(windows: list[list[int]], images: list[int], target: tuple[int, int]) -> list[int]:
    return choose_scale(tf.constant(windows, tf.int32, [len(windows), 4]), tf.constant(images, tf.int64), target)


@given(targets, st.integers(0, 3), st.integers(0, 300), st.booleans())
def test_a_side_one_pixel_short_takes_a_halving_less(
    target: tuple[int, int], times: int, more: int, short_height: bool
) -> None:
    exact = [side << times for side in target]
    longer = [exact[0] + more, exact[1]] if short_height else [exact[0], exact[1] + more]
    longer = [min(side, (wanted << 4) - 1) for side, wanted in zip(longer, target, strict=True)]
    short = [exact[0] - 1, exact[1]] if short_height else [exact[0], exact[1] - 1]
    windows = [[3, 5, *exact], [0, 0, *longer], [0, 0, *short], [0, 0, *(8 * side + more for side in target)]]
    assert list(chosen(windows, [0, 1, 2, 3], target)) == [times, times, max(0, times - 1), 3]


@given(targets, st.lists(st.tuples(sides, sides), min_size=1, max_size=6))
def test_no_window_comes_out_smaller_than_its_crop_and_one_halving_more_would_make_one(
    target: tuple[int, int], shapes: list[tuple[int, int]]
) -> None:
    times = chosen([[0, 0, *shape] for shape in shapes], [7] * len(shapes), target).numpy()
    assert (times == times[0]).all()
    least = min(side / wanted for shape in shapes for side, wanted in zip(shape, target, strict=True))
    assert times[0] == 0 or least >= 2 ** times[0]
    assert times[0] == 3 or least < 2 ** (times[0] + 1)


def test_images_that_share_a_call_do_not_count_for_each_other() -> None:
    windows = [[0, 0, 80, 80], [0, 0, 41, 500], [0, 0, 9, 9], [0, 0, 21, 20]]
    assert list(chosen(windows, [0, 2, 5, 5], (10, 10))) == [3, 2, 0, 0]
    assert list(chosen(windows[:1], [0], (10, 10))) == [3]
    assert list(chosen([], [], (10, 10))) == []


@given(st.integers(0, 3), st.data())
def test_a_halved_window_lies_in_the_halved_image_half_a_pixel_off_at_most(times: int, data: st.DataObject) -> None:
    size = np.array(data.draw(st.tuples(sides, sides)))
    low = np.array([data.draw(st.integers(0, int(side) - 1)) for side in size])
    sides_of = np.array([data.draw(st.integers(1, int(side - at))) for side, at in zip(size, low, strict=True)])
    window = scaled_windows(tf.constant([[*low, *sides_of]], tf.int32), tf.constant(times)).numpy()[0]
    scale = 2**times
    assert (np.abs(window[:2] - low / scale) <= 0.5).all()
    assert (np.abs(window[:2] + window[2:] - (low + sides_of) / scale) <= 0.5).all()
    assert (window[:2] >= 0).all() and (window[:2] + window[2:] <= -(-size // scale)).all()
    # So a window that choose_scale lets be halved is never smaller than its crop.
    assert (window[2:] >= sides_of // scale).all()


def test_a_whole_image_stays_whole() -> None:
    windows = tf.constant([[0, 0, 375, 500], [10, 20, 30, 40]])
    assert scaled_windows(windows, tf.constant([1, 0])).numpy().tolist() == [[0, 0, 188, 250], [10, 20, 30, 40]]
