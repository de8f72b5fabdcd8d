"""Chooses the crops of images: from annotated objects to windows and labels.

All functions take n images at once: that costs little more than one image, since a graph's cost is per op.
"""

from typing import NamedTuple, Protocol, TypeVar

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.annotations import Objects
from tfpipe.data.catalog import WHOLE_IMAGE, Catalog
from tfpipe.data.images import box_windows, center_windows, full_windows, random_window
from tfpipe.data.scale import choose_halvings

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
    halvings: tf.Tensor  # int32 [k]: how often decoding halves the image's sides; `windows` are in full-size pixels


class Crops(NamedTuple):
    """The crops of one dataset element: those of one decoder call at first, a batch after rebatching."""

    images: tf.Tensor  # uint8 [k, height, width, channels]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number of the crop in its image


class KnownTargets:
    """The boxes of a catalog that knows them, looked up in graph, by image or, if boxes are samples, by box."""

    def __init__(self, catalog: Catalog) -> None:
        boxes = catalog.boxes
        assert boxes is not None, "the catalog knows its boxes"
        # Eager tensors on the CPU, where tf.data runs: a graph under construction then holds them by reference.
        with tf.init_scope(), tf.device("CPU"):
            self._boxes, self._labels = tf.constant(boxes.boxes), tf.constant(boxes.labels)
            self._offsets = None if catalog.by_box else tf.constant(boxes.offsets(len(catalog)))

    def at(self, samples: tf.Tensor) -> Targets:
        """Returns the targets of `samples` (int64 [n]), which are boxes or images."""
        if self._offsets is None:
            images, chosen = tf.range(tf.size(samples, tf.int64)), samples
        else:
            ranges = tf.ragged.range(tf.gather(self._offsets, samples), tf.gather(self._offsets, samples + 1))
            images, chosen = ranges.value_rowids(), ranges.values
        return Targets(images, tf.gather(self._boxes, chosen), tf.gather(self._labels, chosen))


def find_targets(objects: Objects, labels: tf.Tensor, sizes: tf.Tensor, catalog: Catalog) -> Targets:
    """Returns the objects' boxes, relative to the annotated size (the image's may differ), and their labels.

    Swapped edges are swapped back, boxes clipped to the image, empty boxes dropped. If objects have their own labels,
    those of unknown classes are dropped, and none may be left. If the image has the label, objects of a different
    known class are dropped; if none is left, the whole image is the target.

    Args:
        objects: the objects of n XMLs.
        labels: int32 [n], the images' labels.
        sizes: int32 [n, 2], the images' real heights and widths; used if an XML does not state them.
        catalog: has the classes, and whether images or objects are labelled.
    """
    images = objects.images
    stated = tf.reduce_all(objects.sizes >= 1, axis=1, keepdims=True)
    size = tf.gather(tf.where(stated, objects.sizes, tf.cast(sizes, tf.float32)), images)
    low = tf.clip_by_value(tf.minimum(objects.boxes[:, :2], objects.boxes[:, 2:]), 0.0, size)
    high = tf.clip_by_value(tf.maximum(objects.boxes[:, :2], objects.boxes[:, 2:]), 0.0, size)
    boxes = tf.concat([low / size, high / size], axis=1)
    has_area = tf.reduce_all(high > low, axis=1)

    classes = tf.constant(catalog.classes)
    if catalog.by_object:
        is_class = tf.equal(objects.names[:, None], classes)
        numbers = tf.argmax(is_class, axis=1, output_type=tf.int32)
        kept = has_area & tf.reduce_any(is_class, axis=1)
        return Targets(*(tf.boolean_mask(values, kept) for values in (images, boxes, numbers)))
    # Nearly every object has its image's class; only the others are compared with all classes.
    others = tf.where(tf.not_equal(objects.names, tf.gather(classes, tf.gather(labels, images))))
    is_class = tf.equal(tf.gather_nd(objects.names, others)[:, None], classes)
    kept = has_area & tf.tensor_scatter_nd_update(
        tf.fill(tf.shape(images), True), others, ~tf.reduce_any(is_class, axis=1)
    )
    images, boxes = tf.boolean_mask(images, kept), tf.boolean_mask(boxes, kept)
    without = tf.where(tf.equal(tf.math.bincount(tf.cast(images, tf.int32), minlength=tf.size(labels)), 0))[:, 0]
    images = tf.concat([images, without], axis=0)
    boxes = tf.concat([boxes, tf.repeat(WHOLE_IMAGE, tf.size(without), axis=0)], axis=0)
    order = tf.argsort(images, stable=True)
    images = tf.gather(images, order)
    return Targets(images, tf.gather(boxes, order), tf.gather(labels, images))


def choose_windows(
    targets: Targets, sizes: tf.Tensor, positions: tf.Tensor, config: DataConfig, catalog: Catalog
) -> Windows:
    """Returns the windows of the images' crops, as `data.crop` or `data.test_crop` sets them.

    Args:
        targets: the boxes that may be cropped from n images.
        sizes: int32 [n, 2], their heights and widths.
        positions: int64 [n], their stream positions, which seed random windows.
        config: the crop settings.
        catalog: the split's catalog.
    """
    kind = config.crop_for(catalog.split)
    first = tf.searchsorted(targets.images, tf.range(tf.size(positions, tf.int64)), out_type=tf.int64)
    if kind == "boxes" or (kind == "random_resized" and catalog.by_object):
        images, labels = targets.images, targets.labels
        numbers = tf.range(tf.size(images, tf.int64)) - tf.gather(first, images)
    else:
        images, labels = tf.range(tf.size(positions, tf.int64)), tf.gather(targets.labels, first)
        numbers = tf.zeros_like(images)

    def draw(crop: tf.Tensor) -> tf.Tensor:
        image = images[crop]
        boxes = targets.boxes[crop : crop + 1] if catalog.by_object else targets.boxes[first[image] : ends[image]]
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
        alone = sizes.shape[0] == 1 and not catalog.by_object
        windows = draw(crops[0])[None] if alone else tf.map_fn(draw, crops, fn_output_signature=tf.int32)
    return Windows(images, numbers, windows, labels, halvings(windows, images, config))


def halvings(windows: tf.Tensor, images: tf.Tensor, config: DataConfig) -> tf.Tensor:
    """Returns scale.choose_halvings (int32 [k]) if `data.scaled_decode` is set, else zeros."""
    if config.scaled_decode:
        return choose_halvings(windows, images, config.crop_image_size)
    return tf.zeros(tf.shape(images), tf.int32)


def from_first(crops: T, first: tf.Tensor) -> T:
    """Drops the crops whose number is below their image's `first`.

    Args:
        crops: the crops of n images, e.g. Windows.
        first: int64 [n], number of each image's first crop to keep.
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
