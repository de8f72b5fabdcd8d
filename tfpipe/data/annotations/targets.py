"""Targets: the boxes of the annotated objects that may be cropped, in graph."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes
from tfpipe.data.annotations.objects import Objects
from tfpipe.data.images.crops import Targets


class KnownTargets:
    """The boxes that are known from the start, looked up in graph, by image or, if boxes are samples, by box."""

    def __init__(self, boxes: Boxes, offsets: np.ndarray | None) -> None:
        """Holds `boxes`; `offsets` (int [images + 1]) says where each image's start, None if every box is a sample."""
        # Eager tensors on the CPU, where tf.data runs: a graph under construction then holds them by reference.
        with tf.init_scope(), tf.device("CPU"):
            self._boxes, self._labels = tf.constant(boxes.boxes), tf.constant(boxes.labels)
            self._offsets = None if offsets is None else tf.constant(offsets)

    def at(self, samples: tf.Tensor) -> Targets:
        """Returns the targets of `samples` (int64 [n]), which are boxes or images."""
        if self._offsets is None:
            images, chosen = tf.range(tf.size(samples, tf.int64)), samples
        else:
            ranges = tf.ragged.range(tf.gather(self._offsets, samples), tf.gather(self._offsets, samples + 1))
            images, chosen = ranges.value_rowids(), ranges.values
        return Targets(images, tf.gather(self._boxes, chosen), tf.gather(self._labels, chosen))


def find_targets(
    objects: Objects, labels: tf.Tensor, sizes: tf.Tensor, names: Sequence[str], by_object: bool
) -> Targets:
    """Returns the objects' boxes, relative to the annotated size (the image's may differ), and their labels.

    Swapped edges are swapped back, boxes clipped to the image, empty boxes dropped. If objects have their own labels,
    those of unknown classes are dropped, and none may be left. If the image has the label, objects of a different known
    class are dropped; if none is left, the whole image is the target. `labels` (int32 [n]) are those of n images;
    `sizes` (int32 [n, 2]), their real heights and widths, are used if an XML does not state them; `names` are in the
    order of the class numbers; with `by_object`, objects have the labels.
    """
    images = objects.images
    stated = tf.reduce_all(objects.sizes >= 1, axis=1, keepdims=True)
    size = tf.gather(tf.where(stated, objects.sizes, tf.cast(sizes, tf.float32)), images)
    low = tf.clip_by_value(tf.minimum(objects.boxes[:, :2], objects.boxes[:, 2:]), 0.0, size)
    high = tf.clip_by_value(tf.maximum(objects.boxes[:, :2], objects.boxes[:, 2:]), 0.0, size)
    boxes = tf.concat([low / size, high / size], axis=1)
    has_area = tf.reduce_all(high > low, axis=1)

    classes = tf.constant(names)
    if by_object:
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
