"""Windows of images and where they go in their crops. No Python runs in graph.

Boxes are float32 [k, 4] (ymin, xmin, ymax, xmax); windows are int32 [k, 4] (top, left, height, width) in pixels. A
window lies inside its image and is at least one pixel high and wide.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.order.permutation import GAMMA, mix
from tfpipe.native import native

STRETCHED = -1


class Target(NamedTuple):
    """Crops of one size, which windows become."""

    size: tuple[int, int]
    """Height and width."""
    level: int = STRETCHED
    """Level of what a window leaves free that keeps its aspect ratio, see letterbox_windows; STRETCHED: none does."""
    cover: tuple[int, int] = (0, 0)
    """Height and width that a window covers, which keeps its aspect ratio, of which the crop is the middle; 0: none."""


def target_of(config: DataConfig, split: str) -> Target:
    """Returns what the windows of `split` ("train" or "test") become."""
    size, level = config.crop_image_size, config.letterbox_for(split)
    if config.crop_for(split) != "center":
        return Target(size, STRETCHED if level is None else level)
    # As timm's crop_pct; 224 of a share of 224 / 232 are of 232 pixels, also where the division gives a little less.
    height, width = (math.floor(side / config.center_fraction + 1e-9) for side in size)
    return Target(size, cover=(height, width))


def place_windows(sizes: tf.Tensor, target: Target) -> tf.Tensor:
    """Returns int32 [n, 4]: top, left, height and width of windows of `sizes` (int32 [n, 2]) in their crops.

    A window that covers goes beyond its crop.
    """
    if any(target.cover):
        return _covering(sizes, target)
    if target.level != STRETCHED:
        return letterbox_windows(sizes, target.size)
    return full_windows(tf.zeros_like(sizes) + tf.constant(target.size))


def _covering(sizes: tf.Tensor, target: Target) -> tf.Tensor:
    """Does what native/place.c does: torchvision's Resize of one side or timm's ResizeKeepRatio, then CenterCrop."""
    cover = tf.constant(target.cover, tf.float64)
    sides = tf.cast(sizes, tf.float64)
    whole = tf.round(sides / tf.reduce_min(sides / cover, axis=1, keepdims=True))
    if target.cover[0] == target.cover[1]:  # torchvision drops fractions of the longer side
        whole = tf.floor(target.cover[0] * sides / tf.reduce_min(sides, axis=1, keepdims=True))
    first = tf.round((whole - tf.constant(target.size, tf.float64)) / 2)
    return tf.cast(tf.concat([-first, whole], axis=1), tf.int32)


def letterbox_windows(sizes: tf.Tensor, target: tuple[int, int]) -> tf.Tensor:
    """Returns int32 [n, 4]: top, left, height and width of images in crops of `target`, by "letterbox".

    Images of `sizes` (int32 [n, 2]) are resized, with their aspect ratio, to the largest size that fits, and are in the
    middle. A side is rounded to the nearest pixel, halves up, and is at least 1. A mirrored crop is the mirror image of
    the whole crop: the image is then `target[1] - left - width` from its left.
    """
    height, width = tf.unstack(tf.constant(target, tf.int64))
    high, wide = tf.unstack(tf.cast(sizes, tf.int64), axis=1)
    tall = high * width >= wide * height
    rows = tf.where(tall, height, tf.maximum((2 * high * width + wide) // (2 * wide), 1))
    columns = tf.where(tall, tf.maximum((2 * wide * height + high) // (2 * high), 1), width)
    return tf.cast(tf.stack([(height - rows) // 2, (width - columns) // 2, rows, columns], axis=1), tf.int32)


def box_windows(boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns int32 [k, 4]: relative boxes (float32 [k, 4]) in images of `sizes` (int32 [k, 2]), in whole pixels."""
    scale = tf.cast(tf.tile(sizes, [1, 2]), tf.float32)
    edges = tf.cast(tf.round(boxes * scale), tf.int32)
    corners = tf.clip_by_value(edges[:, :2], 0, sizes - 1)
    return tf.concat([corners, tf.clip_by_value(edges[:, 2:] - corners, 1, sizes - corners)], axis=1)


def full_windows(sizes: tf.Tensor) -> tf.Tensor:
    """Returns int32 [n, 4]: windows that cover the whole of images of `sizes` (int32 [n, 2])."""
    return tf.concat([tf.zeros_like(sizes), sizes], axis=1)


class Candidates(NamedTuple):
    """The boxes of which random windows of k crops each cover a part."""

    boxes: tf.Tensor  # float32 [b, 4], relative
    spans: tf.Tensor  # int64 [k, 2]: first of each crop's boxes, and the end of these
    images: tf.Tensor  # int64 [k]: number of each crop's image


class Ranges(NamedTuple):
    """The areas and aspect ratios that random windows are drawn from."""

    area: tuple[float, float]
    aspect: tuple[float, float]
    covered: float
    """Smallest share of one of the boxes that a window covers; 0: it covers none of them in particular."""


def random_windows(sizes: tf.Tensor, boxes: Candidates, seeds: tf.Tensor, ranges: Sequence[Ranges]) -> tf.Tensor:
    """Returns int32 [k, m, 4]: m random windows of each crop, drawn as torchvision's RandomResizedCrop draws them.

    A window that has to cover a part of a box is drawn until it does (native/sample.c). If 10 draws do not fit into the
    image, or 100 do not fit and cover, it is the middle of the image, as far as the aspect ratios allow; if that does
    not cover, the whole image.

    Args:
        sizes: int32 [n, 2], heights and widths of the images.
        boxes: those to cover; of a crop without boxes, the whole image is the box.
        seeds: int64 [k, m, 2]; the same seed gives the same window.
        ranges: [m], what each of the windows is drawn from.
    """
    rows = [(*each.area, *each.aspect, *map(math.log, each.aspect), each.covered) for each in ranges]
    drawn = native().windows(sizes, boxes.boxes, boxes.spans, boxes.images, seeds, tf.constant(rows, tf.float64))
    return tf.ensure_shape(drawn, [None, len(ranges), 4])


def draw_flips(seeds: tf.Tensor) -> tf.Tensor:
    """Returns bool [k]: which crops to mirror, given their seeds (int64 [k, 2]); true for about half of them."""
    first, second = tf.unstack(tf.cast(seeds, tf.uint64), axis=-1)
    hashes = mix(mix(first + GAMMA) + GAMMA * second)
    return tf.cast(hashes, tf.int64) < 0  # the top bit
