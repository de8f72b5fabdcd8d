"""COCO's JSON: boxes and categories, in the order of its images; crowds are left out."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.routes import CLASSES, HEIGHT, WIDTH, samples, write_coco, write_files
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.registry import load_catalog
from tfpipe.errors import ConfigError

SAMPLES = samples(12)


def catalog_of(path: Path, split: str = "train", source: dict | None = None, **data: object):
    source = {"kind": "coco", "path": str(path), **(source or {})}
    return load_catalog(make_config({"data": {"source": source, **data}}).data, split, World())


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
    catalog = catalog_of(train, "test", source, label_source="object")
    assert list(catalog.paths) == [f"{tmp_path}/b/{sample.label}/{sample.name}.jpg" for sample in SAMPLES[:5]]


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"images": [{"id": 1}], "annotations": [], "categories": []})])
def test_another_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json is no instances JSON of COCO, with images, annotations"):
        catalog_of(tmp_path / "x.json")
