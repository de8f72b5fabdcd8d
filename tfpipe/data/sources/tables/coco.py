"""COCO's instances JSON as a table: the boxes and categories of images in a folder."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tfpipe.data.annotations.objects import are_relative
from tfpipe.data.catalog.labels import label_text
from tfpipe.data.catalog.splits import listing
from tfpipe.data.sources.rows import Rows, Texts, as_edges, is_box
from tfpipe.data.sources.tables.table import Table
from tfpipe.errors import ConfigError
from tfpipe.util.files import text_of
from tfpipe.util.ledger import Ledger


class Coco(Table):
    """Images and objects of instances_train2017.json; crowds, whose box holds many objects, are left out."""

    suffixes: ClassVar[tuple[str, ...]] = (".json",)
    within = ", and data.source.test_share makes some of these"

    def has_contents(self, tables: Sequence[Path]) -> bool:
        return False

    def rows(self, tables: Sequence[Path], stored: bool, split: str) -> Rows:
        if len(tables) > 1:
            raise ConfigError(
                f"data.source: {listing(list(map(str, tables)))} are several JSON files of one split, each with ids of "
                "its own: name one of them in data.source.path or test_path, or merge them"
            )
        (path,) = tables
        return self.share(read_coco(path), split)


def read_coco(path: Path) -> Rows:
    """Reads the images of COCO's JSON in its order.

    Raises ConfigError if it cannot be read, is of another kind, or an entry contradicts another; the message names it.
    """
    try:
        content = json.loads(text_of(path, "data.source: "))
        _check_kind(content)
        names = _categories(content["categories"])
        images, numbers = _images(content["images"])
        ledger, objects = Ledger(), dict[int, dict[str, Any]]()
        for number, entry in enumerate(content["annotations"]):
            if _is_crowd(entry, number):
                ledger.add("boxes of crowds", _name(entry, number))
            else:
                objects[number] = entry
        owners, edges, texts = _objects(objects, numbers, names)
        sizes = np.array([[_side(image, side) for side in ("height", "width")] for image in images], np.float32)
        # Tools on Windows write its separator, which no name in a published data set has.
        paths = [image["file_name"].replace("\\", "/") for image in images]
    except Contradiction as error:
        raise ConfigError(f"data.source: {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"data.source: {path} is no instances JSON of COCO, with images, annotations and categories: {error!r}"
        ) from error
    if not paths:
        raise ConfigError(f"data.source: {path} has no image")
    classes = Texts.of(texts)
    low, high = np.full(len(paths), len(classes.names), np.int32), np.full(len(paths), -1, np.int32)
    np.minimum.at(low, owners, classes.numbers)
    np.maximum.at(high, owners, classes.numbers)
    rows = Rows(
        paths,
        Texts(np.where(low == high, high, -1), classes.names),
        owners,
        as_edges(edges, "xywh"),
        classes,
        sizes.reshape(-1, 2),
        [str(path)],
        np.zeros(len(paths), np.int32),
        classes=[names[number] for number in sorted(names)],
        left_out=ledger.counts,
    )
    return rows.with_owners(owners)


class Contradiction(ValueError):
    """An entry of the JSON that cannot be used; the message says which, and why."""


def _check_kind(content: dict[str, Any]) -> None:
    """Raises Contradiction for JSON that is like COCO's instances, but lacks what they have."""
    if "images" in content and "annotations" not in content:
        raise Contradiction("it has images and no annotations, as image_info_*.json of test data: they have no boxes")
    if any("file_name" not in entry and "coco_url" in entry for entry in content["images"]):
        raise Contradiction(
            "its images have a coco_url and no file_name, as LVIS' have: add each one's file_name, the end of its "
            "coco_url, e.g. train2017/000000391895.jpg"
        )


def _categories(entries: list[dict[str, Any]]) -> dict[Any, str]:
    """Returns the name of each category by its id."""
    names: dict[Any, str] = {}
    for entry in entries:
        if not isinstance(entry["name"], str) or not label_text(entry["name"]):
            raise Contradiction(f"the category {entry['id']}: received {entry['name']!r} as name; accepted: a text")
        name = label_text(entry["name"]) or ""
        if names.setdefault(entry["id"], name) != name:
            raise Contradiction(
                f'the categories "{names[entry["id"]]}" and "{name}" have the same id, {entry["id"]}: give '
                "each category an id of its own"
            )
    kinds = {isinstance(number, str): number for number in names}
    if len(kinds) > 1:
        raise Contradiction(f"the categories have the ids {kinds[False]} and {kinds[True]!r}: use all numbers or texts")
    for name in [name for name, count in Counter(names.values()).items() if count > 1]:
        same = " and ".join(str(number) for number in names if names[number] == name)
        raise Contradiction(
            f'the categories with the ids {same} have the same name, "{name}": rename them, or merge them'
        )
    return names


def _images(entries: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[Any, int]]:
    """Returns the images, without repetitions, and the number of each by its id."""
    images: list[dict[str, Any]] = []
    numbers: dict[Any, int] = {}
    for entry in entries:
        if not isinstance(entry["file_name"], str) or not entry["file_name"]:
            raise Contradiction(f"the image {entry['id']}: received {entry['file_name']!r} as file_name")
        number = numbers.setdefault(entry["id"], len(images))
        if number == len(images):
            images.append(entry)
        elif images[number]["file_name"] != entry["file_name"]:
            raise Contradiction(
                f"the images {images[number]['file_name']} and {entry['file_name']} have the same id, {entry['id']}: "
                "whose boxes are whose cannot be told; give each image an id of its own"
            )
    return images, numbers


def _name(entry: dict[str, Any], number: int) -> str:
    return f"the annotation {entry.get('id', number)}"


def _is_crowd(entry: dict[str, Any], number: int) -> bool:
    """Returns whether an annotation's box holds many objects; texts and booleans are numbers, too."""
    value = entry.get("iscrowd") or 0
    if value not in (0, 1, "0", "1"):
        raise Contradiction(f"{_name(entry, number)}: received {value!r} as iscrowd; accepted: 0 or 1")
    return int(value) == 1


def _objects(
    entries: dict[int, dict[str, Any]], numbers: dict[Any, int], names: dict[Any, str]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns the number of each object's image, int64 [k], its box as stored, float32 [k, 4], and its category."""
    owners, texts = list[int](), list[str]()
    boxes: list[list[float]] = []
    for number, entry in entries.items():
        name = _name(entry, number)
        for key, ids in (("image_id", numbers), ("category_id", names)):
            if entry.get(key) not in ids:
                raise Contradiction(f"{name} has the {key} {entry.get(key)}, which is none of its {key[:-3]} ids")
        box: Any = entry.get("bbox")
        if not is_box(box):
            received = f"{str(box)[:80]} as bbox" if "bbox" in entry else "no bbox"
            raise Contradiction(f"{name}: received {received}; accepted: [x, y, width, height]")
        owners.append(numbers[entry["image_id"]])
        boxes.append(box)
        texts.append(names[entry["category_id"]])
    if are_relative(list(chain.from_iterable(boxes))):
        raise Contradiction(
            f"all boxes are from 0 to 1, e.g. {boxes[0]}, so relative to the images' sizes; accepted: [x, y, width, "
            "height] in pixels"
        )
    return np.array(owners, np.int64), np.array(boxes, np.float32).reshape(-1, 4), texts


def _side(image: dict[str, Any], side: str) -> float:
    """Returns an image's height or width; NaN if it is not stated."""
    value = image.get(side)
    if value is not None and not isinstance(value, int | float):
        raise Contradiction(f'the image {image["file_name"]}: received "{value}" as {side}; accepted: a number')
    return np.nan if value is None else value
