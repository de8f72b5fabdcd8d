"""What a user's file states twice is refused with both, or the key that decides; names that look alike are one."""

import json
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe
from tests.support.archives import tar_bytes
from tests.support.images import encoded, picture
from tests.support.tfrecords import write_examples
from tests.support.trees import write_below
from tests.support.xmls import annotation
from tfpipe.data.catalog.labels import name_form
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import only

IMAGE = encoded(picture(20, 40))
NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def load(data: Any, **keys: Any) -> tfpipe.Loader:
    return tfpipe.load(data, image_size=8, batch_size=1, **keys)


def images(folder: Path, *names: str) -> Path:
    return write_below(folder, dict.fromkeys(names, IMAGE))


def text(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def tar(folder: Path, files: dict[str, bytes], name: str = "t.tar") -> Path:
    (folder / name).write_bytes(tar_bytes(files))
    return folder / name


def zipped(folder: Path, files: dict[bytes, bytes]) -> Path:
    """Writes a zip file whose names are in a code page that it does not state."""
    path = folder / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, contents) in enumerate(files.items()):
            archive.writestr(f"{number}".zfill(len(name)), contents)
    packed = path.read_bytes()
    for number, name in enumerate(files):
        packed = packed.replace(f"{number}".zfill(len(name)).encode(), name)
    path.write_bytes(packed)
    return path


def records(folder: Path, compression: str = "", **features: list) -> Path:
    about = {name.replace("_", "/"): values for name, values in features.items()}
    write_examples(folder / "train-00000-of-00001", about, compression=compression)
    return folder


BOX = json.dumps({"label": "a", "boxes": [[1, 2, 9, 9]]}).encode()
XML = annotation(("a", (2.0, 4.0, 10.0, 20.0)), size=(20, 40)).encode()
EDGES = "path,label,xmin,ymin,xmax,ymax"
SIDES = ("ymin", "xmin", "ymax", "xmax")
COCO: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [],
    "categories": [{"id": 1, "name": "a"}],
}
CATEGORIES = [{"id": 1, "name": "a"}, {"id": "a", "name": "b"}]
LVIS = {**COCO, "images": [{"id": 1, "coco_url": "http://images.cocodataset.org/train2017/1.jpg"}]}
Make = Callable[[Path], Any]

REFUSED: dict[str, tuple[Make, str]] = {
    "a record with two labels": (
        lambda at: records(at, image_encoded=[IMAGE], image_class_label=[1, 2]),
        r"it has 2 values of image/class/label, 1, 2: state one",
    ),
    "a record with two images": (
        lambda at: records(at, image_encoded=[IMAGE, IMAGE + b"x"], image_class_label=[1]),
        r"it has 2 values of image/encoded",
    ),
    "boxes in .xml and .json": (
        lambda at: tar(at, {"1.jpg": IMAGE, "1.xml": XML, "1.json": BOX}),
        r"2 values of boxes, xml, json: take one of them out, or set data\.source\.columns\.boxes",
    ),
    "boxes in .json and .xml": (
        lambda at: tar(at, {"1.jpg": IMAGE, "1.json": BOX, "1.xml": XML}),
        r"2 values of boxes, json, xml: take one of them out, or set data\.source\.columns\.boxes",
    ),
    "a path and a struct of another file": (
        lambda at: parquet(at, path=["a.jpg"], label=["a"], image=[{"path": "b.jpg"}]),
        r'the column "path" has a\.jpg, and "image\.path" b\.jpg: set data\.source\.columns\.path',
    ),
    "sizes of one image": (
        lambda at: text(at, "t.csv", f"{EDGES},width,height\na.jpg,a,1,1,9,9,40,20\na.jpg,a,2,2,9,9,41,20\n"),
        r"row 1 of .*a\.jpg has another width or height than row 0 of .*a\.jpg",
    ),
    "boxes and edges": (
        lambda at: parquet(at, path=["a.jpg"], label=["a"], boxes=[[[0, 0, 1, 1]]], **{side: [0] for side in SIDES}),
        r'has boxes in the column "boxes" and in the columns ymin, xmin, ymax, xmax',
    ),
    "ids of two kinds": (
        lambda at: text(at, "c.json", json.dumps({**COCO, "categories": CATEGORIES})),
        r"the categories have the ids 1 and 'a': use all numbers or texts",
    ),
    "folders in NFC and NFD": (
        lambda at: images(at / "f", f"{NFC}/1.jpg", f"{NFD}/1.jpg", "dog/1.jpg"),
        r"café.* is there twice .*: give both one name",
    ),
    "a column but for a blank": (
        lambda at: text(at, "t.csv", "path, label\na.jpg,a\n"),
        r"the column ' label' is not \"label\", but for blanks .* set data\.source\.columns\.label",
    ),
    "Windows' separators in a list": (
        lambda at: text(images(at, "cat/0.jpg", "dog/1.jpg"), "l.txt", "cat\\0.jpg\ndog\\1.jpg\n"),
        r"has Windows' separators, e\.g\. .*cat\\0\.jpg \(line 1\): write / in the place of",
    ),
    "Windows' separators in a table": (
        lambda at: text(images(at, "cat/0.jpg", "dog/1.jpg"), "t.csv", "path,label\ncat\\0.jpg,a\ndog\\1.jpg,b\n"),
        r"has Windows' separators, e\.g\. .*cat\\0\.jpg \(image 1\): write / in the place of",
    ),
    "a compressed record file": (
        lambda at: records(at, "GZIP", image_encoded=[IMAGE], image_class_label=[1]),
        "record 0: it is compressed by GZIP, .* without the option compression_type",
    ),
    "another compressed record file": (
        lambda at: records(at, "ZLIB", image_encoded=[IMAGE], image_class_label=[1]),
        "record 0: it is compressed by ZLIB, .* without the option compression_type",
    ),
    "samples whose members lie apart": (
        lambda at: tar(at, {"1.jpg": IMAGE, "2.jpg": IMAGE, "1.cls": b"0", "2.cls": b"1"}),
        "the members of the sample 1 lie apart from each other, .* tar --sort=name",
    ),
    "a list with a label after a comma": (
        lambda at: text(at, "l.txt", "/x/a.jpg,0\n/x/b.jpg,1\n"),
        r"has a label after each path, .* make a table of it, sed -E",
    ),
    "a list with a word after the path": (
        lambda at: text(at, "l.txt", "/x/a.jpg puppy\n/x/b.PNG kitten\n"),
        r"has a label after each path, .* make a table of it, sed -E",
    ),
    "a CSV of semicolons": (
        lambda at: text(at, "t.csv", "path;label\na.jpg;a\n"),
        r"has one column, 'path;label', whose values ';' separates; accepted: commas",
    ),
    "records whose labels count from 0": (
        lambda at: records(at, image_encoded=[IMAGE], image_class_label=[0]),
        r"have a label that is no class, .* counts from 1, and 0 stands for the background: add 1",
    ),
    "a zip file of another code page": (
        lambda at: zipped(at, {b"\xb9\xb7/1.jpg": IMAGE, b"\xc3\xa8/2.jpg": IMAGE}),
        r"a drawn line of code page 437: it is in another code page, .* unzip -O GBK",
    ),
    "LVIS": (lambda at: text(at, "l.json", json.dumps(LVIS)), r"coco_url and no file_name, as LVIS' have: add"),
    "image_info": (
        lambda at: text(at, "i.json", json.dumps({key: COCO[key] for key in ("images", "categories")})),
        r"it has images and no annotations, as image_info_\*\.json",
    ),
    "a scheme in capital letters": (lambda at: "S3://bucket/x", r"S3://bucket/x: write .* in small letters"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_what_decides(tmp_path: Path, name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        load(make(tmp_path))


@pytest.mark.parametrize(
    "texts", [["cat|dog", "cat"], ["['cat', 'dog']"], ["haze primary", "clear primary", "haze", "clear"], ["a;b", "c"]]
)
def test_labels_that_look_like_lists_are_refused(tmp_path: Path, texts: list[str]) -> None:
    table = parquet(tmp_path, path=[f"{number}.jpg" for number in range(len(texts))], label=texts)
    with pytest.raises(ConfigError, match=r'in the column "label"; accepted: a list of labels; .* looks like several'):
        load(table, targets="labels")


def test_plain_labels_are_none() -> None:
    assert name_form(NFD) == name_form(f" \ufeff{NFC}") == NFC


@pytest.mark.parametrize("texts", [["golden retriever", "great dane"], ["tench, Tinca tinca", "goldfish"], ["a", "b"]])
def test_single_labels_of_several_words_are_taken(tmp_path: Path, texts: list[str]) -> None:
    table = parquet(images(tmp_path, "0.jpg", "1.jpg"), path=["0.jpg", "1.jpg"], label=texts)
    assert load(table, targets="labels").class_names == sorted(texts)


def test_labels_in_nfc_and_nfd_are_one_class(tmp_path: Path) -> None:
    images(tmp_path, "0.jpg", "1.jpg", "2.jpg")
    table = text(tmp_path, "t.csv", f"path,label\n0.jpg,{NFC}\n1.jpg,{NFD}\n2.jpg,dog\n")
    assert load(table).class_names == [NFC, "dog"]


def test_a_path_with_blanks_or_a_dot_is_the_plain_one(tmp_path: Path) -> None:
    images(tmp_path, "im/0.jpg", "im/1.jpg")
    table = text(
        tmp_path, "t.csv", f"{EDGES}\n im/0.jpg,a,1,1,9,9\n./im/0.jpg,a,2,2,9,9\nim/0.jpg,a,3,3,9,9\nim/1.jpg,b,,,,\n"
    )
    assert len(load(table, crop="full")) == 2


@pytest.mark.parametrize("ending", ["txt", "seg.png", "npy"])
def test_members_that_are_not_read_may_lie_apart(tmp_path: Path, ending: str) -> None:
    files = {"1.jpg": IMAGE, "2.jpg": IMAGE, f"1.{ending}": b"x", f"2.{ending}": b"x"}
    loader = load(tar(tmp_path, files), kind="webdataset", targets="none")
    assert len(loader) == 2 and sum(count for count, _ in loader.catalog.ledger.counts.values()) >= 2


def test_a_feature_of_another_type_is_as_none(tmp_path: Path) -> None:
    about = {"image_height": [b"tall"], "image_filename": [7], "image_class_synset": [b"n01440764"]}
    loader = load(records(tmp_path, image_encoded=[IMAGE], image_class_label=[1], **about), classes=["n01440764"])
    assert len(loader) == 1


def test_a_tar_of_class_folders_with_a_licence_is_one(tmp_path: Path) -> None:
    files = {"flowers/LICENSE.txt": b"CC-BY", **{f"flowers/{name}/1.jpg": IMAGE for name in ("rose", "tulip")}}
    assert load(tar(tmp_path, files)).class_names == ["rose", "tulip"]


@pytest.mark.parametrize("form", ["folder", "list"])
def test_images_without_labels_need_none_if_targets_are_none(tmp_path: Path, form: str) -> None:
    images(tmp_path / "flat", "0.jpg", "1.jpg")
    data: Any = tmp_path / "flat"
    loader = load([str(path) for path in sorted(data.iterdir())] if form == "list" else data, targets="none")
    assert sum(1 for _ in loader.epoch(0)) == 2


def test_a_csv_may_have_line_ends_in_values_anywhere(tmp_path: Path) -> None:
    images(tmp_path, "0.jpg", "1.jpg")
    note = "x" * 100
    rows = "".join(f'{number % 2}.jpg,{number % 2},"a\n{note}"\n' for number in range(12_000))
    assert len(load(text(tmp_path, "t.csv", f"path,label,note\n{rows}"))) == 12_000


def test_names_in_yaml_are_texts(tmp_path: Path) -> None:
    from tfpipe.data.annotations.yolo import class_names

    for names, expected in (
        ("[yes, no, 1.10, null]", ["yes", "no", "1.10", "null"]),
        ("{0: on, 1: off}", ["on", "off"]),
    ):
        assert class_names(text(tmp_path, "data.yaml", f"train: images\nnames: {names}\n")) == expected


def test_only_is_the_value_that_all_are() -> None:
    assert (only([], "a"), only([3, 3], "a"), only("x", "a")) == (None, 3, "x")
    with pytest.raises(ValueError, match="it has 4 values of labels, 1, 2, 3: say one"):
        only([1, 2, 3, 4, 1], "labels", "say one")
