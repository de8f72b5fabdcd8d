"""Labels and boxes of tables, COCO and tar shards, against an independent reading of the same rows.

Rows are drawn at random and written in each form; plain Python says which class and which boxes each image has.
"""

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.images import encoded, picture
from tests.support.routes import tar_bytes
from tests.support.xmls import bndbox, note, thing
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

SIZES = [(24, 32), (17, 9), (40, 40)]
FORMS = ("csv", "parquet", "bytes", "structs", "jsonl", "coco", "json in tar", "xml in tar")
NAMES = ("cat", "dog", "a b", "é", "7", "10")


class Image(NamedTuple):
    """A row: which of SIZES the image has, whether the row states it, and its boxes xmin, ymin, xmax, ymax."""

    size: int
    stated: bool
    label: str
    boxes: list[tuple[float, float, float, float]]
    box_labels: list[str]


class Data(NamedTuple):
    """Rows of training and of test data, whose classes are among those of the training data."""

    train: list[Image]
    test: list[Image]
    pixels: bool
    by_object: bool


@st.composite
def data(draw: st.DrawFn, form: str) -> Data:
    pixels = form in ("coco", "xml in tar") or draw(st.booleans())
    by_object = form == "coco" or draw(st.booleans())
    # A relative edge of 1 may come out a little above it.
    edge = st.integers(-3, 45).map(float) if pixels else st.sampled_from([0.0, 0.125, 0.3, 0.5, 0.9, 1.0, 1.0000001])

    def images(names: list[str]) -> list[Image]:
        chosen = []
        for _ in range(draw(st.integers(1, 5))):
            label = draw(st.sampled_from(names))
            boxes = draw(st.lists(st.tuples(edge, edge, edge, edge), max_size=3))
            own = st.sampled_from(names) if by_object and form != "csv" else st.just(label)
            box_labels = [draw(own) for _ in boxes]
            chosen.append(Image(draw(st.integers(0, 2)), draw(st.booleans()), label, boxes, box_labels))
        return chosen

    first = Image(
        0, True, draw(st.sampled_from(NAMES)), [(1.0, 2.0, 30.0, 20.0) if pixels else (0.1, 0.2, 0.3, 0.4)], []
    )
    train = [first._replace(box_labels=[first.label]), *images(list(NAMES))]
    labels = {image.label for image in train} if not by_object else {one for image in train for one in image.box_labels}
    test = [first._replace(label=min(labels), box_labels=[min(labels)]), *images(sorted(labels))]
    return Data(train, test, pixels, by_object)


# ---- the independent reading ---------------------------------------------------------------------------------


def most_are_swapped(images: list[Image]) -> bool:
    swapped = [x1 > x2 or y1 > y2 for image in images for x1, y1, x2, y2 in image.boxes]
    return 2 * sum(swapped) > len(swapped)


def class_names(data: Data) -> list[str]:
    """Labels that are whole numbers are class numbers; others are names, numbered in sorted order."""
    used = {one for image in data.train for one in (image.box_labels if data.by_object else [image.label])}
    if all(name.isdigit() for name in used):
        return [str(number) for number in range(max(map(int, used)) + 1)]
    return sorted(used)


def expected(data: Data, chosen: list[Image], classes: list[str]) -> list[tuple[int, list[tuple[int, list[float]]]]]:
    """Each image's class, -1 if its boxes have classes, and its crops: class, and ymin, xmin, ymax, xmax in [0, 1]."""
    images = []
    for image in chosen:
        height, width = SIZES[image.size] if data.pixels else (1, 1)
        crops = []
        for (x1, y1, x2, y2), name in zip(image.boxes, image.box_labels, strict=True):
            left, right = (min(max(x, 0), width) / width for x in sorted((x1, x2)))
            top, bottom = (min(max(y, 0), height) / height for y in sorted((y1, y2)))
            if left < right and top < bottom:
                crops.append((classes.index(name if data.by_object else image.label), [top, left, bottom, right]))
        if not crops and not data.by_object:
            crops = [(classes.index(image.label), [0.0, 0.0, 1.0, 1.0])]
        images.append((-1 if data.by_object else classes.index(image.label), crops))
    return images


# ---- the forms -----------------------------------------------------------------------------------------------


def size_of(image: Image) -> dict[str, int | None]:
    height, width = SIZES[image.size]
    return {"height": height, "width": width} if image.stated else {"height": None, "width": None}


def write(form: str, data: Data, chosen: list[Image], path: Path, classes: list[str]) -> Path:
    names = [f"{number}.jpg" for number in range(len(chosen))]
    files = [JPEGS[image.size] for image in chosen]
    for name, file in zip(names, files, strict=True):
        (path.parent / path.name / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(file)
    if form == "csv":
        return write_csv(path / "t.csv", chosen, names)
    if form == "coco":
        return write_coco(path / "t.json", chosen, names)
    if form.endswith("tar"):
        return write_tar(path / "t.tar", chosen, names, files, form)
    rows = [
        {"path": name, "label": image.label, "boxes": image.boxes, "box_labels": image.box_labels, **size_of(image)}
        for name, image in zip(names, chosen, strict=True)
    ]
    if form == "jsonl":
        (path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path / "t.jsonl"
    return write_parquet(path / "t.parquet", rows, files, form, classes)


def write_csv(path: Path, chosen: list[Image], names: list[str]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "height", "width", "xmin", "ymin", "xmax", "ymax"])
        for name, image in zip(names, chosen, strict=True):
            for box in image.boxes or [("",) * 4]:
                rows.writerow([name, image.label, *(side or "" for side in size_of(image).values()), *box])
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]], files: list[bytes], form: str, classes: list[str]) -> Path:
    """Writes them like Hugging Face's datasets, in "structs" with ClassLabel's numbers in an order of their own."""
    for row, file in zip(rows, files, strict=True):
        name, numbers = row.pop("path"), ORDER + [name for name in classes if name not in ORDER]
        row["image"] = {"bytes": file if form != "parquet" else None, "path": name}
        if form == "structs":
            row["label"] = numbers.index(row["label"])
            pairs = zip(row.pop("boxes"), row.pop("box_labels"), strict=True)
            row["objects"] = [{"bbox": box, "category": numbers.index(label)} for box, label in pairs]
    boxes = pa.list_(pa.list_(pa.float64(), 4))
    objects = pa.list_(pa.struct({"bbox": pa.list_(pa.float64(), 4), "category": pa.int64()}))
    schema = {
        "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        "label": pa.int64() if form == "structs" else pa.string(),
        **({"objects": objects} if form == "structs" else {"boxes": boxes, "box_labels": pa.list_(pa.string())}),
        "height": pa.int32(),
        "width": pa.int32(),
    }
    label = {"names": ORDER, "_type": "ClassLabel"}
    features = {"label": label, "objects": {"feature": {"bbox": {}, "category": label}, "_type": "List"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}})} if form == "structs" else None
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(schema, about)), path, row_group_size=2)
    return path


def write_coco(path: Path, chosen: list[Image], names: list[str]) -> Path:
    """Ids have gaps, and categories those of this file alone; unstated sizes are left out."""
    used = sorted({name for image in chosen for name in image.box_labels}, reverse=True)
    images, objects = [], []
    for number, (name, image) in enumerate(zip(names, chosen, strict=True)):
        sides = {side: value for side, value in size_of(image).items() if value is not None}
        images.append({"id": 90 - number, "file_name": name, **sides})
        for (x1, y1, x2, y2), label in zip(image.boxes, image.box_labels, strict=True):
            entry = {"image_id": 90 - number, "category_id": 3 * used.index(label) + 1}
            objects.append({"id": len(objects), "bbox": [x1, y1, x2 - x1, y2 - y1], **entry})
    categories = [{"id": 3 * number + 1, "name": name} for number, name in enumerate(used)]
    path.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return path


def write_tar(path: Path, chosen: list[Image], names: list[str], files: list[bytes], form: str) -> Path:
    members: dict[str, bytes] = {}
    for name, image, file in zip(names, chosen, files, strict=True):
        stem = Path(name).stem
        members[f"{stem}.jpg"] = file
        if form == "xml in tar":
            sides = "".join(f"<{side}>{value or 0}</{side}>" for side, value in size_of(image).items())
            boxes = zip(image.box_labels, image.boxes, strict=True)
            things = [thing(f"<name>{label}</name>", bndbox(*map(str, box))) for label, box in boxes]
            xml = note(*things, size=f"<size>{sides}</size>")
            members |= {f"{stem}.cls": f"{image.label}\n".encode(), f"{stem}.xml": xml.encode()}
        else:
            about = {"label": image.label, "boxes": image.boxes, "box_labels": image.box_labels, **size_of(image)}
            members[f"{stem}.json"] = json.dumps(about).encode()
    path.write_bytes(tar_bytes(members))
    return path


JPEGS = [encoded(picture(height, width, number)) for number, (height, width) in enumerate(SIZES)]
# The names of ClassLabel, some of which no row has; the number of each is its place.
ORDER = ["10", "dog", "é", "7", "unused", "a b", "cat"]


@pytest.mark.parametrize("form", FORMS)
def test_labels_and_boxes_are_those_of_the_rows(tmp_path_factory: pytest.TempPathFactory, form: str) -> None:
    @settings(max_examples=examples(100))
    @given(data(form))
    def check(drawn: Data) -> None:
        root = tmp_path_factory.mktemp("rows")
        classes = list(ORDER) if form == "structs" else class_names(drawn)
        if form == "coco":  # numbered by category id
            classes = sorted({name for image in drawn.train for name in image.box_labels}, reverse=True)
        source: dict[str, Any] = {"kind": {"coco": "coco"}.get(form, "webdataset" if "tar" in form else "table")}
        # In a shard, each image's boxes are looked at alone: [0, 0, 1, 1] may be a pixel or the whole image.
        source["columns"] = {"box_unit": "pixels"} if form == "json in tar" and drawn.pixels else {}
        if form == "structs":
            source["columns"] |= {"boxes": "objects.bbox", "box_labels": "objects.category"}
        for key, chosen in (("path", drawn.train), ("test_path", drawn.test)):
            source[key] = str(write(form, drawn, chosen, root / key, classes))
        keys = {"label_source": "object"} if drawn.by_object else {}
        config = make_config({"data": {"source": source, "index": str(root / "index"), **keys}})
        for split, chosen in (("train", drawn.train), ("test", drawn.test)):
            if most_are_swapped(chosen):
                with pytest.raises(ConfigError, match="have an edge beyond the opposite one"):
                    load_split(config.data, split, World())
                continue
            loaded = load_split(config.data, split, World())
            catalog = loaded.catalog
            assert list(catalog.classes) == classes
            wanted = expected(drawn, chosen, classes)
            assert catalog.labels.tolist() == [label for label, _ in wanted]
            crops = [(number, *crop) for number, (_, crops) in enumerate(wanted) for crop in crops]
            assert catalog.boxes.images.tolist() == [number for number, _, _ in crops]
            assert catalog.boxes.labels.tolist() == [label for _, label, _ in crops]
            boxes = np.array([edges for _, _, edges in crops]).reshape(-1, 4)
            np.testing.assert_allclose(catalog.boxes.boxes, boxes, atol=1e-6)
            names = [Path(name).stem for name in catalog.paths]
            assert names == [str(number) for number in range(len(chosen))]
            for number, image in enumerate(chosen):
                assert loaded.image(number) == JPEGS[image.size]

    check()
