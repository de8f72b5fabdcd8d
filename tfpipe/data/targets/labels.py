"""Chooses the labels of a batch (`data.targets`): they are looked up once its crops are together, in graph.

Until then a crop carries its image's number and, for boxes, where in the image it is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.config.targets import OF_OBJECTS
from tfpipe.data.annotations.targets import KnownTargets
from tfpipe.data.catalog.types import Catalog, TextColumn
from tfpipe.data.images.crops import CropBatch, Crops, Windows
from tfpipe.data.images.windows import placed, target_of
from tfpipe.data.runtime.columns import Lines, columns
from tfpipe.data.sources.reading import Encoded
from tfpipe.data.split import Split
from tfpipe.data.targets.boxes import Frame, moved_boxes
from tfpipe.data.targets.masks import cut_masks
from tfpipe.errors import ConfigError

FILL = -1  # of rows without a box
LookUp = Callable[[tf.Tensor], tf.Tensor]
ImageOf = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""(samples (int64 [n]), number of each crop's sample (int64 [k])) -> number of each crop's image (int64 [k])."""
Place = Callable[[CropBatch, Encoded, tf.Tensor, Windows, tf.Tensor], CropBatch]
"""(crops, what they are cut from, sizes (int32 [n, 2]), windows, flips (bool [k] or [0])) -> crops, with what
`data.targets` need of their places."""


def needs_origin(split: Split) -> bool:
    """Returns whether the labels of crops are looked up by their images, once they are in batches."""
    return split.config.targets.kind != "label" or bool(split.catalog.values)


def choose_origin(split: Split) -> tuple[ImageOf | None, Place | None]:
    """Returns functions that find the image, and the place in it, of crops; None for what is not needed."""
    if not needs_origin(split):
        return None, None
    config, kind, boxes = split.config, split.config.targets.kind, split.catalog.sampled_boxes
    sampled = None if boxes is None else columns(boxes.images, sent=config.service is not None)[0]

    def image_of(samples: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
        items = tf.gather(samples, owners)
        return items if sampled is None else tf.cast(sampled.at(items), tf.int64)

    def place(crops: CropBatch, encoded: Encoded, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> CropBatch:
        flipped = tf.zeros(tf.shape(windows.images), tf.bool) if flips.shape[0] == 0 else flips
        if kind == "boxes":
            return crops._replace(frame=Frame(tf.gather(sizes, windows.images), windows.windows, flipped))
        masks, target = (encoded.xml, encoded.xml_path), config.crop_image_size
        cut = cut_masks(masks, sizes, windows.images, (windows.windows, _inner(windows.windows, split)), target)
        return crops._replace(mask=tf.where(flipped[:, None, None], cut[:, :, ::-1], cut))

    return image_of, place if kind in ("boxes", "mask") else None


def _inner(windows: tf.Tensor, split: Split) -> tf.Tensor:
    """Returns int32 [k, 4]: top, left, height and width of the place of each window in its crop."""
    return placed(windows[:, 2:], target_of(split.config, split.catalog.split))


def choose_targets(split: Split) -> Callable[[Crops], Crops] | None:
    """Returns the function that gives batches of `Crops` their labels; None if they have them already.

    Raises ConfigError if an image has more boxes than `data.targets` allows.
    """
    if not needs_origin(split):
        return None
    config, catalog = split.config, split.catalog
    kind = config.targets.kind
    values = {name: _column(value) for name, value in catalog.values.items()}
    find: Callable[[Crops], Any]
    if kind in OF_OBJECTS:
        known = _boxes_of(catalog)
        if kind == "labels":
            find = partial(_classes, known, len(split.classes))
        else:
            find = partial(_boxes, known, split, _most_boxes(split))
    else:
        others: dict[str, Callable[[Crops], Any]]
        others = {"label": _label, "number": partial(_number, values), "mask": _mask}
        find = others[kind]

    def describe(crops: Crops) -> Crops:
        labels = find(crops)
        further = {name: look_up(crops.origin.item) for name, look_up in values.items() if name != "number"}
        if further:
            labels = (labels if isinstance(labels, dict) else {kind: labels}) | further
        return crops._replace(labels=labels, origin=())

    return describe


def _label(crops: Crops) -> tf.Tensor:
    return crops.labels


def _mask(crops: Crops) -> tf.Tensor:
    return crops.origin.mask


def _number(values: dict[str, LookUp], crops: Crops) -> tf.Tensor:
    return values["number"](crops.origin.item)


def _classes(known: KnownTargets, classes: int, crops: Crops) -> tf.Tensor:
    """Returns float32 [batch, classes]: 1 for each class that an image has."""
    found = known.at(crops.origin.item)
    batch = tf.size(crops.origin.item)
    places = tf.stack([tf.cast(found.images, tf.int32), found.labels], axis=1)
    counts = tf.scatter_nd(places, tf.ones(tf.shape(found.labels)), tf.stack([batch, classes]))
    return tf.ensure_shape(tf.minimum(counts, 1.0), [crops.positions.shape[0], classes])


def _boxes(known: KnownTargets, split: Split, most: int, crops: Crops) -> dict[str, Any]:
    """Returns the boxes in each crop, float32 [batch, most, 4], and their labels, int32 [batch, most]."""
    config, frame = split.config, crops.origin.frame
    settings = config.targets
    found, rows = known.at(crops.origin.item), tf.size(crops.origin.item, tf.int64)
    frames = Frame(*(tf.gather(part, found.images) for part in frame))
    height, width = config.crop_image_size
    inner = _inner(frames.window, split)
    boxes, kept = moved_boxes(found.boxes, frames, inner, (height, width), settings.min_visible)
    if settings.box_unit == "relative":
        boxes /= tf.constant([width, height, width, height], tf.float32)
    kept &= tf.reduce_all(boxes[:, 2:] > boxes[:, :2], 1)  # as float32
    images, boxes, labels = (tf.boolean_mask(part, kept) for part in (found.images, boxes, found.labels))
    ragged = {
        name: tf.RaggedTensor.from_value_rowids(values, images, rows, validate=False)
        for name, values in (("boxes", boxes), ("labels", labels))
    }
    if settings.max_boxes == "ragged":
        return ragged
    batch = crops.positions.shape[0]
    return {
        name: tf.ensure_shape(part.to_tensor(FILL, shape=[None, most, *part.shape[2:]]), [batch, most, *part.shape[2:]])
        for name, part in ragged.items()
    }


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
            f"{counts[item]} boxes: raise it, or set it to null"
        )
    return most


def _column(value: np.ndarray | TextColumn) -> LookUp:
    """Returns the function that looks up the rows of images, int64 [batch], in graph."""
    if not isinstance(value, TextColumn):
        return columns(value, sent=False)[0].at
    lines = Lines(*columns(value.text, value.starts, sent=False))
    return lambda items: tf.strings.regex_replace(lines.at(items), "\\x00", "\n")
