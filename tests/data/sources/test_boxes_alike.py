"""Boxes of every source pass the same checks: what one refuses, counts or puts in order, all do."""

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.archives import tar_bytes
from tests.support.images import encoded, picture
from tests.support.tfrecords import write_examples
from tests.support.xmls import annotation
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.described import config_of_data
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

HEIGHT, WIDTH = 20, 40
IMAGE = encoded(picture(HEIGHT, WIDTH))
BOXES_OF = list[list[list[float]]]  # by image: ymin, xmin, ymax, xmax


class Case(NamedTuple):
    """Boxes of two images, and what becomes of them."""

    boxes: BOXES_OF
    expected: list[list[float]] | str  # in pixels, all boxes; or what a refusal says
    left_out: Mapping[str, int] = {}


SOUND = [[[2, 4, 10, 20], [0, 0, 20, 40]], [[5, 5, 15, 30]]]
FLAT = [box for boxes in SOUND for box in boxes]
SWAPPED = "boxes with swapped edges, which are put in order"
CASES = {
    "pixels": Case(SOUND, FLAT),
    "fractions": Case([[[2.5, 4.25, 10, 20]], [[5, 5, 15, 30.75]]], [[2.5, 4.25, 10, 20], [5, 5, 15, 30.75]]),
    "relative": Case([[[0.1, 0.1, 0.5, 0.5]], [[0, 0, 1, 1]]], [[2, 4, 10, 20], [0, 0, 20, 40]]),
    "a few swapped": Case([[[10, 20, 2, 4], [0, 0, 20, 40]], SOUND[1]], FLAT, {SWAPPED: 1}),
    "most swapped": Case([[[10, 20, 2, 4], [20, 40, 0, 0]], SOUND[1]], "have an edge beyond the opposite one"),
    "without an area": Case([[*SOUND[0], [3, 3, 3, 9]], SOUND[1]], FLAT, {"boxes without an area": 1}),
    "beyond the image": Case([[[2, 4, 10, 20], [-5, -5, 30, 60]], SOUND[1]], FLAT),
    # As its JSON, its XML or its column says it.
    "no number": Case([[[math.nan, 4, 10, 20]], SOUND[1]], ""),
    "endless": Case([[[2, 4, 10, math.inf]], SOUND[1]], ""),
}
Write = Callable[[Path, BOXES_OF], dict[str, Any]]


def files_of(folder: Path) -> Path:
    for number in range(2):
        (folder / f"{number}.jpg").write_bytes(IMAGE)
    return folder


def table_of(folder: Path, boxes: BOXES_OF) -> dict[str, Any]:
    edges = [[[x1, y1, x2, y2] for y1, x1, y2, x2 in some] for some in boxes]
    table = {
        "path": ["0.jpg", "1.jpg"],
        "label": ["a", "b"],
        "boxes": pa.array(edges, pa.list_(pa.list_(pa.float64()))),
    }
    pq.write_table(pa.table(table), files_of(folder) / "t.parquet")
    return {"kind": "table", "path": str(folder / "t.parquet")}


def csv_of(folder: Path, boxes: BOXES_OF) -> dict[str, Any]:
    with (files_of(folder) / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "ymin", "xmin", "ymax", "xmax"])
        rows.writerows([f"{number}.jpg", "ab"[number], *box] for number, some in enumerate(boxes) for box in some)
    return {"kind": "table", "path": str(folder / "t.csv")}


def coco_of(folder: Path, boxes: BOXES_OF) -> dict[str, Any]:
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(2)]
    entries = [
        {"image_id": number, "category_id": number, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for number, some in enumerate(boxes)
        for y1, x1, y2, x2 in some
    ]
    categories = [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]
    content = {"images": images, "annotations": entries, "categories": categories}
    (files_of(folder) / "c.json").write_text(json.dumps(content))
    return {"kind": "coco", "path": str(folder / "c.json")}


def shards_of(folder: Path, boxes: BOXES_OF) -> dict[str, Any]:
    files = {}
    for number, some in enumerate(boxes):
        edges = [[x1, y1, x2, y2] for y1, x1, y2, x2 in some]
        files |= {
            f"{number}.jpg": IMAGE,
            f"{number}.json": json.dumps({"label": "ab"[number], "boxes": edges}).encode(),
        }
    (folder / "s.tar").write_bytes(tar_bytes(files))
    return {"kind": "webdataset", "path": str(folder / "s.tar")}


def xmls_of(folder: Path, boxes: BOXES_OF) -> dict[str, Any]:
    files = {}
    for number, some in enumerate(boxes):
        name = "ab"[number]
        text = annotation(*((name, tuple(box)) for box in some), size=(HEIGHT, WIDTH))
        files |= {f"JPEGImages/{name}/{number}.jpg": IMAGE, f"Annotations/{name}/{number}.xml": text.encode()}
    (folder / "a.tar").write_bytes(tar_bytes(files))
    return {"kind": "archive", "path": str(folder / "a.tar")}


def records_of(folder: Path, boxes: BOXES_OF, *, whole: bool = False) -> dict[str, Any]:
    examples = []
    for number, some in enumerate(boxes):
        features: dict[str, Any] = {"image/encoded": IMAGE, "image/class/label": number + 1}
        features["image/class/synset"] = b"ab"[number : number + 1]
        for edge, values in zip(("ymin", "xmin", "ymax", "xmax"), np.array(some, float).T, strict=True):
            integers = whole and all(value.is_integer() for value in values.tolist())
            features[f"image/object/bbox/{edge}"] = values.astype(int) if integers else values
        examples.append(features)
    write_examples(folder / "train-00000-of-00001", *examples)
    return {"kind": "tfrecord", "path": str(folder)}


def integers_of(folder: Path, boxes: BOXES_OF) -> dict[str, Any]:
    return records_of(folder, boxes, whole=True)


SOURCES: dict[str, Write] = {
    "parquet": table_of, "csv": csv_of, "coco": coco_of, "shards": shards_of, "xmls": xmls_of, "records": records_of,
    "records of integers": integers_of,
}  # fmt: skip
# Formats whose boxes are in pixels.
PIXELS = ("coco", "xmls")


def outcome(source: dict[str, Any]) -> tuple[list[list[float]], dict[str, int]] | str:
    """Returns the boxes in pixels, and the counts of what is left out; or the message."""
    config = make_config({"data": {"crop_image_size": [8, 8], "source": source}}).data
    try:
        catalog = load_split(config, "train", World()).catalog
    except ConfigError as error:
        return str(error)
    assert catalog.boxes is not None
    boxes = catalog.boxes.boxes * np.array([HEIGHT, WIDTH, HEIGHT, WIDTH], np.float32)
    return np.round(boxes, 3).tolist(), {reason: count for reason, (count, _) in catalog.ledger.counts.items()}


CELLS = [(source, name) for source in SOURCES for name in CASES if name != "relative" or source not in PIXELS]


@pytest.mark.parametrize(("source", "name"), CELLS)
def test_boxes_pass_the_same_checks(tmp_path: Path, source: str, name: str) -> None:
    case = CASES[name]
    found = outcome(SOURCES[source](tmp_path, case.boxes))
    if isinstance(case.expected, str):
        assert isinstance(found, str) and case.expected in found
        return
    assert not isinstance(found, str), found
    assert np.allclose(found[0], case.expected, atol=0.01), found
    assert found[1] == case.left_out


@pytest.mark.parametrize("name", CASES)
def test_boxes_in_memory_pass_them_too(tmp_path: Path, name: str) -> None:
    source, case = table_of(tmp_path, CASES[name].boxes), CASES[name]
    frame = pd.read_parquet(source["path"])
    frame["path"] = [str(tmp_path / path) for path in frame["path"]]
    keys = {"crop_image_size": [8, 8]}
    config, opened = config_of_data(frame, "train", keys, ["config", "keys"])
    try:
        catalog = load_split(config.data, "train", World(), opened).catalog
    except ConfigError:
        assert isinstance(case.expected, str)
        return
    assert catalog.boxes is not None and not isinstance(case.expected, str)
    expected = np.array(case.expected, np.float32) / [HEIGHT, WIDTH, HEIGHT, WIDTH]
    assert np.allclose(catalog.boxes.boxes, expected, atol=0.001)
    assert {reason: count for reason, (count, _) in catalog.ledger.counts.items()} == case.left_out


def test_a_box_of_the_first_pixel_has_the_unit_of_its_shards_others(tmp_path: Path) -> None:
    """A record alone would say that it is the whole image."""
    found = outcome(records_of(tmp_path, [[[0, 0, 1, 1]], [[5, 5, 15, 30]]]))
    assert not isinstance(found, str) and np.allclose(found[0], [[0, 0, 1, 1], [5, 5, 15, 30]], atol=0.01)


def test_units_that_contradict_are_refused_in_every_source(tmp_path: Path) -> None:
    both = [[[0.1, 0.1, 0.5, 0.5], [2, 4, 10, 20]], [[5, 5, 15, 30]]]
    for name, write in SOURCES.items():
        if name not in PIXELS and "integers" not in name:
            folder = tmp_path / name
            folder.mkdir()
            found = outcome(write(folder, [[list(map(float, box)) for box in some] for some in both]))
            assert isinstance(found, str) and "in pixels" in found, (name, found)
