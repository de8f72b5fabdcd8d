"""Boxes of images, moved with their crops: cut out, scaled, mirrored, clipped and left out, in graph."""

from typing import NamedTuple

import tensorflow as tf

# Share of an image's side by which float32 may have moved an edge, so that a box next to a window seems to be in it.
ROUNDED = 2.0**-23


class Frame(NamedTuple):
    """The places that k crops come from."""

    size: tf.Tensor  # int32 [k, 2]: height and width of the image
    window: tf.Tensor  # int32 [k, 4]: top, left, height, width of the window
    flip: tf.Tensor  # bool [k]: whether the crop is mirrored


def moved_boxes(
    boxes: tf.Tensor, frames: Frame, inner: tf.Tensor, crop: tuple[int, int], min_visible: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns boxes in pixels of their crops, float32 [k, 4]: xmin, ymin, xmax, ymax; and bool [k]: those to keep.

    Kept are boxes of which a part is in the crop, beyond what rounding may add, and no less than the share
    `min_visible` of their area.

    Args:
        boxes: float32 [k, 4] relative to the image: ymin, xmin, ymax, xmax in [0, 1].
        frames: the frame of each box's crop.
        inner: int32 [k, 4], the place in the crop that the window is resized to: top, left, height, width.
        crop: height and width of a crop.
        min_visible: share in [0, 1].
    """
    # In float64: a box of an image of 10,000 pixels keeps a ten thousandth of a pixel.
    size, window, place = (tf.cast(each, tf.float64) for each in (frames.size, frames.window, inner))
    edges = tf.cast(boxes, tf.float64) * tf.tile(size, [1, 2])
    scale = place[:, 2:] / window[:, 2:]
    start, width = tf.tile(place[:, :2], [1, 2]), crop[1]
    moved = (edges - tf.tile(window[:, :2], [1, 2])) * tf.tile(scale, [1, 2])
    ends = tf.minimum(place[:, 2:], tf.constant(crop, tf.float64) - place[:, :2])
    inside = tf.clip_by_value(moved, tf.maximum(-start, 0), tf.tile(ends, [1, 2]))
    area, visible = _area(moved), _area(inside)
    top, left, bottom, right = tf.unstack(inside + start, axis=1)
    left, right = tf.where(frames.flip, width - right, left), tf.where(frames.flip, width - left, right)
    shares = (inside[:, 2:] - inside[:, :2]) / (scale * size)
    kept = tf.reduce_all(shares > ROUNDED, 1) & (visible >= min_visible * area)
    return tf.cast(tf.stack([left, top, right, bottom], axis=1), tf.float32), kept


def _area(edges: tf.Tensor) -> tf.Tensor:
    return (edges[:, 2] - edges[:, 0]) * (edges[:, 3] - edges[:, 1])
