"""The annotation index: what it holds, that it is what the XMLs say, and that a stale one is never used."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.batches import assert_same, batches
from tests.support.flawed import FLAWS, write_tree
from tests.support.sample import SampleData
from tests.support.targets import LABEL
from tfpipe import World, load_config
from tfpipe.config import Config
from tfpipe.data.catalog import index, table
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.catalog.index import ODD, is_uneven, load_index
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index

# ---- what it holds ---------------------------------------------------------------------------------------------


def test_a_row_says_what_the_image_is_and_what_is_odd_about_it(tmp_path: Path) -> None:
    config = write_tree(tmp_path)
    made = build_index(config.data, "train", World(), processes=1)
    assert made.path == tmp_path / "train.index.parquet"
    rows = pq.read_table(made.path).to_pylist()
    assert [Path(row["path"]).stem for row in rows] == list(FLAWS)
    by_name = dict(zip(FLAWS, rows, strict=True))
    assert {name: row["odd"] for name, row in by_name.items()} == {name: codes for name, (_, _, codes) in FLAWS.items()}
    assert {code for row in rows for code in row["odd"]} == set(ODD)
    assert all((row["width"], row["height"], row["label"]) == (100, 80, LABEL) for row in rows)
    assert [by_name[name]["components"] for name in ("fine", "gray", "cmyk")] == [3, 1, 4]
    assert [by_name[name]["format"] for name in ("fine", "png")] == ["JPEG", "PNG"]
    assert [name for name, row in by_name.items() if not row["annotated"]] == ["plain"]
    np.testing.assert_allclose(by_name["fine"]["boxes"], [[10 / 80, 10 / 100, 50 / 80, 60 / 100]])
    np.testing.assert_allclose(by_name["larger"]["boxes"], [[10 / 160, 10 / 200, 50 / 160, 60 / 200]])
    assert by_name["halves"]["boxes"] == by_name["unsized"]["boxes"] == by_name["fine"]["boxes"]
    assert by_name["plain"]["boxes"] == by_name["empty"]["boxes"] == [[0, 0, 1, 1]]
    assert (made.images, made.annotated) == (len(FLAWS), len(FLAWS) - 1)
    assert made.boxes == sum(len(row["boxes"]) for row in rows) == sum(len(row["box_labels"]) for row in rows)
    assert made.odd["size differs"] == 2 and sum(made.odd.values()) == sum(len(row["odd"]) for row in rows)


def test_the_columns_are_as_documented(make: Callable[..., Config]) -> None:
    schema = pq.read_schema(build_index(make().data, "train", World(), processes=1).path)
    types = {field.name: str(field.type).replace("element", "item") for field in schema}
    assert types == {
        "path": "string",
        "label": "int32",
        "width": "int32",
        "height": "int32",
        "components": "int8",
        "format": "string",
        "annotated": "bool",
        "boxes": "list<item: fixed_size_list<item: float>[4]>",
        "box_labels": "list<item: int32>",
        "odd": "list<item: string>",
        "bytes": "int64",
        "changed": "int64",
        "xml_bytes": "int64",
        "xml_changed": "int64",
    }


# ---- training from it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crop", "label_source", "unit"), [("boxes", "directory", "image"), ("random_resized", "object", "box")]
)
def test_batches_are_the_same_with_it_and_no_xml_is_read(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, crop: str, label_source: str, unit: str
) -> None:
    keys = {"crop": crop, "label_source": label_source, "unit": unit}
    without = batches(make(**keys, annotations="xml"), "train", 9)
    build_index(make(**keys).data, "train", World(), processes=1)
    for reader in ("annotations.targets.parse_annotation", "catalog.boxes.read_objects"):
        monkeypatch.setattr(f"tfpipe.data.{reader}", None)
    indexed = make(**keys, annotations="index")
    assert_same(batches(indexed, "train", 9), without)


def test_the_test_pass_is_the_same_with_it_and_without(make: Callable[..., Config]) -> None:
    keys = {"test_crop": "boxes", "label_source": "object", "test_label_file": None}
    without = batches(make(**keys), "test", 99)
    build_index(make(**keys).data, "test", World(), processes=1)
    assert len(without) > 1
    assert_same(batches(make(**keys, annotations="index"), "test", 99), without)


@pytest.mark.parametrize("label_source", ["directory", "object"])
def test_the_catalog_knows_all_that_the_xmls_say(make: Callable[..., Config], label_source: str) -> None:
    config = make(label_source=label_source).data
    without = load_split(config, "train", World())
    assert without.catalog.boxes is None
    build_index(config, "train", World(), processes=1)
    split = load_split(config, "train", World())
    catalog = split.catalog
    assert not catalog.by_box and catalog.samples == len(catalog)
    np.testing.assert_array_equal(catalog.annotated, without.catalog.annotated)
    for one, other in zip(catalog.boxes, with_boxes(without.catalog, without.storage, World()).boxes, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert count_crops(split) == (len(catalog.boxes.labels), True)
    random = config.model_copy(update={"crop": "random_resized"})
    assert count_crops(replace(split, config=random)) == count_crops(replace(without, config=random))


# ---- stale or missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["filelist", "classes", "labels", "damaged"])
def test_one_that_does_not_belong_is_never_used(
    sample: SampleData, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    (tmp_path / "train.txt").write_text(sample.train.read_text())
    names = sample.classes

    def config(names: Sequence[str] = names, **keys: Any):
        data = {"train_filelist": "train.txt", "classes": list(names), **keys}
        return load_config(sample.config(tmp_path / "c.json", data=data)).data

    path = build_index(config(), "train", World(), processes=1).path
    assert load_split(config(), "train", World()).catalog.boxes is not None
    keys: dict[str, Any] = {}
    if change == "filelist":
        (tmp_path / "train.txt").write_text("".join(reversed(sample.train.read_text().splitlines(True))))
    elif change == "classes":
        keys = {"names": names[::-1]}
    elif change == "labels":
        keys = {"label_source": "object"}
    else:
        path.write_bytes(path.read_bytes()[:-100])
    caplog.clear()
    assert load_split(config(**keys), "train", World()).catalog.boxes is None
    assert str(path) in caplog.text and "tfpipe index -c CONFIG --split train" in caplog.text
    with pytest.raises(ConfigError, match=r"tfpipe index -c CONFIG --split train"):
        load_split(config(**keys, annotations="index"), "train", World())
    build_index(config(**keys), "train", World(), processes=1)
    assert load_split(config(**keys, annotations="index"), "train", World()).catalog.boxes is not None


def test_without_one_the_xmls_are_read_unless_it_must_be_there(
    make: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    assert load_split(make().data, "train", World()).catalog.boxes is None
    assert "index" not in caplog.text
    with pytest.raises(ConfigError, match=r"there is no index .*train-[0-9a-f]{8}\.index\.parquet; make it with"):
        load_split(make(annotations="index").data, "train", World())


def test_where_the_xmls_are_to_be_read_no_index_is_used(make: Callable[..., Config]) -> None:
    build_index(make().data, "train", World(), processes=1)
    catalog = load_split(make(annotations="xml").data, "train", World()).catalog
    assert catalog.boxes is None and catalog.annotated.any()


def test_where_no_box_is_needed_none_is_looked_for(make: Callable[..., Config]) -> None:
    assert load_split(make(annotations="index", crop="center").data, "train", World()).catalog.boxes is None


def test_a_large_index_is_loaded_without_a_loop(make: Callable[..., Config]) -> None:
    made = build_index(make().data, "train", World(), processes=1)
    key = pq.read_schema(made.path).metadata[b"tfpipe.fingerprint"].decode()
    assert load_index(made.path, "another") is None
    boxes = load_index(made.path, key).boxes
    offsets = boxes.offsets(made.images)
    assert offsets.dtype == np.int64 and len(offsets) == made.images + 1
    rows = pq.read_table(made.path, columns=["boxes"])["boxes"].to_pylist()
    for image, row in enumerate(rows):
        assert boxes.boxes[offsets[image] : offsets[image + 1]].tolist() == row


# ---- huge images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("huge", "side", "uneven"),
    [
        pytest.param(0, 1, False, id="none"),
        pytest.param(20, 9, True, id="one-in-50"),
        pytest.param(20, 3, False, id="one-in-50-that-is-larger"),
        pytest.param(1, 9, False, id="one-in-1000"),
        pytest.param(500, 9, False, id="half"),
    ],
)
def test_a_few_huge_images_are_told(huge: int, side: int, uneven: bool) -> None:
    widths, heights = np.full(1000, 500, np.int32), np.full(1000, 400, np.int32)
    places = np.random.default_rng(0).permutation(1000)[:huge]
    widths[places], heights[places] = 500 * side, 400 * side
    assert is_uneven(widths, heights) == uneven
    assert not is_uneven(widths[:0], heights[:0])


@pytest.mark.parametrize("stored", [False, True])
def test_the_catalog_tells_whether_a_few_images_are_huge(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """From the copy of the index too, which large lists have."""
    config = make(annotations="index").data
    if stored:
        monkeypatch.setattr(table, "SMALL_BYTES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(index, "HUGE", 0)  # any images are
        build_index(config, "train", World(), processes=1)
        assert load_split(config, "train", World()).catalog.uneven
    assert load_split(config, "train", World()).catalog.uneven == stored
