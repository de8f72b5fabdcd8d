"""Boxes from a table: read as the XMLs would be, and refused by line."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.batches import assert_same, batches
from tests.support.images import encoded
from tests.support.trees import write_below
from tests.support.xmls import annotation
from tfpipe import Config, World, load_config
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.catalog.box_tables import read_box_table
from tfpipe.data.catalog.filelist import index_path
from tfpipe.data.catalog.index import STAMPS
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index

HEADER = "ImageId,PredictionString\n"
CLASSES = ("n01", "n02")
PATHS = FileList.of([f"/x/Data/CLS-LOC/train/n02/{name}" for name in ("n02_3.JPEG", "n02_1.JPEG", "n02_2.JPEG")])
SIDE = (64, 128)  # height and width: powers of two, so that relative edges of four digits can be exact
# xmin, ymin, xmax, ymax; one is out of the image, one of another class, one of none.
OBJECTS = {
    "n02_1": [("n02", (8, 4, 64, 32)), ("n02", (16, 8, 128, 64))],
    "n02_2": None,
    "n02_3": [("n01", (8, 4, 64, 32)), ("cow", (-8, 4, 64, 32)), ("n02", (16, 8, 16, 64))],
    "n01_1": [("n02", (8, 4, 64, 32))],
    "n01_2": [("n01", (64, 4, 8, 70))],
}


def read(tmp_path: Path, text: str, labels=(1, 1, 1)):
    (tmp_path / "boxes.csv").write_text(text)
    return read_box_table(tmp_path / "boxes.csv", PATHS, np.array(labels, np.int32), CLASSES)


# ---- what a table says -----------------------------------------------------------------------------------------


def test_kaggles_rows_are_in_the_lists_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rows = "n02_1,n02 115 49 448.5 294 n01 1 2 3 4 \n\nn09_9,n02 1 1 2 2 \nn02_3,cow 5 6 7 8 \n"
    table = read(tmp_path, HEADER + rows)
    assert table.images.tolist() == [0, 1, 1] and not table.relative
    assert table.boxes.dtype == np.float32
    assert table.boxes.tolist() == [[6, 5, 8, 7], [49, 115, 294, 448.5], [2, 1, 4, 3]]
    assert table.classes.dtype == np.int32 and table.classes.tolist() == [-1, 1, 0]
    assert "1 of 3 rows are of images that are not in the list" in caplog.text


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    for text in (HEADER + "n02_1,n02 1 2 3 4\n", "n02_1.JPEG,0.1,0.2,0.3,0.4\n"):
        assert read(tmp_path, f"\ufeff{text}").images.tolist() == [1]


def test_the_other_tables_boxes_are_of_their_images_class(tmp_path: Path) -> None:
    rows = "n02_2.JPEG,0.1,0.2,0.3,0.4\nn02_1.JPEG,0,0,1,1\nn02_2.JPEG,0.5000,0.6000,0.7000,1.0000\nx.JPEG,0,0,1,1\n"
    table = read(tmp_path, "\ufeff" + rows, labels=(1, 0, 1))
    assert table.images.tolist() == [1, 2, 2] and table.relative
    np.testing.assert_array_equal(table.boxes, np.float32([[0, 0, 1, 1], [0.2, 0.1, 0.4, 0.3], [0.6, 0.5, 1, 0.7]]))
    assert table.classes.tolist() == [0, 1, 1]


def test_a_relative_edge_a_little_beyond_1_is_1(tmp_path: Path) -> None:
    table = read(tmp_path, "n02_2.JPEG,-0.0000001,0.2,1.0000001,0.4\n")
    np.testing.assert_array_equal(table.boxes, np.float32([[0.2, 0, 0.4, 1]]))


def test_of_no_image_of_the_list_it_says_nothing(tmp_path: Path) -> None:
    for rows in (HEADER + "n09_9,n02 1 1 2 2\n", "n09_9.JPEG,0,0,1,1\n"):
        table = read(tmp_path, rows)
        assert table.images.tolist() == [] and table.boxes.shape == (0, 4) and table.classes.shape == (0,)


@pytest.mark.parametrize(
    "row",
    ["n02_1,", "n02_1", "n02_1,n02 1 2 3", "n02_1,n02 1 2 3 4 n01", "n02_1,n02 1 2 3 x", "n02_1,n02 1 2 3 nan"],
)
def test_a_malformed_row_of_kaggles_is_named_by_line(tmp_path: Path, row: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"{HEADER}n02_2,n02 1 2 3 4\n\n{row}\n")
    assert f'{tmp_path}/boxes.csv: line 4: received "{row}"; accepted: "image,class xmin' in str(caught.value)


@pytest.mark.parametrize(
    "row", ["a.JPEG,0,0,1", "a.JPEG,0,0,1,1,1", "a.JPEG,0,0,1,x", "a.JPEG,0,0,1,2", "a,n02 1 2 3 4"]
)
def test_a_malformed_row_of_the_others_is_named_by_line(tmp_path: Path, row: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"n02_2.JPEG,0,0,1,1\n{row}\n")
    assert f'boxes.csv: line 2: received "{row}"; accepted: "image.JPEG,xmin' in str(caught.value)


def test_what_else_is_wrong_with_a_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"boxes\.csv holds several rows of /x/.*/n02_1\.JPEG"):
        read(tmp_path, HEADER + "n02_1,n02 1 2 3 4\nn02_2,n02 1 2 3 4\nn02_1,n02 1 2 3 4\n")
    with pytest.raises(ConfigError, match=r"boxes\.csv has no classes: with data\.label_source"):
        read(tmp_path, "n02_2.JPEG,0,0,1,1\n", labels=[BY_OBJECT] * 3)
    for text in ("", HEADER, "\n\n"):
        with pytest.raises(ConfigError, match=r"boxes\.csv holds no row"):
            read(tmp_path, text)
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.csv"):
        read_box_table(tmp_path / "gone.csv", PATHS, np.ones(3, np.int32), CLASSES)
    twins = FileList.of(["/x/a/1.jpg", "/x/b/1.jpg"])
    (tmp_path / "boxes.csv").write_text("1.jpg,0,0,1,1\n")
    with pytest.raises(ConfigError, match="several images of the list are named 1"):
        read_box_table(tmp_path / "boxes.csv", twins, np.ones(2, np.int32), CLASSES)


# ---- the index made of it --------------------------------------------------------------------------------------


def write_tree(root: Path, xmls: bool) -> None:
    """Images in a folder that no layout knows, unless with XMLs."""
    images = "Data/CLS-LOC/train" if xmls else "photos"
    names = [f"{images}/{name[:3]}/{name}.JPEG" for name in OBJECTS]
    write_below(root, dict.fromkeys(names, encoded(Image.new("RGB", SIDE[::-1]))))
    for name, objects in OBJECTS.items():
        if xmls and objects is not None:
            boxes = [(thing, (y1, x1, y2, x2)) for thing, (x1, y1, x2, y2) in objects]
            xml = annotation(*boxes, size=SIDE).encode()
            write_below(root, {f"Annotations/CLS-LOC/train/{name[:3]}/{name}.xml": xml})
    (root / "train.txt").write_text("".join(f"{name}\n" for name in names))


def write_kaggle(path: Path) -> None:
    rows = {
        name: " ".join(f"{thing} {' '.join(map(str, box))}" for thing, box in objects)
        for name, objects in reversed(OBJECTS.items())
        if objects
    }
    path.write_text(HEADER + "".join(f"{name},{boxes} \n" for name, boxes in rows.items()))


def config(root: Path, **keys: Any) -> Config:
    data = {"train_filelist": "train.txt", "classes": list(CLASSES), "crop_image_size": [8, 8], "batch_size": 4, **keys}
    (root / "c.json").write_text(json.dumps({"data": data}))
    return load_config(root / "c.json")


def rows_of(config: Config) -> list[dict[str, Any]]:
    rows = pq.read_table(build_index(config.data, "train", World(), processes=1).path).to_pylist()
    return [{name: row[name] for name in row if name not in STAMPS} | {"path": Path(row["path"]).name} for row in rows]


@pytest.mark.parametrize("label_source", ["directory", "object"])
def test_from_kaggles_it_is_the_same_as_from_the_xmls(tmp_path: Path, label_source: str) -> None:
    write_tree(tmp_path, xmls=True)
    write_kaggle(tmp_path / "boxes.csv")
    by_xml = pq.read_table(build_index(config(tmp_path, label_source=label_source).data, "train", World(), 1).path)
    keys = {"label_source": label_source, "train_box_file": "boxes.csv"}
    made = build_index(config(tmp_path, **keys).data, "train", World(), processes=1)
    of_xmls = ["xml_bytes", "xml_changed"]
    assert pq.read_table(made.path).drop_columns(of_xmls).equals(by_xml.drop_columns(of_xmls))
    assert (made.images, made.annotated) == (5, 4)


def test_without_xmls_the_images_may_be_anywhere_and_are_trained_as_with_them(tmp_path: Path) -> None:
    for name in ("xmls", "table"):
        (tmp_path / name).mkdir()
        write_tree(tmp_path / name, name == "xmls")
    write_kaggle(tmp_path / "boxes.csv")
    table = config(tmp_path / "table", train_box_file="../boxes.csv")
    assert rows_of(table) == rows_of(config(tmp_path / "xmls"))
    for unit in ("image", "box"):
        one = config(tmp_path / "table", train_box_file="../boxes.csv", annotations="index", unit=unit)
        other = config(tmp_path / "xmls", annotations="xml", unit=unit)
        assert_same(batches(one, count=4), batches(other, count=4))
    catalog = load_split(table.data, "train", World()).catalog
    assert catalog.annotated.tolist() == [True, False, True, True, True]
    assert [catalog.annotation(item) for item in range(5)] == [""] * 5


def test_from_relative_boxes_it_is_the_same_too(tmp_path: Path) -> None:
    write_tree(tmp_path, xmls=False)
    sides = [SIDE[1], SIDE[0]] * 2
    own = {name: [box for _, box in objects][:2] for name, objects in OBJECTS.items() if objects and name != "n02_3"}
    relative = {name: [np.clip(np.divide(box, sides), 0, 1) for box in boxes] for name, boxes in own.items()}
    lines = [f"{name}.JPEG,{','.join(f'{edge:.4f}' for edge in box)}\n" for name in own for box in relative[name]]
    (tmp_path / "boxes.csv").write_text("".join(lines))
    for row in rows_of(config(tmp_path, train_box_file="boxes.csv")):
        name = Path(row["path"]).stem
        expected = [[min(y1, y2), min(x1, x2), max(y1, y2), max(x1, x2)] for x1, y1, x2, y2 in relative.get(name, [])]
        assert row["annotated"] == (name in own)
        assert row["boxes"] == (expected or [[0, 0, 1, 1]])
        assert row["odd"] == (["box swapped"] if name == "n01_2" else [])


def test_training_needs_the_index_and_says_how_to_make_it(tmp_path: Path) -> None:
    write_tree(tmp_path, xmls=True)
    write_kaggle(tmp_path / "boxes.csv")
    data = config(tmp_path, train_box_file="boxes.csv").data
    assert data.annotations == "auto"
    with pytest.raises(ConfigError, match=r"there is no index .*; make it with: tfpipe index -c CONFIG --split train"):
        load_split(data, "train", World())
    build_index(config(tmp_path).data, "train", World(), processes=1)
    with pytest.raises(ConfigError, match=r"box file or data.exif; make it with: tfpipe index -c CONFIG --split train"):
        load_split(data, "train", World())
    build_index(data, "train", World(), processes=1)
    assert load_split(data, "train", World()).catalog.boxes is not None
    assert index_path(data, data.train_filelist).exists()
    with (tmp_path / "boxes.csv").open("a") as file:
        file.write("n09_9,n01 1 2 3 4\n")
    with pytest.raises(ConfigError, match=r"box file or data.exif; make it with"):
        load_split(data, "train", World())
    (tmp_path / "boxes.csv").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*boxes\.csv"):
        load_split(data, "train", World())
    without = config(tmp_path, train_box_file="boxes.csv", crop="center")
    assert load_split(without.data, "train", World()).catalog.boxes is None
