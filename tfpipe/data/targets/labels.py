"""Chooses the labels of a batch (`data.targets`): they are looked up once its crops are together, in graph.

Until then a crop carries its image's number and, for boxes, where in the image it is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.config.targets import Kind
from tfpipe.data.annotations.masks import cut_masks
from tfpipe.data.annotations.targets import KnownTargets
from tfpipe.data.catalog.locate import image_finder
from tfpipe.data.catalog.types import Catalog, TextColumn
from tfpipe.data.images.crops import Crops, Origin
from tfpipe.data.images.decode import Cuts
from tfpipe.data.images.windows import place_windows, target_of
from tfpipe.data.runtime.columns import Lines, columns
from tfpipe.data.sources.reading import Encoded
from tfpipe.data.split import Split
from tfpipe.data.targets.boxes import Frame, moved_boxes
from tfpipe.errors import ConfigError, counted

FILL = -1  # of rows without a box
LookUp = Callable[[tf.Tensor], tf.Tensor]
Find = Callable[[Crops], Any]
"""In graph: a batch of crops -> their labels, () if they have none."""


def _number(split: Split) -> Find:
    number = _column(split.catalog.values["number"])
    return lambda crops: number(crops.origin.item)


def _classes(split: Split) -> Find:
    """Finds float32 [batch, classes]: 1 for each class that an image has."""
    objects, classes = _boxes_of(split.catalog), len(split.classes)

    def find(crops: Crops) -> tf.Tensor:
        instances = objects.at(crops.origin.item)
        batch = tf.size(crops.origin.item)
        places = tf.stack([tf.cast(instances.images, tf.int32), instances.labels], axis=1)
        counts = tf.scatter_nd(places, tf.ones(tf.shape(instances.labels)), tf.stack([batch, classes]))
        return tf.ensure_shape(tf.minimum(counts, 1.0), [crops.positions.shape[0], classes])

    return find


def _boxes(split: Split) -> Find:
    """Finds the boxes in each crop, float32 [batch, most, 4], and their labels, int32 [batch, most]."""
    objects, most, config, settings = _boxes_of(split.catalog), _most_boxes(split), split.config, split.config.targets

    def find(crops: Crops) -> dict[str, Any]:
        instances, rows = objects.at(crops.origin.item), tf.size(crops.origin.item, tf.int64)
        frames = Frame(*(tf.gather(part, instances.images) for part in crops.origin.frame))
        height, width = config.crop_image_size
        inner = _inner(frames.window, split)
        boxes, kept = moved_boxes(instances.boxes, frames, inner, (height, width), settings.min_visible)
        if settings.box_unit == "relative":
            boxes /= tf.constant([width, height, width, height], tf.float32)
        kept &= tf.reduce_all(boxes[:, 2:] > boxes[:, :2], 1)  # as float32
        images, boxes, labels = (tf.boolean_mask(part, kept) for part in (instances.images, boxes, instances.labels))
        parts = {
            name: tf.RaggedTensor.from_value_rowids(values, images, rows, validate=False)
            for name, values in (("boxes", boxes), ("labels", labels))
        }
        if settings.max_boxes == "ragged":
            return parts
        shapes = {name: [most, *part.shape[2:]] for name, part in parts.items()}
        batch = crops.positions.shape[0]
        return {
            name: tf.ensure_shape(part.to_tensor(FILL, shape=[None, *shapes[name]]), [batch, *shapes[name]])
            for name, part in parts.items()
        }

    return find


TARGETS: dict[Kind, Callable[[Split], Find]] = {
    "label": lambda _: lambda crops: crops.labels,
    "labels": _classes,
    "number": _number,
    "boxes": _boxes,
    "mask": lambda _: lambda crops: crops.origin.mask,
    "none": lambda _: lambda _: (),
}
"""The function of each kind of `data.targets` that returns the one which finds the labels of a batch's crops."""


def needs_origin(split: Split) -> bool:
    """Returns whether the labels of crops are looked up by their images, once they are in batches."""
    return split.config.targets.kind != "label" or bool(split.catalog.values)


def choose_origin(split: Split) -> Callable[[Encoded, Cuts], Origin] | None:
    """Returns the function that finds the image, and the place in it, of crops; None if neither is needed."""
    if not needs_origin(split):
        return None
    config, kind = split.config, split.config.targets.kind
    find = image_finder(split.catalog, sent=config.service is not None)

    def origin(encoded: Encoded, cuts: Cuts) -> Origin:
        _, sizes, windows, flips = cuts
        item = find(tf.gather(encoded.visit.item, windows.images))
        flipped = tf.zeros(tf.shape(windows.images), tf.bool) if flips.shape[0] == 0 else flips
        if kind == "boxes":
            return Origin(item, frame=Frame(tf.gather(sizes, windows.images), windows.windows, flipped))
        if kind != "mask":
            return Origin(item)
        masks, target = (encoded.annotation, encoded.annotation_path), config.crop_image_size
        cut = cut_masks(masks, sizes, windows.images, (windows.windows, _inner(windows.windows, split)), target)
        return Origin(item, mask=tf.where(flipped[:, None, None], cut[:, :, ::-1], cut))

    return origin


def _inner(windows: tf.Tensor, split: Split) -> tf.Tensor:
    """Returns int32 [k, 4]: top, left, height and width of the place of each window in its crop."""
    return place_windows(windows[:, 2:], target_of(split.config, split.catalog.split))


def choose_targets(split: Split) -> Callable[[Crops], Crops] | None:
    """Returns the function that gives batches of `Crops` their labels; None if they have them already.

    Raises ConfigError if an image has more boxes than `data.targets` allows.
    """
    if not needs_origin(split):
        return None
    kind = split.config.targets.kind
    find = TARGETS[kind](split)
    others = {name: _column(value) for name, value in split.catalog.values.items() if name != "number"}

    def describe(crops: Crops) -> Crops:
        labels = find(crops)
        if others:
            further = {name: look_up(crops.origin.item) for name, look_up in others.items()}
            named = {} if kind == "none" else {kind: labels}
            labels = (labels if isinstance(labels, dict) else named) | further
        return crops._replace(labels=labels, origin=())

    return describe


def _boxes_of(catalog: Catalog) -> KnownTargets:
    assert catalog.boxes is not None, "targets of objects have known boxes"
    return KnownTargets(catalog.boxes, catalog.boxes.offsets(len(catalog)))


def _most_boxes(split: Split) -> int:
    """Returns the number of rows of an image's boxes."""
    catalog, most = split.catalog, split.config.targets.max_boxes
    assert catalog.boxes is not None, "targets of objects have known boxes"
    counts = np.diff(catalog.boxes.offsets(len(catalog)))
    if not isinstance(most, int):
        return max(1, int(counts.max(initial=0)))
    if (counts > most).any():
        item = int(np.argmax(counts))
        raise ConfigError(
            f"data.targets.max_boxes: received {most}, and {split.name(item)} of the {catalog.split} data has "
            f"{counted(counts[item], 'box')}: raise it, or set it to null"
        )
    return most


def _column(value: np.ndarray | TextColumn) -> LookUp:
    """Returns the function that looks up the rows of images, int64 [batch], in graph."""
    if not isinstance(value, TextColumn):
        return columns(value, sent=False)[0].at
    lines = Lines(*columns(value.text, value.starts, sent=False))
    return lambda items: tf.strings.regex_replace(lines.at(items), "\\x00", "\n")
