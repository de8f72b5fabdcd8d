"""COCO's JSON: boxes and categories, in the order of its images; crowds are left out."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.images import picture, turned
from tests.support.routes import CLASSES, HEIGHT, SMALL, WIDTH, samples, write_coco, write_files
from tfpipe import Loader, World
from tfpipe.config import make_config
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError

SAMPLES = samples(12)


def catalog_of(path: Path, split: str = "train", source: dict | None = None, **data: object):
    source = {"kind": "coco", "path": str(path), **(source or {})}
    return load_split(make_config({"data": {"source": source, **data}}).data, split, World()).catalog


def test_objects_have_the_labels(tmp_path: Path) -> None:
    images = write_files(tmp_path, SAMPLES)
    path = write_coco(tmp_path / "instances.json", SAMPLES)
    catalog = catalog_of(path, source={"images": str(images)}, label_source="object")
    assert [Path(name).stem for name in catalog.paths] == [sample.name for sample in SAMPLES]
    assert catalog.classes == CLASSES
    wanted = [
        (number, CLASSES.index(sample.label), ymin / HEIGHT, xmin / WIDTH, ymax / HEIGHT, xmax / WIDTH)
        for number, sample in enumerate(SAMPLES)
        for xmin, ymin, xmax, ymax in sample.boxes
    ]
    columns = zip(catalog.boxes.images, catalog.boxes.labels, *catalog.boxes.boxes.T, strict=True)
    assert np.allclose(list(columns), wanted)


def test_an_image_has_the_label_of_its_objects_or_is_named(tmp_path: Path) -> None:
    path = write_coco(tmp_path / "instances.json", [sample for sample in SAMPLES if sample.boxes])
    assert set(catalog_of(path).labels) == {0, 1, 2}
    write_coco(path, SAMPLES)
    with pytest.raises(ConfigError, match=r'4 of 12 images have no class, e\.g\. .*000\.jpg has no label, .*"object"'):
        catalog_of(path)


def test_test_data_has_a_json_and_a_folder_of_its_own(tmp_path: Path) -> None:
    train, test = (
        write_coco(tmp_path / f"{name}.json", chosen) for name, chosen in (("a", SAMPLES), ("b", SAMPLES[:5]))
    )
    source = {"images": str(tmp_path / "a"), "test_path": str(test), "test_images": str(tmp_path / "b")}
    for split, folder, chosen in (("train", "a", SAMPLES), ("test", "b", SAMPLES[:5])):
        catalog = catalog_of(train, split, source, label_source="object")
        assert list(catalog.paths) == [f"{tmp_path}/{folder}/{sample.label}/{sample.name}.jpg" for sample in chosen]


def test_a_share_becomes_test_data_in_the_place_of_another_json(tmp_path: Path) -> None:
    for name, chosen in (("instances_train", SAMPLES), ("instances_val", SAMPLES[:5])):
        write_coco(tmp_path / f"{name}.json", chosen)
    keys = {"source": {"test_share": 0.25}, "label_source": "object"}
    train, test = (catalog_of(tmp_path, split, **keys) for split in ("train", "test"))
    assert len(test) == 3 and not test.ledger
    assert sorted([*train.paths, *test.paths]) == sorted(f"{tmp_path}/{s.label}/{s.name}.jpg" for s in SAMPLES)
    boxes = {
        Path(path).stem: count
        for each in (train, test)
        for path, count in zip(each.paths, np.bincount(each.boxes.images, minlength=len(each)), strict=True)
    }
    assert boxes == {sample.name: len(sample.boxes) for sample in SAMPLES}
    assert train.ledger.texts == [
        "boxes of crowds (1, e.g. the annotation 12)",
        f"test data, for which test_share stands (1, e.g. {tmp_path}/instances_val.json)",
    ]


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"images": [{"id": 1}], "annotations": [], "categories": []})])
def test_another_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json is no instances JSON of COCO, with images, annotations"):
        catalog_of(tmp_path / "x.json")


def write_json(path: Path, **changes: Any) -> Path:
    """Two images with a box each, of two categories; `changes` replace lists of entries."""
    images = [{"id": number, "file_name": f"{number}.jpg", "height": 24, "width": 32} for number in (1, 2)]
    objects = [
        {"id": 10 + number, "image_id": number, "category_id": number, "bbox": [8, 6, 8, 18]} for number in (1, 2)
    ]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    path.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories} | changes))
    return path


BOX = {"id": 11, "image_id": 1, "category_id": 1, "bbox": [8, 6, 8, 18]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}]},
            'the categories with the ids 1 and 2 have the same name, "cat": rename them, or merge them',
        ),
        (
            {"categories": [{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}]},
            'the categories "cat" and "dog" have the same id, 1: give each',
        ),
        (
            {"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}]},
            r"the images a\.jpg and b\.jpg have the same id, 1: whose boxes are whose cannot be told",
        ),
        ({"categories": [{"id": 1, "name": ""}]}, "the category 1: received '' as name; accepted: a text"),
        ({"images": [{"id": 1, "file_name": None}]}, "the image 1: received None as file_name"),
        ({"annotations": [BOX | {"category_id": 7}]}, "the annotation 11 has the category_id 7, which is none of its"),
        ({"annotations": [BOX | {"image_id": 7}]}, "the annotation 11 has the image_id 7, which is none of its image"),
        (
            {"annotations": [BOX | {"bbox": [1, 2, 3]}]},
            r"the annotation 11: received \[1, 2, 3\] as bbox; accepted: \[x,",
        ),
        ({"annotations": [BOX | {"bbox": None}]}, "the annotation 11: received None as bbox"),
        (
            {"annotations": [{"iscrowd": 1}, {"image_id": 1, "category_id": 1, "bbox": 0}]},
            "the annotation 1: received 0 as bbox",
        ),
        (
            {"annotations": [{key: BOX[key] for key in BOX if key != "bbox"}]},
            r"the annotation 11: received no bbox; accepted: \[x, y, width, height\]",
        ),
        ({"annotations": [{"id": 11, "bbox": [1, 2, 3, 4]}]}, "the annotation 11 has the image_id None, which is none"),
        ({"annotations": [BOX | {"iscrowd": "no"}]}, "the annotation 11: received 'no' as iscrowd; accepted: 0 or 1"),
        (
            {"annotations": [BOX | {"bbox": [0.25, 0.25, 0.5, 0.5]}]},
            r"all boxes are from 0 to 1, e\.g\. \[0\.25, 0\.25, 0\.5, 0\.5\], so relative",
        ),
        (
            {"images": [{"id": 1, "file_name": "a.jpg", "width": "x", "height": 1}], "annotations": []},
            'received "x" as width; accepted: a',
        ),
    ],
)
def test_entries_that_contradict_others_are_named(tmp_path: Path, changes: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"x\.json: .*{problem}"):
        catalog_of(write_json(tmp_path / "x.json", **changes))


@pytest.mark.parametrize("value", [0, "0", False, None, 1, "1", True])
def test_a_crowd_is_counted_and_what_is_none_is_used(tmp_path: Path, value: object) -> None:
    boxes = [BOX, BOX | {"id": 12, "bbox": [0, 0, 16, 12], "iscrowd": value}]
    catalog = catalog_of(write_json(tmp_path / "x.json", annotations=boxes), label_source="object")
    is_crowd = value in (1, "1")
    assert len(catalog.boxes.boxes) == 1 + (not is_crowd)
    assert catalog.ledger.counts == ({"boxes of crowds": (1, "the annotation 12")} if is_crowd else {})


def test_a_windows_path_names_the_file(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a\\b/1.jpg", "height": 24, "width": 32}]
    catalog = catalog_of(write_json(tmp_path / "x.json", images=images, annotations=[BOX]))
    assert list(catalog.paths) == [f"{tmp_path}/a/b/1.jpg"]


@pytest.mark.parametrize("orientation", [3, 6])
def test_a_size_turned_by_exif_is_refused_and_the_image_named(tmp_path: Path, orientation: int) -> None:
    (tmp_path / "1.jpg").write_bytes(turned(picture(24, 32), orientation))
    images = [{"id": 1, "file_name": "1.jpg", "height": 32, "width": 24}]
    path = write_json(tmp_path / "x.json", images=images, annotations=[BOX])
    config = make_config({"data": {**SMALL, "source": {"kind": "coco", "path": str(path)}, "batch_size": 1}})
    with Loader(config) as loader:
        if orientation == 3:
            assert len(list(loader.epoch(0))) == 1
            return
        with pytest.raises(
            TfpipeError, match=r"/1\.jpg of the train data: the size stated with the boxes is the image"
        ):
            list(loader.epoch(0))


def test_an_image_that_comes_twice_keeps_all_its_boxes(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "1.jpg", "height": 24, "width": 32}
    boxes = [BOX, BOX | {"id": 12, "bbox": [0, 0, 16, 12]}]
    catalog = catalog_of(write_json(tmp_path / "x.json", images=[image, image], annotations=boxes))
    assert list(catalog.paths) == [f"{tmp_path}/1.jpg"]
    assert np.allclose(catalog.boxes.boxes, [[0.25, 0.25, 1, 0.5], [0, 0, 0.5, 0.5]])


def test_an_image_of_two_categories_has_no_label_of_its_own(tmp_path: Path) -> None:
    boxes = [BOX, BOX | {"id": 12, "category_id": 2}, BOX | {"id": 13, "image_id": 2}]
    with pytest.raises(ConfigError, match=r"1 of 2 images .*/1\.jpg has boxes of several classes \(cat, dog\)"):
        catalog_of(write_json(tmp_path / "x.json", annotations=boxes))


@pytest.mark.parametrize("size", [{}, {"width": None, "height": None}, {"width": 0, "height": 0}], ids=str)
def test_a_size_that_is_missing_is_the_images(tmp_path: Path, size: dict) -> None:
    write_files(tmp_path, SAMPLES[:1])
    name = f"images/{SAMPLES[0].label}/{SAMPLES[0].name}.jpg"
    path = write_json(tmp_path / "x.json", images=[{"id": 1, "file_name": name, **size}], annotations=[BOX])
    assert np.allclose(catalog_of(path).boxes.boxes, [[0.25, 0.25, 1, 0.5]])


def test_an_archive_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(ConfigError, match=r"x\.json\.gz: it is compressed by gzip: unpack it first"):
        catalog_of(tmp_path / "x.json.gz")


@pytest.mark.parametrize("name", ["a\nb.jpg", "\udcff.jpg"])
def test_a_name_that_would_shift_others_is_refused(tmp_path: Path, name: str) -> None:
    images = [{"id": 1, "file_name": name, "height": 24, "width": 32}]
    with pytest.raises(ConfigError, match="holds a line end or is not UTF-8: rename"):
        catalog_of(write_json(tmp_path / "x.json", images=images, annotations=[BOX]))
