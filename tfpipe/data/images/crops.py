"""Chooses the crops of images: from annotated objects to windows and labels.

All functions take n images at once: that costs little more than one image, since a graph's cost is per op.
"""

from typing import NamedTuple, Protocol, TypeVar

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.windows import box_windows, center_windows, full_windows, random_window

# Upper bound of crops per image; keeps the seeds of two images' crops apart.
MAX_CROPS = 2**16


class OfImages(Protocol):
    """A NamedTuple of tensors [k, ...] that include these two."""

    @property
    def images(self) -> tf.Tensor:
        """int64 [k]: number of the image, ascending."""

    @property
    def numbers(self) -> tf.Tensor:
        """int64 [k]: number of the crop in its image."""


T = TypeVar("T", bound=OfImages)


class Targets(NamedTuple):
    """The boxes that may be cropped from n images, one image after the other."""

    images: tf.Tensor  # int64 [k]: number of the image, ascending
    boxes: tf.Tensor  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: tf.Tensor  # int32 [k]


class Windows(NamedTuple):
    """The windows that are cropped from n images, one image after the other."""

    images: tf.Tensor  # int64 [k]: number of the image, ascending
    numbers: tf.Tensor  # int64 [k]: number of the crop in its image
    windows: tf.Tensor  # int32 [k, 4]: top, left, height, width
    labels: tf.Tensor  # int32 [k]


class Crops(NamedTuple):
    """The crops of one dataset element: those of one decoder call at first, a batch after rebatching."""

    images: tf.Tensor  # uint8 [k, height, width, channels]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number of the crop in its image


def choose_windows(
    targets: Targets, sizes: tf.Tensor, positions: tf.Tensor, config: DataConfig, split: str, by_object: bool
) -> Windows:
    """Returns the windows of the images' crops, as `data.crop` or `data.test_crop` sets them.

    `sizes` (int32 [n, 2]) are the heights and widths of n images; `positions` (int64 [n]), their stream positions, seed
    random windows. With `by_object`, objects, not images, have labels.
    """
    kind = config.crop_for(split)
    first = tf.searchsorted(targets.images, tf.range(tf.size(positions, tf.int64)), out_type=tf.int64)
    if kind == "boxes" or (kind == "random_resized" and by_object):
        images, labels = targets.images, targets.labels
        numbers = tf.range(tf.size(images, tf.int64)) - tf.gather(first, images)
    else:
        images, labels = tf.range(tf.size(positions, tf.int64)), tf.gather(targets.labels, first)
        numbers = tf.zeros_like(images)

    def draw(crop: tf.Tensor) -> tf.Tensor:
        image = images[crop]
        boxes = targets.boxes[crop : crop + 1] if by_object else targets.boxes[first[image] : ends[image]]
        seed = crop_seeds(2 * config.seed, positions[image], numbers[crop])
        return random_window(sizes[image], boxes, seed, config.random_resized)

    if kind == "boxes":
        windows = box_windows(targets.boxes, tf.gather(sizes, images))
    elif kind == "center":
        windows = center_windows(sizes, config.crop_image_size, config.center_fraction)
    elif kind == "full":
        windows = full_windows(sizes)
    else:
        ends = tf.concat([first[1:], tf.shape(targets.images, tf.int64)], axis=0)
        crops = tf.range(tf.size(images))
        # For a single crop, the loop of map_fn would cost more than the draw.
        alone = sizes.shape[0] == 1 and not by_object
        windows = draw(crops[0])[None] if alone else tf.map_fn(draw, crops, fn_output_signature=tf.int32)
    return Windows(images, numbers, windows, labels)


def from_first(crops: T, first: tf.Tensor) -> T:
    """Drops the crops whose number is below their image's `first`.

    `crops`, e.g. Windows, are those of n images; `first` is int64 [n].
    """
    wanted = crops.numbers >= tf.gather(first, crops.images)
    # A mask copies all crops, and drops some only when a run resumes in the middle of an image.
    return tf.cond(
        tf.reduce_all(wanted),
        lambda: crops,
        lambda: tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, wanted), crops),
    )


def crop_seeds(seed: int, positions: tf.Tensor, crops: tf.Tensor) -> tf.Tensor:
    """Returns a seed for each crop (int64 [..., 2]) from its image's stream position and its number (int64 [...])."""
    second = positions * MAX_CROPS + crops
    return tf.stack([tf.fill(tf.shape(second), tf.constant(seed, tf.int64)), second], axis=-1)
