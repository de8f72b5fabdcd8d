"""Chooses the crops of images: from annotated objects to windows and labels.

All functions take n images at once: that costs little more than one image, since a graph's cost is per op.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig, RandomResizedCrop
from tfpipe.data.images.windows import Candidates, Ranges, box_windows, full_windows, random_windows

# Upper bound of crops per image; keeps the seeds of two images' crops apart.
MAX_CROPS = 2**16
# Smallest share of an object that a random crop with its label covers, unless the config sets another.
OBJECT_COVERED = 0.1
# A span of crops, int64 [2], is the first of them and their end, or this.
ALL = np.zeros(0, np.int64)


class Targets(NamedTuple):
    """The boxes that may be cropped from n images, one image after the other."""

    images: tf.Tensor  # int64 [k]: number of the image, ascending
    boxes: tf.Tensor  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: tf.Tensor  # int32 [k]


class Windows(NamedTuple):
    """The windows that are cropped from n images, one image after the other."""

    images: tf.Tensor  # int64 [k]: number of the image, ascending
    numbers: tf.Tensor  # int64 [k]: number of the crop in its image
    windows: tf.Tensor  # int32 [k, 4]: top, left, height, width; with `data.views` [k, views, 4]
    labels: tf.Tensor  # int32 [k]


class Origin(NamedTuple):
    """The images of k crops, and what else `data.targets` need of them until they are in batches."""

    item: tf.Tensor  # int64 [k]: number of the image
    frame: Any = ()  # targets.boxes.Frame, if there are boxes to move
    mask: Any = ()  # uint8 [k, height, width], if there are masks


class Crops(NamedTuple):
    """The crops of one dataset element: those of one decoder call at first, a batch after rebatching."""

    images: Any  # uint8 [k, height, width, channels]; with `data.views` a tuple of these, by view
    labels: Any  # int32 [k]; after the stage `target` what `data.targets` set
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number of the crop in its image
    origin: Any = ()  # Origin, where `data.targets` need one


def choose_windows(
    targets: Targets, sizes: tf.Tensor, positions: tf.Tensor, config: DataConfig, split: str, by_object: bool
) -> Windows:
    """Returns the windows of the images' crops, as `data.crop`, `data.views` or `data.test_crop` sets them.

    `sizes` (int32 [n, 2]) are the heights and widths of n images; `positions` (int64 [n]), their stream positions, seed
    random windows. With `by_object`, objects, not images, have crops and labels. An image without any box has the label
    0, which other `data.targets` replace.
    """
    views = config.by_view
    kind = views[0].crop_for(split)
    first = tf.searchsorted(targets.images, tf.range(tf.size(positions, tf.int64)), out_type=tf.int64)
    if kind == "boxes" or (kind == "random_resized" and by_object):
        images, labels = targets.images, targets.labels
        numbers = tf.range(tf.size(images, tf.int64)) - tf.gather(first, images)
    else:
        images = tf.range(tf.size(positions, tf.int64))
        labels = tf.gather(tf.concat([targets.labels, [0]], 0), first)
        numbers = tf.zeros_like(images)

    random = [view for view in views if view.crop_for(split) == "random_resized"]

    if random:
        at = tf.gather(positions, images), numbers
        seeds = tf.stack([crop_seeds(2 * view.seed, *at) for view in random], axis=1)
        ends = tf.concat([first[1:], tf.shape(targets.images, tf.int64)], axis=0)
        crops = tf.range(tf.size(images, tf.int64))
        spans = (crops, crops + 1) if by_object else (tf.gather(first, images), tf.gather(ends, images))
        boxes = Candidates(targets.boxes, tf.stack(spans, axis=1), images)
        ranges = [_ranges(view.random_resized, by_object) for view in random]
        random_views = iter(tf.unstack(random_windows(sizes, boxes, seeds, ranges), len(random), axis=1))

    def windows_of(view: DataConfig) -> tf.Tensor:
        match view.crop_for(split):
            case "boxes":
                return box_windows(targets.boxes, tf.gather(sizes, images))
            case "center" | "full":
                return full_windows(sizes)
        return next(random_views)

    by_view = [windows_of(view) for view in views]
    return Windows(images, numbers, tf.stack(by_view, axis=1) if config.views else by_view[0], labels)


def _ranges(settings: RandomResizedCrop, by_object: bool) -> Ranges:
    covered = (OBJECT_COVERED if by_object else 0.0) if settings.min_covered is None else settings.min_covered
    return Ranges(settings.area, settings.aspect, covered)


def from_first(windows: Windows, first: tf.Tensor) -> Windows:
    """Drops the windows of crops whose number is below their image's `first` (int64 [n])."""
    wanted = windows.numbers >= tf.gather(first, windows.images)
    # A mask copies all crops, and drops some only when a run resumes in the middle of an image.
    return tf.cond(
        tf.reduce_all(wanted),
        lambda: windows,
        lambda: tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, wanted), windows),
    )


def crop_seeds(seed: int, positions: tf.Tensor, crops: tf.Tensor) -> tf.Tensor:
    """Returns a seed for each crop (int64 [..., 2]) from its image's stream position and its number (int64 [...])."""
    second = positions * MAX_CROPS + crops
    return tf.stack([tf.fill(tf.shape(second), tf.constant(seed, tf.int64)), second], axis=-1)
