"""Class numbers and units of boxes, the same for tables, COCO and tar shards."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.images import encoded, picture
from tests.support.routes import tar_bytes
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.registry import load_split
from tfpipe.data.sources.rows import Texts, boxes_of, in_pixels
from tfpipe.errors import ConfigError

FILE = encoded(picture(24, 32))


def catalog_of(kind: str, train: Path, test: Path | None = None, **data: object) -> Catalog:
    """The training data, or the test data if that is given."""
    columns = data.pop("columns", {})
    source = {"kind": kind, "path": str(train), "columns": columns, **({"test_path": str(test)} if test else {})}
    return load_split(
        make_config({"data": {"source": source, **data}}).data, "test" if test else "train", World()
    ).catalog


def write_csv(folder: Path, name: str, labels: list[str]) -> Path:
    lines = [f"{number}.jpg,{label}\n" for number, label in enumerate(labels)]
    (folder / f"{name}.csv").write_text("".join(["path,label\n", *lines]))
    return folder / f"{name}.csv"


def write_parquet(folder: Path, name: str, labels: list[str]) -> Path:
    """ClassLabel's numbers, in the order in which the names come in this file; null for an empty label."""
    names = list(dict.fromkeys(filter(None, labels)))
    numbers = pa.array([names.index(label) if label else None for label in labels], pa.int64())
    about = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = pa.table({"path": [f"{number}.jpg" for number in range(len(labels))], "label": numbers})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def write_coco(folder: Path, name: str, labels: list[str]) -> Path:
    """Categories by number in the order in which the names come in this file; an empty label is no object."""
    names = list(dict.fromkeys(filter(None, labels)))
    images = [{"id": number, "file_name": f"{number}.jpg", "height": 24, "width": 32} for number in range(len(labels))]
    objects = [
        {"image_id": number, "category_id": names.index(label), "bbox": [1, 1, 9, 9]}
        for number, label in enumerate(labels)
        if label
    ]
    categories = [{"id": number, "name": label} for number, label in enumerate(names)]
    (folder / f"{name}.json").write_text(
        json.dumps({"images": images, "annotations": objects, "categories": categories})
    )
    return folder / f"{name}.json"


def write_tar(folder: Path, name: str, labels: list[str]) -> Path:
    members = {f"{number}.cls": label.encode() for number, label in enumerate(labels)}
    return tar_of(folder / f"{name}.tar", members)


def tar_of(path: Path, notes: dict[str, bytes]) -> Path:
    """Writes a shard of an image for each of these notes."""
    images = [(f"{note.rpartition('.')[0]}.jpg", FILE) for note in notes]
    members = [member for pair in zip(images, notes.items(), strict=True) for member in pair]
    path.write_bytes(tar_bytes(members, tarfile.PAX_FORMAT))
    return path


WRITERS: dict[str, tuple[str, Callable[[Path, str, list[str]], Path]]] = {
    "csv": ("table", write_csv),
    "parquet": ("table", write_parquet),
    "coco": ("coco", write_coco),
    "tar": ("webdataset", write_tar),
}
PLACES = {
    "csv": r"row 2 of .*/{}\.csv, .*/2\.jpg",
    "parquet": r"row 2 of .*/{}\.parquet, .*/2\.jpg",
    "coco": r"{}\.json, .*/2\.jpg",
    "tar": r"{}\.tar, 2\.jpg",
}


@pytest.mark.parametrize("form", WRITERS)
def test_the_training_data_numbers_the_test_data(tmp_path: Path, form: str) -> None:
    kind, write = WRITERS[form]
    train, test = write(tmp_path, "train", ["cat", "dog", "fox"]), write(tmp_path, "other", ["fox", "dog", "fox"])
    catalog = catalog_of(kind, train, test)
    assert catalog.classes == ("cat", "dog", "fox")
    assert catalog.labels.tolist() == [2, 1, 2]
    chosen = catalog_of(kind, train, test, classes=["fox", "dog", "cat"])
    assert chosen.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("classes", [None, ["cat", "dog"]])
def test_an_unknown_class_of_the_test_data_is_named_with_its_row(
    tmp_path: Path, form: str, classes: list[str] | None
) -> None:
    kind, write = WRITERS[form]
    train, test = write(tmp_path, "train", ["cat", "dog"]), write(tmp_path, "other", ["dog", "cat", "cow"])
    message = PLACES[form].format("other") + r' has the label "cow", which is none of 2 classes \(cat, dog'
    with pytest.raises(ConfigError, match=rf"1 of 3 images have no class, e\.g\. .*{message}.* name all classes in da"):
        catalog_of(kind, train, test, classes=classes)


def test_an_unknown_class_of_an_object_is_named_unless_classes_are_chosen(tmp_path: Path) -> None:
    train, test = write_coco(tmp_path, "train", ["cat", "dog"]), write_coco(tmp_path, "other", ["dog", "cow", "cat"])
    with pytest.raises(ConfigError, match=r'1 of 3 boxes have no class, .*1\.jpg has the label "cow", which is none'):
        catalog_of("coco", train, test, label_source="object")
    chosen = catalog_of("coco", train, test, label_source="object", classes=["dog"])
    assert (chosen.boxes.images.tolist(), chosen.boxes.labels.tolist()) == ([0], [0])
    assert chosen.ledger.texts == [f'objects of an unknown class (2, e.g. "cow" of {tmp_path}/1.jpg)']


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_label_is_named_and_is_no_class(tmp_path: Path, form: str, empty: str) -> None:
    kind, write = WRITERS[form]
    path = write(tmp_path, "train", ["cat", "dog", empty if form in ("csv", "tar") else ""])
    with pytest.raises(ConfigError, match=rf"1 of 3 images have no class, .*{PLACES[form].format('train')} has no lab"):
        catalog_of(kind, path)


@pytest.mark.parametrize(
    ("labels", "numbers"), [([0, 1, 2], [0, 1, 2]), ([2, 0, 2], [2, 0, 2]), (["3", "1", "2"], [2, 0, 1])]
)
def test_class_labels_numbers_are_indices_also_of_names_that_are_numbers(
    tmp_path: Path, labels: list[Any], numbers: list[int]
) -> None:
    about = {"info": {"features": {"label": {"names": ["1", "2", "3"], "_type": "ClassLabel"}}}}
    table = pa.table({"path": list("abc"), "label": labels})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), tmp_path / "t.parquet")
    catalog = catalog_of("table", tmp_path / "t.parquet")
    assert (catalog.classes, catalog.labels.tolist()) == (("1", "2", "3"), numbers)


@pytest.mark.parametrize("number", [-1, 3])
def test_an_index_beyond_class_labels_names_is_named_with_its_row(tmp_path: Path, number: int) -> None:
    about = {"info": {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}}
    table = pa.table({"path": list("abc"), "label": [0, number, 1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=rf'row 1 of .*: received {number} in the column "label"; accepted: 0 to 2'):
        catalog_of("table", tmp_path / "t.parquet")


def test_names_that_are_numbers_are_never_mixed_with_numbers(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "t", ["0", "1", "2"])
    assert catalog_of("table", path, classes=["x", "y", "z"]).labels.tolist() == [0, 1, 2]
    assert catalog_of("table", path, classes=["2", "1", "0"]).labels.tolist() == [2, 1, 0]
    with pytest.raises(ConfigError, match=r'row 0 of .*0\.jpg has the label "0", which is none of 3 classes \(1, 2, 3'):
        catalog_of("table", path, classes=["1", "2", "3"])


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        ([5_000_000, 1], "5,000,001"),
        ([10**17, 1], "100,000,000,000,000,001"),
        ([f"id {number}" for number in range(2001)], "2,001"),
        ([*range(2001)], "2,001"),
    ],
    ids=["large", "larger than memory", "texts", "numbers"],
)
def test_ids_are_no_classes(tmp_path: Path, labels: list[Any], count: str) -> None:
    table = pa.table({"path": [f"{number}.jpg" for number in range(len(labels))], "key": labels})
    pq.write_table(table, tmp_path / "t.parquet")
    message = (
        rf'{len(labels):,} labels? in "key" would make {count} classes, as ids do: set data\.source\.columns\.label'
    )
    with pytest.raises(ConfigError, match=message):
        catalog_of("table", tmp_path / "t.parquet", columns={"label": "key"})
    if len(labels) > 2:
        assert (
            len(catalog_of("table", tmp_path / "t.parquet", columns={"label": "key"}, num_classes=2001).classes) == 2001
        )


def test_many_classes_of_more_images_are_classes(tmp_path: Path) -> None:
    labels = [number % 2500 for number in range(5000)]
    pq.write_table(pa.table({"path": list(map(str, labels)), "label": labels}), tmp_path / "t.parquet")
    assert len(catalog_of("table", tmp_path / "t.parquet").classes) == 2500


def test_a_class_that_would_take_two_lines_or_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the class 'a\\nb' in .*t\.csv holds a line end or is not UTF-8: rename it"):
        catalog_of("table", write_csv(tmp_path, "t", ["cat", '"a\nb"']))
    with pytest.raises(ConfigError, match=r"the class '\\udcff' in .*t\.json holds a line end or is not UTF-8"):
        catalog_of("coco", write_coco(tmp_path, "t", ["cat", "\udcff"]))
    with pytest.raises(ConfigError, match=r"t\.tar: a\.json: 'utf-8' codec can't encode"):
        catalog_of("webdataset", tar_of(tmp_path / "t.tar", {"a.json": b'{"label": "\\udcff"}'}))


# ---- boxes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boxes", "unit", "pixels"),
    [
        ([[0, 0.5, 1, 1.0000001]], "auto", False),
        ([[0, 0.5, 1, 1.01]], "auto", False),
        ([[0, 0, 1, 1], [0, 0, 0.5, 0.5]], "auto", False),
        ([[0, 0, 1, 1], [0, 0, 24, 32]], "auto", True),  # one pixel
        ([[0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0, 0, 24.5, 32]], "auto", True),  # empty boxes
        ([], "auto", False),
        ([[0, 0, 1, 1]], "pixels", True),
        ([[0, 0, 24, 32], [0, 0, 0.5, 0.5]], "pixels", True),
        ([[0, 0, 24, 32], [0, 0, 0.5, 0.5]], "relative", False),
    ],
)
def test_the_unit_is_that_of_all_boxes(boxes: list[list[float]], unit: Any, pixels: bool) -> None:
    assert in_pixels(np.array(boxes, np.float32).reshape(-1, 4), unit, str) == pixels


def test_boxes_of_both_units_are_refused_by_row(tmp_path: Path) -> None:
    rows = {"path": ["a", "b"], "label": ["x", "y"], "width": [32, 32], "height": [24, 24]}
    boxes = [[[0.25, 0.25, 0.5, 0.5]], [[1.0, 2.0, 8.0, 20.0]]]
    pq.write_table(pa.table({**rows, "boxes": boxes}), tmp_path / "t.parquet")
    message = (
        r"relative to the image's size, e\.g\. \[0\.25, 0\.25, 0\.5, 0\.5\] of row 0 of .*, a, and in pixels, e\.g\. "
        r"\[2\.0, 1\.0, 20\.0, 8\.0\] of row 1 of .*, b .*data\.source\.columns\.box_unit"
    )
    with pytest.raises(ConfigError, match=message):
        catalog_of("table", tmp_path / "t.parquet")
    chosen = catalog_of("table", tmp_path / "t.parquet", columns={"box_unit": "relative"})
    assert np.allclose(chosen.boxes.boxes, [[0.25, 0.25, 0.5, 0.5], [0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("value", "count"), [(None, 0), ([], 0), ([1, 2, 3, 4.5], 1), ([[1, 2, 3, 4], [0, 0, 1, 1]], 2)]
)
def test_boxes_of_json_are_lists_of_four(value: Any, count: int) -> None:
    assert boxes_of(value).shape == (count, 4)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        [[1, 2, 3]],
        [[1, 2], [3, 4]],
        [1] * 8,
        [[1, 2, 3, None]],
        "1 2 3 4",
        [["1"] * 4],
        {},
        [[1, 2, 3, float("nan")]],
    ],
)
def test_other_boxes_of_json_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"as boxes; accepted: a list of boxes of 4 numbers each"):
        boxes_of(value)


@pytest.mark.parametrize(
    ("about", "boxes"),
    [
        ({"width": 32, "height": 24, "boxes": [[0, 0.5, 1.0000001, 1]]}, [[0.5, 0, 1, 1]]),
        ({"width": None, "height": None, "boxes": [[8, 6, 16, 24]]}, [[0.25, 0.25, 1, 0.5]]),
        ({"boxes": [8, 6, 16, 24]}, [[0.25, 0.25, 1, 0.5]]),
        ({"boxes": None}, [[0, 0, 1, 1]]),
    ],
    ids=["rounded", "no size", "flat", "none"],
)
def test_boxes_in_a_shard(tmp_path: Path, about: dict, boxes: list[list[float]]) -> None:
    path = tar_of(tmp_path / "t.tar", {"a.json": json.dumps({"label": "x", **about}).encode()})
    assert np.allclose(catalog_of("webdataset", path).boxes.boxes, boxes)


@pytest.mark.parametrize("name", ["a\nb", "a\udcff"])
def test_a_name_in_a_shard_never_shifts_others(tmp_path: Path, name: str) -> None:
    path = tar_of(tmp_path / "t.tar", {f"{name}.cls": b"cat", "b.cls": b"dog"})
    with pytest.raises(ConfigError) as caught:
        catalog_of("webdataset", path)
    assert f"t.tar: the name {f'{name}.jpg'!a} holds a line end or is not UTF-8: rename it" in str(caught.value)


@given(st.lists(st.lists(st.sampled_from(["cat", "dog", "7", "", None])), min_size=1))
def test_texts_are_the_same_as_numbers(parts: list[list[str | None]]) -> None:
    """Joined, by place, by their classes' numbers, and as those that occur."""
    texts, plain = Texts.concat([Texts.of(part) for part in parts]), [text for part in parts for text in part]
    assert [texts.text(place) for place in range(len(plain))] == plain
    assert texts.values({"dog": 4, "7": 0}).tolist() == [{"dog": 4, "7": 0}.get(text, -1) for text in plain]
    assert texts.distinct() == sorted({text for text in plain if text is not None})
    assert texts.distinct(np.arange(len(plain)) % 2 == 1) == sorted({text for text in plain[1::2] if text is not None})


@pytest.mark.parametrize("form", ["csv", "tar"])
@pytest.mark.parametrize("others", [["0", "1"], ["2.0", "0"]])
def test_numbers_in_one_file_and_names_in_another_are_refused(tmp_path: Path, form: str, others: list[str]) -> None:
    kind, write = WRITERS[form]
    write(tmp_path, "train-0", others)
    write(tmp_path, "train-1", ["cat", "dog"])
    message = rf'train-0\.{form} has numbers as labels, e\.g\. "\d", and .*train-1\.{form} names, e\.g\. "cat"'
    with pytest.raises(ConfigError, match=rf"{message}.*set data\.classes to the names in the order of the numbers"):
        catalog_of(kind, tmp_path)
    assert len(catalog_of(kind, tmp_path, classes=["fox", "dog", "cat"]).labels) == 4
    write(tmp_path, "train-1", ["cat", "7"])  # where 7 is a name, other numbers are not names alone
    with pytest.raises(ConfigError, match=message):
        catalog_of(kind, tmp_path)
    write(tmp_path, "train-0", ["dog", "7"])
    assert catalog_of(kind, tmp_path).classes == ("7", "cat", "dog")


@pytest.mark.parametrize("form", ["csv", "tar"])
def test_numbers_of_the_test_data_are_none_of_names_that_were_sorted(tmp_path: Path, form: str) -> None:
    """Unless the config or the training data, by ClassLabel, have the names in an order of their own."""
    kind, write = WRITERS[form]
    train, test = write(tmp_path, "train", ["cat", "dog"]), write(tmp_path, "other", ["1", "0", "1"])
    with pytest.raises(ConfigError, match=r'has the label "1", which is none of 2 classes \(cat, dog'):
        catalog_of(kind, train, test)
    assert catalog_of(kind, train, test, classes=["cat", "dog"]).labels.tolist() == [1, 0, 1]
    if kind == "table":
        named = write_parquet(tmp_path, "train", ["dog", "cat"])
        assert catalog_of(kind, named, test).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("names", [["cat", "dog", "fox"], ["1", "2", "3"]])
def test_class_labels_and_plain_numbers_are_not_joined_by_chance(tmp_path: Path, names: list[str]) -> None:
    """Never six classes of three."""
    write_parquet(tmp_path, "train-0", names)
    pq.write_table(pa.table({"path": list("abc"), "label": [2, 1, 0]}), tmp_path / "train-1.parquet")
    message = r"train-0\.parquet names the classes of its numbers \(ClassLabel: .*train-1\.parquet has numbers alone"
    with pytest.raises(ConfigError, match=message):
        catalog_of("table", tmp_path)
    catalog = catalog_of("table", tmp_path, classes=["cat", "dog", "fox"] if names[0] == "cat" else ["0", *names])
    assert catalog.labels.tolist()[3:] == [2, 1, 0]
    write_parquet(tmp_path, "train-0", ["0", "1", "2"])
    assert catalog_of("table", tmp_path).labels.tolist() == [0, 1, 2, 2, 1, 0]


def test_ids_of_the_devkit_in_a_table_are_refused(tmp_path: Path) -> None:
    classes = ["n01440764", "n01443537", "n01484850"]
    with pytest.raises(ConfigError, match=r"t\.csv holds numbers from 1 to 2 and no 0, as ids of the devkit's"):
        catalog_of("table", write_csv(tmp_path, "t", ["1", "2", "2"]), classes=classes)
    assert catalog_of("table", write_csv(tmp_path, "t", ["1", "2", "0"]), classes=classes).labels.tolist() == [1, 2, 0]
    assert catalog_of("table", write_csv(tmp_path, "t", ["1", "2"]), classes=["a", "b", "c"]).labels.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"label": {"name": "cat"}}, r"received \{'name': 'cat'\} as a label; accepted: a text or a number"),
        ({"label": ["cat", None]}, r'received \["cat", null\]; accepted: a list of labels, none empty'),
        ({"label": 1e300}, r"received 1e\+300, a float that stands for several whole numbers"),
    ],
)
def test_a_value_of_json_that_is_no_label_is_named(tmp_path: Path, about: dict, problem: str) -> None:
    path = tar_of(tmp_path / "t.tar", {"a.json": json.dumps(about).encode()})
    with pytest.raises(ConfigError, match=rf"t\.tar: a\.json: {problem}"):
        catalog_of("webdataset", path)


def test_a_null_among_the_labels_of_boxes_is_no_class(tmp_path: Path) -> None:
    about = {"label": "cat", "boxes": [[0, 0, 1, 1], [0, 0, 0.5, 1]], "box_labels": ["dog", None]}
    path = tar_of(tmp_path / "t.tar", {"a.json": json.dumps(about).encode()})
    with pytest.raises(ConfigError, match=r"1 of 2 boxes have no class, .* has no label"):
        catalog_of("webdataset", path, label_source="object")


def test_two_labels_of_an_image_in_a_shard_are_refused(tmp_path: Path) -> None:
    def two(label: str) -> Path:
        members = {"a.jpg": FILE, "a.cls": b"cat", "a.json": json.dumps({"label": label}).encode()}
        (tmp_path / "t.tar").write_bytes(tar_bytes(members))
        return tmp_path / "t.tar"

    with pytest.raises(
        ConfigError, match=r'a\.jpg has the label "cat" in its \.cls and "dog" in its \.json: make them'
    ):
        catalog_of("webdataset", two("dog"))
    assert catalog_of("webdataset", two("dog"), columns={"label": "none"}).classes == ("cat",)
    assert catalog_of("webdataset", two(" cat")).classes == catalog_of("webdataset", two("")).classes == ("cat",)
