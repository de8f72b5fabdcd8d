"""Which crops some images give: from their annotated objects to windows and labels.

Everything here is of n images at once, which costs little more than one, since a graph's cost is per op.
"""

from typing import NamedTuple, Protocol, TypeVar

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.annotations import Objects
from tfpipe.data.catalog import WHOLE_IMAGE, Catalog
from tfpipe.data.images import box_windows, center_windows, full_windows, random_window
from tfpipe.data.scale import choose_halvings

# No image has more crops; keeps the seeds of two images' crops apart.
MAX_CROPS = 2**16


class OfImages(Protocol):
    """A NamedTuple of tensors [k, ...], these two among them."""

    @property
    def images(self) -> tf.Tensor:
        """int64 [k]: number of the image, ascending."""

    @property
    def numbers(self) -> tf.Tensor:
        """int64 [k]: of the crop among its image's."""


T = TypeVar("T", bound=OfImages)


class Targets(NamedTuple):
    """What may be cropped from n images, one after the other."""

    images: tf.Tensor  # int64 [k]: number of the image, ascending
    boxes: tf.Tensor  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: tf.Tensor  # int32 [k]


class Windows(NamedTuple):
    """What is cropped from n images, one after the other."""

    images: tf.Tensor  # int64 [k]: number of the image, ascending
    numbers: tf.Tensor  # int64 [k]: of the crop among its image's
    windows: tf.Tensor  # int32 [k, 4]: top, left, height, width
    labels: tf.Tensor  # int32 [k]
    halvings: tf.Tensor  # int32 [k]: of the sides of the image as it is decoded; the windows are in the whole one


class Crops(NamedTuple):
    """The crops of some images, one after the other; unbatched, one of them; then a batch of them."""

    images: tf.Tensor  # uint8 [k, height, width, channels]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number among the image's crops


class KnownTargets:
    """The boxes of a catalog that knows them: of each image, or each a target of its own."""

    def __init__(self, catalog: Catalog) -> None:
        boxes = catalog.boxes
        assert boxes is not None, "it knows them"
        # On the CPU, where tf.data runs, and beside the graph, if one is being made: it is to hold them by reference.
        with tf.init_scope(), tf.device("CPU"):
            self._boxes, self._labels = tf.constant(boxes.boxes), tf.constant(boxes.labels)
            self._offsets = None if catalog.by_box else tf.constant(boxes.offsets(len(catalog)))

    def at(self, samples: tf.Tensor) -> Targets:
        """The targets of `samples` (int64 [n]): boxes or images."""
        if self._offsets is None:
            images, chosen = tf.range(tf.size(samples, tf.int64)), samples
        else:
            ranges = tf.ragged.range(tf.gather(self._offsets, samples), tf.gather(self._offsets, samples + 1))
            images, chosen = ranges.value_rowids(), ranges.values
        return Targets(images, tf.gather(self._boxes, chosen), tf.gather(self._labels, chosen))


def find_targets(objects: Objects, labels: tf.Tensor, sizes: tf.Tensor, catalog: Catalog) -> Targets:
    """The objects' boxes, relative to the annotated size (the image may have another), and their labels.

    Swapped edges are swapped back, boxes clamped to the image, empty ones dropped. Where each object has its own
    label, objects of no known class are dropped, and there may be none left. Where the image has one, objects that
    are of a different known class are dropped, and with none left the whole image is the target.

    Args:
        objects: what the XMLs say.
        labels: int32 [n] of the images.
        sizes: int32 [n, 2], the images' real heights and widths; used where an XML does not state them.
        catalog: says how images are labelled, and the classes.
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
        return Targets(*(tf.boolean_mask(each, kept) for each in (images, boxes, numbers)))
    # Nearly every object is of its image's class, and need not be looked for among all of them.
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
    """The windows of the images' crops, as `data.crop` or `data.test_crop` says.

    Args:
        targets: what may be cropped from n images.
        sizes: int32 [n, 2], their heights and widths.
        positions: int64 [n], their stream positions; they seed what is random.
        config: how to crop.
        catalog: of the split.
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
        # A loop over one image would cost more than the draw.
        alone = sizes.shape[0] == 1 and not catalog.by_object
        windows = draw(crops[0])[None] if alone else tf.map_fn(draw, crops, fn_output_signature=tf.int32)
    return Windows(images, numbers, windows, labels, halvings(windows, images, config))


def halvings(windows: tf.Tensor, images: tf.Tensor, config: DataConfig) -> tf.Tensor:
    """int32 [k]: as scale.choose_halvings where `data.scaled_decode` is set, else 0."""
    if config.scaled_decode:
        return choose_halvings(windows, images, config.crop_image_size)
    return tf.zeros(tf.shape(images), tf.int32)


def from_first(crops: T, first: tf.Tensor) -> T:
    """Without those that come before each image's `first` (int64 [n]).

    Args:
        crops: of some images, e.g. Windows.
        first: which of an image's crops is the first that is wanted.
    """
    wanted = crops.numbers >= tf.gather(first, crops.images)
    # Copies them, and only where a run goes on in the middle of an image is one not wanted.
    return tf.cond(
        tf.reduce_all(wanted),
        lambda: crops,
        lambda: tf.nest.map_structure(lambda each: tf.boolean_mask(each, wanted), crops),
    )


def crop_seeds(seed: int, positions: tf.Tensor, crops: tf.Tensor) -> tf.Tensor:
    """int64 [..., 2]: a seed for each crop, given its image's stream position and its number (int64 [...])."""
    second = positions * MAX_CROPS + crops
    return tf.stack([tf.fill(tf.shape(second), tf.constant(seed, tf.int64)), second], axis=-1)
