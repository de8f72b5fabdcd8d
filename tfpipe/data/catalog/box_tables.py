"""Reads boxes from one table instead of XMLs: `data.train_box_file` and `data.test_box_file`.

Kaggle's LOC_train_solution.csv and LOC_val_solution.csv have a header and one row per image, with its boxes in pixels:

    n02017213_7894,n02017213 115 49 448 294 n02017213 12 50 60 70

imagenet_2012_bounding_boxes.csv from TensorFlow's scripts has one row per box, relative to the image's size:

    n02017213_7894.JPEG,0.2300,0.1307,0.8960,0.7840
"""

import logging
from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.annotations.objects import IS_NUMBER, TOLERANCE, are_relative
from tfpipe.data.catalog.labels import is_kaggle, kaggle_row, named_twice
from tfpipe.data.catalog.paths import FileList
from tfpipe.errors import ConfigError
from tfpipe.util.files import open_text, unreadable

logger = logging.getLogger(__name__)

KAGGLE = '"image,class xmin ymin xmax ymax ..." in pixels'
RELATIVE = '"image.JPEG,xmin,ymin,xmax,ymax" in [0, 1], or Kaggle\'s table with its header'


class BoxTable(NamedTuple):
    """The objects of a list's images, in the list's order; the objects of one image keep the table's order."""

    images: np.ndarray  # int64 [k]: number of the object's image, ascending
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax; in [0, 1] if `relative`, else in pixels
    classes: np.ndarray  # int32 [k]: class number, the image's if `relative`; -1 if the name is no class
    relative: bool


# A row's image without extension; its objects' class names, none in a relative table; xmin, ymin, xmax, ymax of each.
Row = tuple[str, list[str], list[str]]


def read_box_table(path: Path, paths: FileList, labels: np.ndarray, classes: Sequence[str]) -> BoxTable:
    """Returns the boxes that the table holds for the images `paths`; skips rows of other images and logs their number.

    Rows name the images `paths` by base name, with or without extension. `labels` (int32 [len(paths)]) are the images'
    classes, or BY_OBJECT; `classes` are in the order of their numbers. Raises ConfigError if the table cannot be read,
    a row is malformed, Kaggle's table has two rows of one image, a row's name matches several images, or the labels are
    the objects' but the table has no classes.
    """
    names, counts, edges, kinds = [], array("i"), array("f"), array("i")
    numbers = {name: number for number, name in enumerate(classes)}
    try:
        with open_text(path) as lines:
            form, read = (KAGGLE, _read_kaggle) if is_kaggle(lines.readline()) else (RELATIVE, _read_relative)
            lines.seek(0)
            for number, line in islice(enumerate(lines, 1), int(form == KAGGLE), None):
                if line.isspace():
                    continue
                if (row := read(line)) is None:
                    raise ConfigError(f'{path}: line {number}: received "{line.strip()[:80]}"; accepted: {form}')
                name, things, sides = row
                names.append(name.encode())
                counts.append(len(sides) // 4)
                edges.extend(map(float, sides))
                kinds.extend(numbers.get(thing, -1) for thing in things)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(unreadable(path, error)) from error
    if form == KAGGLE and are_relative(edges):
        raise ConfigError(
            f"{path}: all boxes are from 0 to 1, e.g. {edges[:4].tolist()}, so relative to the images' sizes; "
            f"accepted: {KAGGLE}"
        )
    if form == RELATIVE and (labels == BY_OBJECT).any():
        raise ConfigError(f'{path} has no classes: with data.label_source "object" use Kaggle\'s table or the XMLs')
    if not names:
        raise ConfigError(f"{path} holds no row; accepted: {form}")
    items = find_images(path, np.array(names, bytes), paths)
    if form == KAGGLE:
        images, rows = np.unique(items[items >= 0], return_counts=True)
        for item in images[rows > 1]:
            raise ConfigError(f"{path} holds several rows of {paths[int(item)]}")
    items = np.repeat(items, counts)
    order = np.argsort(items, kind="stable")[np.count_nonzero(items < 0) :]
    items = items[order]
    boxes = np.array(edges, np.float32).reshape(-1, 4)[order][:, [1, 0, 3, 2]]
    boxes = boxes.clip(0, 1) if form == RELATIVE else boxes
    return BoxTable(items, boxes, labels[items] if form == RELATIVE else np.array(kinds)[order], form == RELATIVE)


def _read_kaggle(line: str) -> Row | None:
    image, words = kaggle_row(line)
    edges = [word for number, word in enumerate(words) if number % 5]
    return (image, words[::5], edges) if words and len(words) % 5 == 0 and all(map(IS_NUMBER, edges)) else None


def _read_relative(line: str) -> Row | None:
    image, *edges = line.strip().split(",")
    fits = len(edges) == 4 and all(IS_NUMBER(edge) and -TOLERANCE <= float(edge) <= 1 + TOLERANCE for edge in edges)
    return (_stem(image), [], edges) if fits else None


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def find_images(path: Path, names: np.ndarray, paths: FileList, entries: str = "rows") -> np.ndarray:
    """Returns the number of the image of each name, as int64 [len(names)]; -1 if the list has no such image.

    `names` (bytes [k]) are base names without extension, of the `entries` of the file `path`. Raises ConfigError if one
    is the name of several images.
    """
    # For a million names, sorted bytes take a tenth of the memory of a dictionary.
    stems = np.concatenate([np.array([_stem(name).encode() for name in chunk]) for _, chunk in paths.chunks()])
    order = np.argsort(stems, kind="stable")
    first, end = (np.searchsorted(stems, names, side, order) for side in ("left", "right"))
    for name in names[end - first > 1]:
        raise named_twice(path, name.decode())
    unknown = end == first
    if unknown.any():
        text = "%s: %d of %d %s are of images that are not in the list"
        logger.info(text, path, unknown.sum(), len(names), entries)
    return np.where(unknown, -1, order[np.minimum(first, len(order) - 1)])
