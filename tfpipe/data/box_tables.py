"""Boxes from one table in the XMLs' place, as `data.train_box_file` and `data.test_box_file` name it.

Kaggle's LOC_train_solution.csv and LOC_val_solution.csv: a header, then rows of an image and its boxes in pixels,

    n02017213_7894,n02017213 115 49 448 294 n02017213 12 50 60 70

and imagenet_2012_bounding_boxes.csv of TensorFlow's scripts: rows of one box each, relative to the image's size,

    n02017213_7894.JPEG,0.2300,0.1307,0.8960,0.7840
"""

import logging
from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.filelist import FileList
from tfpipe.data.labels import BY_OBJECT, is_kaggle, kaggle_row, named_twice
from tfpipe.data.voc import IS_NUMBER
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

KAGGLE = '"image,class xmin ymin xmax ymax ..." in pixels'
RELATIVE = '"image.JPEG,xmin,ymin,xmax,ymax" in [0, 1], or Kaggle\'s table with its header'


class BoxTable(NamedTuple):
    """The objects of a list's images, in the list's order and for each image in the table's."""

    images: np.ndarray  # int64 [k]: number of the object's image
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax, in pixels or, where `relative`, in [0, 1]
    classes: np.ndarray  # int32 [k]: number of its class, or its image's; -1 where its name is none
    relative: bool


# A line's image, without extension; its objects' classes, if the table has them; xmin, ymin, xmax, ymax of each.
Row = tuple[str, list[str], list[str]]


def read_box_table(path: Path, paths: FileList, labels: np.ndarray, classes: Sequence[str]) -> BoxTable:
    """What the table at `path` says of the images `paths`; rows of other images are left out, and counted in the log.

    Args:
        path: of a table of either form.
        paths: found by base name without extension.
        labels: int32 [len(paths)]: the images' classes, or BY_OBJECT.
        classes: names, in the order of their numbers.

    Raises:
        ConfigError: it cannot be read, a row is malformed, an image has several (of Kaggle's), a row's name is that of
            several images, or objects have the labels but the table has no classes.
    """
    names, counts, edges, kinds = [], array("i"), array("f"), array("i")
    numbers = {name: number for number, name in enumerate(classes)}
    try:
        with path.open(encoding="utf-8-sig") as lines:
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
        raise ConfigError(f"cannot read {path}: {error}") from error
    if form == RELATIVE and (labels == BY_OBJECT).any():
        raise ConfigError(f'{path} has no classes: with data.label_source "object" use Kaggle\'s table or the XMLs')
    if not names:
        raise ConfigError(f"{path} holds no row; accepted: {form}")
    items = _find(path, np.array(names, bytes), paths)
    if form == KAGGLE:
        found, counted = np.unique(items[items >= 0], return_counts=True)
        for item in found[counted > 1]:
            raise ConfigError(f"{path} holds several rows of {paths[int(item)]}")
    items = np.repeat(items, counts)
    order = np.argsort(items, kind="stable")[np.count_nonzero(items < 0) :]
    items = items[order]
    boxes = np.array(edges, np.float32).reshape(-1, 4)[order][:, [1, 0, 3, 2]]
    return BoxTable(items, boxes, labels[items] if form == RELATIVE else np.array(kinds)[order], form == RELATIVE)


def _read_kaggle(line: str) -> Row | None:
    image, words = kaggle_row(line)
    edges = [word for number, word in enumerate(words) if number % 5]
    return (image, words[::5], edges) if words and len(words) % 5 == 0 and all(map(IS_NUMBER, edges)) else None


def _read_relative(line: str) -> Row | None:
    image, *edges = line.strip().split(",")
    fits = len(edges) == 4 and all(IS_NUMBER(edge) and 0 <= float(edge) <= 1 for edge in edges)
    return (_stem(image), [], edges) if fits else None


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _find(path: Path, names: np.ndarray, paths: FileList) -> np.ndarray:
    """int64 [len(names)]: the number of the image of each name, -1 where there is none."""
    # Sorted bytes take a tenth of the memory of a dictionary of a million names.
    stems = np.concatenate([np.array([_stem(name).encode() for name in chunk]) for _, chunk in paths.chunks()])
    order = np.argsort(stems, kind="stable")
    first, behind = (np.searchsorted(stems, names, side, order) for side in ("left", "right"))
    for name in names[behind - first > 1]:
        raise named_twice(path, name.decode())
    unknown = behind == first
    if unknown.any():
        logger.info("%s: %d of %d rows are of images that are not in the list", path, unknown.sum(), len(names))
    return np.where(unknown, -1, order[np.minimum(first, len(order) - 1)])
