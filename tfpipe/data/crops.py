"""Which crops an image gives: from its annotated objects to windows and labels."""

from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.annotations import Objects
from tfpipe.data.catalog import WHOLE_IMAGE, Catalog
from tfpipe.data.images import box_windows, center_window, full_window, random_window

# No image has more crops; keeps the seeds of two images' crops apart.
MAX_CROPS = 2**16


class Targets(NamedTuple):
    """What may be cropped from an image."""

    boxes: tf.Tensor  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: tf.Tensor  # int32 [k]


class KnownTargets:
    """The boxes of a catalog that knows them: of each image, or each a target of its own."""

    def __init__(self, catalog: Catalog) -> None:
        with tf.device("CPU"):  # where tf.data runs
            self._boxes, self._labels = tf.constant(catalog.boxes.boxes), tf.constant(catalog.boxes.labels)
            self._offsets = None if catalog.by_box else tf.constant(catalog.boxes.offsets(len(catalog)))

    def at(self, sample: tf.Tensor) -> Targets:
        """The targets of `sample`, an int64 scalar: a box or an image."""
        first, end = sample, sample + 1
        if self._offsets is not None:
            first, end = tf.gather(self._offsets, first), tf.gather(self._offsets, end)
        return Targets(self._boxes[first:end], self._labels[first:end])


def find_targets(objects: Objects, label: tf.Tensor, size: tf.Tensor, catalog: Catalog) -> Targets:
    """The objects' boxes, relative to the annotated size (the image may have another), and their labels.

    Swapped edges are swapped back, boxes clamped to the image, empty ones dropped. Where each object has its own
    label, objects of no known class are dropped, and there may be none left. Where the image has one, objects that
    are of a different known class are dropped, and with none left the whole image is the target.

    Args:
        objects: what the XML says.
        label: int32 scalar of the image.
        size: int32 [2], the image's real height and width; used where the XML does not state them.
        catalog: says how images are labelled, and the classes.
    """
    stated = tf.reduce_all(objects.size > 0)
    size = tf.where(stated, objects.size, tf.cast(size, tf.float32))
    low = tf.clip_by_value(tf.minimum(objects.boxes[:, :2], objects.boxes[:, 2:]), 0.0, size)
    high = tf.clip_by_value(tf.maximum(objects.boxes[:, :2], objects.boxes[:, 2:]), 0.0, size)
    boxes = tf.concat([low / size, high / size], axis=1)
    has_area = tf.reduce_all(high > low, axis=1)

    is_class = tf.equal(objects.names[:, None], tf.constant(catalog.classes)[None, :])
    known = tf.reduce_any(is_class, axis=1)
    numbers = tf.argmax(is_class, axis=1, output_type=tf.int32)
    if catalog.by_object:
        kept = has_area & known
        return Targets(tf.boolean_mask(boxes, kept), tf.boolean_mask(numbers, kept))
    boxes = tf.boolean_mask(boxes, has_area & (~known | tf.equal(numbers, label)))
    missing = tf.cast(tf.equal(tf.shape(boxes)[0], 0), tf.int32)
    boxes = tf.concat([boxes, tf.repeat(WHOLE_IMAGE, missing, axis=0)], axis=0)
    return Targets(boxes, tf.fill(tf.shape(boxes)[:1], label))


def choose_windows(
    targets: Targets, size: tf.Tensor, position: tf.Tensor, config: DataConfig, catalog: Catalog
) -> tuple[tf.Tensor, tf.Tensor]:
    """int32 [k, 4] windows and int32 [k] labels of an image's crops, as `data.crop` or `data.test_crop` says.

    Args:
        targets: what may be cropped.
        size: int32 [2], the image's height and width.
        position: int64 scalar, the stream position; seeds what is random.
        config: how to crop.
        catalog: of the split.
    """
    kind = config.crop_for(catalog.split)
    if kind == "boxes":
        return box_windows(targets.boxes, size), targets.labels
    if kind == "center":
        return center_window(size, config.crop_image_size, config.center_fraction)[None], targets.labels[:1]
    if kind == "full":
        return full_window(size)[None], targets.labels[:1]

    def draw(boxes: tf.Tensor, crop: tf.Tensor | int) -> tf.Tensor:
        return random_window(size, boxes, crop_seeds(2 * config.seed, position, crop), config.random_resized)

    if not catalog.by_object:
        return draw(targets.boxes, 0)[None], targets.labels[:1]
    crops = tf.range(tf.shape(targets.boxes)[0])
    windows = tf.map_fn(lambda crop: draw(targets.boxes[crop][None], crop), crops, fn_output_signature=tf.int32)
    return windows, targets.labels


def crop_seeds(seed: int, position: tf.Tensor, crops: tf.Tensor | int) -> tf.Tensor:
    """int64 [..., 2]: a seed for each of an image's crops (an int or int32 [...]) at a stream position."""
    second = position * MAX_CROPS + tf.cast(crops, tf.int64)
    return tf.stack([tf.fill(tf.shape(second), tf.constant(seed, tf.int64)), second], axis=-1)
