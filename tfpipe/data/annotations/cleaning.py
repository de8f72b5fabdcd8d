"""Cleans annotated boxes with numpy, for many images at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfpipe.data.annotations.objects import Objects

BY_OBJECT = -1
"""Label of an image whose objects have the labels."""
WHOLE_IMAGE = np.array([[0, 0, 1, 1]], np.float32)


class ImageObjects(NamedTuple):
    """The objects of several images, one image after the other, with class numbers instead of names."""

    images: np.ndarray  # int64 [k]: number of the object's image
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    classes: np.ndarray  # int32 [k]: number of its class, -1 if its name is no class


class Boxes(NamedTuple):
    """All boxes of a split, in the order of the images."""

    images: np.ndarray  # int32 [k]: number of the box's image
    boxes: np.ndarray  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: np.ndarray  # int32 [k]

    def offsets(self, images: int) -> np.ndarray:
        """Returns where each image's boxes start and, last, where all end, as int64 [images + 1]."""
        return np.searchsorted(self.images, np.arange(images + 1))


class LocatedBoxes(Boxes):
    """Boxes that come with the places where each image's start."""

    starts: np.ndarray
    """int64 [images + 1]: the value of `offsets`."""

    @classmethod
    def of(cls, boxes: Boxes, starts: np.ndarray) -> "LocatedBoxes":
        """Returns the same boxes, whose `offsets` are known to be `starts`."""
        result = cls(*boxes)
        result.starts = starts
        return result

    def offsets(self, images: int) -> np.ndarray:
        """Returns `starts`, without computing them."""
        del images
        return self.starts


def class_numbers(names: Iterable[str | int], classes: Mapping[str, int]) -> np.ndarray:
    """Returns int32 [n]: the class number of each object, -1 if its name, or its number, is no class."""
    count = len(classes)
    numbers = (classes.get(name, -1) if isinstance(name, str) else name if name < count else -1 for name in names)
    return np.array(list(numbers), np.int32)


def number_classes(xmls: Sequence[Objects], classes: Mapping[str, int]) -> ImageObjects:
    """Returns the objects of n XMLs, one per image; `classes` maps class names to numbers."""
    return ImageObjects(
        np.repeat(np.arange(len(xmls)), [len(xml.names) for xml in xmls]),
        np.array([edge for xml in xmls for edge in xml.edges], np.float32).reshape(-1, 4),
        class_numbers((name for xml in xmls for name in xml.names), classes),
    )


LEFT_OUT = {
    "class unknown": "objects of an unknown class",
    "class differs": "objects of another class than their image's",
    "box empty": "boxes without an area",
    "box swapped": "boxes with swapped edges, which are put in order",
    "box twice": "boxes that an image has twice, which are used twice",
}
"""Anomalies of objects that training does not use, or not as they are, for a Ledger."""


def odd_objects(objects: ImageObjects, labels: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Returns, by anomaly, which objects have it, bool [k]; parameters as for targets."""
    images, boxes, classes = objects
    low, high = clamp(boxes, sizes[images])
    return {
        "box swapped": (boxes[:, :2] > boxes[:, 2:]).any(axis=1),
        "box out of range": ((boxes < 0) | (boxes > np.tile(sizes[images], 2))).any(axis=1),
        "box empty": ~(high > low).all(axis=1),
        "box twice": _find_repeated(objects),
        "class unknown": classes < 0,
        "class differs": (classes >= 0) & (classes != labels[images]) & (labels[images] != BY_OBJECT),
    }


def _find_repeated(objects: ImageObjects) -> np.ndarray:
    """Returns which objects their image has already, with the same edges and class, bool [k]."""
    images, boxes, classes = objects
    repeated = np.zeros(len(images), bool)
    # Each is compared with those before it in its image, which follow one another; they soon are few.
    later, step = np.arange(1, len(images)), 1
    while later.size:
        later = later[images[later - step] == images[later]]
        equal = (classes[later - step] == classes[later]) & (boxes[later - step] == boxes[later]).all(axis=1)
        repeated[later[equal]] = True
        step += 1
        later = later[later >= step]
    return repeated


def left_out(objects: ImageObjects, labels: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the numbers of the objects that `targets` leaves out, int64 [1 or more], by the reason: LEFT_OUT's."""
    odd = odd_objects(objects, labels, sizes)
    # An object of an unknown class is its image's if images have the labels.
    odd["class unknown"] &= labels[objects.images] == BY_OBJECT
    return {reason: np.flatnonzero(odd[code]) for code, reason in LEFT_OUT.items() if odd[code].any()}


def is_stated(sizes: np.ndarray) -> np.ndarray:
    """Returns whether XMLs state their image's size (bool [n]), given heights and widths (float32 [n, 2]).

    A side below one pixel, e.g. 0 or 0.5, counts as not stated: the image's own size is used then.
    """
    return np.all(sizes >= 1, axis=1)


def sizes_of(stated: np.ndarray, real: Callable[[np.ndarray], Any], needed: np.ndarray | None = None) -> np.ndarray:
    """Returns the heights and widths that boxes are divided by, float32 [n, 2]: the stated ones, else the image's own.

    `real` returns these for some images (int64 [k]), whose headers it may have to read; `needed` (bool [n]) are the
    images that have boxes, None for all.
    """
    missing = np.flatnonzero(~is_stated(stated) if needed is None else needed & ~is_stated(stated))
    if not missing.size:
        return stated
    sizes = stated.copy()
    sizes[missing] = real(missing)
    return sizes


def targets(objects: ImageObjects, labels: np.ndarray, sizes: np.ndarray) -> Boxes:
    """Returns the boxes that may be cropped from n images.

    Swapped edges are swapped back, boxes clipped to the image, empty boxes dropped. If objects have their own labels,
    those of unknown classes are dropped, and none may be left. If the image has the label, objects of a different known
    class are dropped; if none is left, the whole image is the target. `labels` (int32 [n]) are the images' class
    numbers, either all BY_OBJECT or none; `sizes` (float32 [n, 2]), at least 1, are the heights and widths that the
    boxes are divided by.
    """
    images, boxes, classes = objects
    low, high = clamp(boxes, sizes[images])
    relative = np.concatenate([low / sizes[images], high / sizes[images]], axis=1)
    kept = (high > low).all(axis=1)
    if (labels == BY_OBJECT).any():
        kept &= classes >= 0
        return Boxes(images[kept].astype(np.int32), relative[kept], classes[kept])
    kept &= (classes < 0) | (classes == labels[images])
    without = np.flatnonzero(np.bincount(images[kept], minlength=len(labels)) == 0)
    images = np.concatenate([images[kept], without])
    boxes = np.concatenate([relative[kept], np.repeat(WHOLE_IMAGE, len(without), axis=0)])
    order = np.argsort(images, kind="stable")
    return Boxes(images[order].astype(np.int32), boxes[order], labels[images[order]])


def clamp(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lower and the higher edges, float32 [k, 2] each: swapped if reversed, and clamped to the image."""
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.clip(low, 0, sizes), np.clip(high, 0, sizes)
