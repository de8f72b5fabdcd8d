"""Makes the catalog of a split from what its source knows before an image is read: classes, labels, boxes, ledger."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.annotations.cleaning import BY_OBJECT, WHOLE_IMAGE, Boxes, ImageObjects, left_out, targets
from tfpipe.data.catalog.labels import (
    check_count,
    check_no_ids,
    checked_classes,
    class_table,
    numbers_of,
    warn_of_numbers,
)
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.rows import NUMBER, Rows, Texts
from tfpipe.errors import ConfigError, counted

# Labels that say of each class whether an image has it, as a table's numbers and truth values are written.
HOT = (["0", "1"], ["false", "true"])
# More classes than these, and than half of the labels, are those of a column of ids; so are more than MAX_IDS.
MANY_IDS, MAX_IDS = 2000, 1_000_000
NEGATIVE = re.compile(r"-[1-9]\d{0,99}", re.ASCII)


def catalog_of(
    config: DataConfig, split: str, rows: Rows, classes: "Classes", place: str, labels: np.ndarray | None = None
) -> Catalog:
    """Returns the catalog of the images that are `rows` of `place`; its ledger counts the objects left out.

    `labels` (int32 [n]) are class numbers in the place of the rows' own labels. Without them ConfigError is raised if
    an image has no label or one that is no class. So are objects' labels if these count, unless `data.classes` chooses
    some classes, when the others' objects are left out.
    """
    classed, unnamed = rows.box_labels.values(classes.numbers), rows.box_labels.numbers < 0
    if labels is None:
        labels = _labels(config, rows, classed, classes, place)
    if config.targets.kind in UNCLASSED:
        classed = np.full_like(classed, -1)
    else:
        classed[unnamed] = labels[rows.box_images[unnamed]]
    sizes = np.ones((len(rows.names), 2), np.float32) if rows.sizes is None else np.maximum(rows.sizes, 1)
    _check_edges(rows, place)
    if config.targets.kind == "labels":
        _check_names(rows, place)
    objects, ledger = ImageObjects(rows.box_images, rows.boxes, classed), rows.ledger
    if config.targets.kind not in UNCLASSED:
        for reason, which in left_out(objects, labels, sizes).items():
            label, image = rows.box_labels.text(int(which[0])), rows.names[int(rows.box_images[which[0]])]
            ledger.add(reason, image if label is None else f'"{label}" of {image}', len(which))
    catalog = images_catalog(split, FileList.of(rows.names), labels, classes.names, targets(objects, labels, sizes))
    # Relative boxes are divided by 1, which is no image's size.
    stated = None if rows.sizes is None else np.where(sizes.max(axis=1, keepdims=True) > 1, sizes, 0)
    return replace(catalog, annotated=rows.annotated, weights=rows.weights, stated=stated, ledger=ledger)


def _check_edges(rows: Rows, place: str) -> None:
    """Raises ConfigError if a box has an edge that is no number, or most are swapped, as those of another format."""
    odd = np.flatnonzero(~np.isfinite(rows.boxes).all(axis=1))
    for box in odd.tolist():
        raise ConfigError(
            f"{len(odd)} of {len(rows.boxes)} boxes in {place} have an edge that is no number, e.g. "
            f"{rows.boxes[box].tolist()} of {rows.origin(int(rows.box_images[box]))}: correct them"
        )
    swapped = np.flatnonzero((rows.boxes[:, :2] > rows.boxes[:, 2:]).any(axis=1))
    if 2 * len(swapped) > len(rows.boxes):
        first = int(swapped[0])
        raise ConfigError(
            f"{place}: {len(swapped)} of {len(rows.boxes)} boxes have an edge beyond the opposite one, e.g. "
            f"{rows.boxes[first].tolist()} (ymin, xmin, ymax, xmax) of {rows.origin(int(rows.box_images[first]))}, as "
            'boxes of another format: set data.source.columns.box_format, e.g. to "xywh", or correct them'
        )


def _check_names(rows: Rows, place: str) -> None:
    """Raises ConfigError if the labels of each image are a 0 or 1 for each class: a list of labels names classes."""
    counts = np.bincount(rows.box_images, minlength=len(rows.names))
    if not counts.size or counts.min() != counts.max() or rows.box_labels.distinct() not in HOT:
        return
    numbers = np.sort(rows.box_labels.numbers.reshape(len(counts), -1), axis=1)
    if (numbers[:, 1:] == numbers[:, :-1]).any() and (rows.boxes == WHOLE_IMAGE).all():
        raise ConfigError(
            f"{place}: each list of labels has {counted(int(counts[0]), 'number')}, 0 or 1, e.g. that of "
            f"{rows.origin(0)}, as for each class whether an image has it; accepted: lists of the names or numbers of "
            'the classes that it has, or for rows of numbers data.targets "number"'
        )


def images_catalog(
    split: str, paths: FileList, labels: np.ndarray, classes: tuple[str, ...], boxes: Boxes | None = None
) -> Catalog:
    """Returns the catalog of images of which no XML is read; `boxes` are those to crop, None for whole images."""
    return Catalog(split, paths, [""] * len(paths.folders), np.zeros(len(paths), bool), labels, classes, boxes)


def apply_settings(config: DataConfig, catalog: Catalog, *, show: bool) -> Catalog:
    """Returns a catalog of images_catalog with what `config` asks for; `show`: logs what is left out.

    Raises ConfigError if there are more classes than `data.num_classes`.
    """
    if show:
        catalog.ledger.warn(f"{catalog.split} data, {catalog.display_name}")
        warn_of_numbers(catalog.classes if catalog.split == "train" else (), config)
    check_count(len(catalog.classes), config, f"in {catalog.display_name}")
    boxes, annotated, count = catalog.boxes, catalog.annotated, len(catalog)
    needs_boxes = config.uses_boxes(catalog.split)
    if boxes is None or config.annotations == "none":
        whole = np.repeat(WHOLE_IMAGE, count, axis=0)
        boxes, annotated = Boxes(np.arange(count, dtype=np.int32), whole, catalog.labels), np.zeros(count, bool)
    return replace(
        catalog,
        annotated=annotated if needs_boxes else np.zeros(count, bool),
        boxes=boxes if needs_boxes or catalog.masks is not None else None,
        by_box=catalog.split == "train" and config.unit == "box" and needs_boxes,
        weights=catalog.weights if catalog.split == "train" else None,
        stated=catalog.stated if needs_boxes and annotated.any() else None,
    )


class Classes(NamedTuple):
    """The class table of a table's or tar shards' labels."""

    names: tuple[str, ...]  # by class number; () for labels that are no classes
    numbers: Mapping[str, int]  # class number of each label


def classes_of(config: DataConfig, rows: Rows, place: str) -> Classes:
    """Returns the class table: `data.classes`, or that of the training data, whose `rows` these are.

    Labels may be numbers of classes if the data or the config have the classes in an order of their own. Raises
    ConfigError if there is no class, a name occurs twice, or the labels are no classes but ids.
    """
    if config.classes is not None:
        names = class_table(config, FileList.of([]))
        return Classes(names, numbers_of(names))
    if config.targets.kind in UNCLASSED:
        return Classes((), {})
    if rows.classes is not None:
        names = checked_classes(rows.classes, config, f"in {place}")
        return Classes(names, numbers_of(names))
    names = _names_of(config, rows, place)
    return Classes(names, {name: number for number, name in enumerate(names)})


def _names_of(config: DataConfig, rows: Rows, place: str) -> tuple[str, ...]:
    """Returns the class names that labels have, or all numbers up to the largest."""
    by_object = config.label_source == "object"
    labels = rows.box_labels if by_object else rows.labels
    names = labels.distinct()
    if not names:
        raise ConfigError(
            f'{place} has no labels: set data.source.columns.label, or with data.label_source "object" '
            "data.source.columns.box_labels"
        )
    numbers = set(filter(NUMBER.fullmatch, names))
    negative = [name for name in names if NEGATIVE.fullmatch(name)]
    if negative and all(name in numbers or NEGATIVE.fullmatch(name) for name in names):
        number = int(np.argmax(labels.numbers == labels.names.index(negative[0])))
        item = int(rows.box_images[number]) if by_object else number
        raise ConfigError(
            f'{rows.origin(item)} has the label "{negative[0]}"; class numbers count from 0: take the rows without a '
            "class out of the table"
        )
    if len(numbers) < len(names):
        _check_one_kind(rows, labels, rows.file[rows.box_images] if by_object else rows.file, numbers)
    count = max(map(int, names)) + 1 if len(numbers) == len(names) else len(names)
    check_count(count, config, f"in {place}")
    if config.num_classes is None and (count > MAX_IDS or (count > MANY_IDS and 2 * count > len(labels.numbers))):
        column = rows.column if config.source is None else getattr(config.source.columns, rows.column)
        raise ConfigError(
            f'{place}: {counted(len(labels.numbers), "label")} in "{column}" would make {counted(count, "class")}, as '
            f"ids do: set data.source.columns.{rows.column} to the classes, or data.num_classes if there are so many"
        )
    if len(numbers) == len(names):
        return tuple(map(str, range(count)))
    return checked_classes(names, config, f"in {place}")


def _check_one_kind(rows: Rows, labels: Texts, file: np.ndarray, numbers: set[str]) -> None:
    """Raises ConfigError if all labels of one file are numbers, and another one has names.

    `file` (int32 [n]) is the number of each label's file. Numbers among the names of a file are names too.
    """
    names = set(labels.names) - numbers
    kinds = labels.values({**dict.fromkeys(numbers, 0), **dict.fromkeys(names, 1)})
    named = np.bincount(file[kinds == 1], minlength=len(rows.files)) > 0
    numbered = np.flatnonzero(~named & (np.bincount(file[kinds == 0], minlength=len(rows.files)) > 0))
    if numbered.size:
        one, other = int(np.argmax((kinds == 0) & (file == numbered[0]))), int(np.argmax(kinds == 1))
        raise ConfigError(
            f'{rows.files[file[one]]} has numbers as labels, e.g. "{labels.text(one)}", and {rows.files[file[other]]} '
            f'names, e.g. "{labels.text(other)}": whose numbers are whose names cannot be told; set data.classes to '
            "the names in the order of the numbers or, if the numbers are names, to all names"
        )


def _labels(config: DataConfig, rows: Rows, classed: np.ndarray, classes: Classes, place: str) -> np.ndarray:
    """Returns the images' labels, int32 [n]; `classed` (int32 [k]) are the class numbers of boxes, -1 for none."""
    if config.targets.kind in UNCLASSED:
        return np.zeros(len(rows.names), np.int32)
    by_object = config.label_source == "object"
    check_no_ids((rows.box_labels if by_object else rows.labels).distinct(), classes.names, place)
    if by_object:
        _check_objects(config, rows, classed, classes.names, place)
        return np.full(len(rows.names), BY_OBJECT, np.int32)
    labels = rows.labels.values(classes.numbers)
    wrong = np.flatnonzero(labels < 0)
    if not wrong.size:
        return labels
    first = int(wrong[0])
    label = rows.labels.text(first)
    problem = 'no label, its own or by its boxes: add it, take the image out, or set data.label_source to "object"'
    several = rows.box_labels.distinct(rows.box_images == first)
    if label is not None:
        problem = _no_class(label, classes.names)
    elif len(several) > 1:
        problem = f'boxes of several classes ({", ".join(several[:3])}): set data.label_source to "object"'
    raise ConfigError(
        f"{place}: {wrong.size} of {len(labels)} images have no class, e.g. {rows.origin(first)} has {problem}"
    )


def _check_objects(config: DataConfig, rows: Rows, classed: np.ndarray, classes: tuple[str, ...], place: str) -> None:
    wrong = np.flatnonzero(classed < 0)
    unnamed = wrong[rows.box_labels.numbers[wrong] < 0]
    if config.classes is not None and not unnamed.size:
        return  # their objects of other classes are left out
    if wrong.size:
        first = int((unnamed if unnamed.size else wrong)[0])
        label = rows.box_labels.text(first)
        problem = "no label: correct it, or take it out" if label is None else _no_class(label, classes)
        raise ConfigError(
            f"{place}: {len(unnamed) or wrong.size} of {len(classed)} boxes have no class, e.g. a box of "
            f"{rows.origin(int(rows.box_images[first]))} has {problem}"
        )


def _no_class(label: str, classes: tuple[str, ...]) -> str:
    return (
        f'the label "{label}", which is none of {len(classes)} classes ({", ".join(classes[:3])} ...), those of '
        "data.classes or else of the training data: correct it, or name all classes in data.classes"
    )
