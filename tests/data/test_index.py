"""The annotation index: what it holds, that it is what the XMLs say, and that a stale one is never used."""

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.conftest import SampleData, run, run_ranks
from tests.data.test_crops import CLASSES, DIRECTORY, LABEL, OBJECT, OBJECT_SPECS, STATED
from tfpipe import World, build_dataset, load_config
from tfpipe.config import Config
from tfpipe.data import index_build
from tfpipe.data.annotations import Objects
from tfpipe.data.boxes import count_crops, read_boxes
from tfpipe.data.catalog import index_path, load_catalog
from tfpipe.data.crops import find_targets
from tfpipe.data.index import ODD, load_index
from tfpipe.data.index_build import build_index
from tfpipe.data.index_rows import Annotated, targets
from tfpipe.data.labels import BY_OBJECT
from tfpipe.errors import ConfigError

TRAIN = "Data/CLS-LOC/train"
OWN = "n02"
# Size stated (width, height), objects (None: no XML), codes.
FLAWS = {
    "fine": ((100, 80), [(OWN, (10, 10, 50, 60))], []),
    "gray": ((100, 80), [(OWN, (10, 10, 50, 60))], ["gray"]),
    "cmyk": ((100, 80), [(OWN, (10, 10, 50, 60))], ["cmyk"]),
    "png": ((100, 80), [(OWN, (10, 10, 50, 60))], ["not jpeg"]),
    "bare": ((100, 80), [], ["no object"]),
    "unsized": (None, [(OWN, (10, 10, 50, 60))], ["no size"]),
    "larger": ((200, 160), [(OWN, (10, 10, 50, 60))], ["size differs"]),
    "swapped": ((100, 80), [(OWN, (50, 10, 10, 60))], ["box swapped"]),
    "outside": ((100, 80), [(OWN, (-5, 10, 50, 60)), (OWN, (10, 10, 50, 101))], ["box out of range"]),
    "empty": ((100, 80), [(OWN, (10, 10, 10, 60))], ["box empty"]),
    "unknown": ((100, 80), [("cow", (10, 10, 50, 60))], ["class unknown"]),
    "other": ((100, 80), [("n01", (10, 10, 50, 60))], ["class differs"]),
    "all": (
        (50, 80),
        [("n03", (70, 7, 3, -3)), ("x", (5, 5, 5, 9))],
        ["size differs", "box swapped", "box out of range", "box empty", "class unknown", "class differs"],
    ),
    "plain": (None, None, []),
}  # fmt: skip


@pytest.fixture
def make(sample: SampleData, tmp_path: Path) -> Callable[..., Config]:
    """Configs of the sample, with indexes of their own."""

    def make_config(**keys: Any) -> Config:
        data = {"index": "indexes", "classes": sorted(path.name for path in (sample.root / TRAIN).iterdir()), **keys}
        return load_config(sample.config(tmp_path / "c.json", data=data))

    return make_config


def write_tree(root: Path) -> Config:
    """One image (80 high, 100 wide) for each of FLAWS."""
    images, xmls = root / "JPEGImages" / OWN, root / "Annotations" / OWN
    images.mkdir(parents=True)
    xmls.mkdir(parents=True)
    for name, (size, objects, _) in FLAWS.items():
        mode = {"gray": "L", "cmyk": "CMYK"}.get(name, "RGB")
        Image.new(mode, (100, 80)).save(images / f"{name}.jpg", "PNG" if name == "png" else "JPEG")
        if objects is not None:
            stated = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
            things = "".join(
                f"<object><name>{thing}</name><bndbox><ymin>{y1}</ymin><xmin>{x1}</xmin><ymax>{y2}</ymax>"
                f"<xmax>{x2}</xmax></bndbox></object>"
                for thing, (y1, x1, y2, x2) in objects
            )
            (xmls / f"{name}.xml").write_text(f"<annotation>{stated}{things}</annotation>")
    (root / "train.txt").write_text("".join(f"JPEGImages/{OWN}/{name}.jpg\n" for name in FLAWS))
    (root / "c.json").write_text(json.dumps({"data": {"train_filelist": "train.txt", "classes": list(CLASSES)}}))
    return load_config(root / "c.json")


def batches(config: Config, split: str, count: int) -> list[list[np.ndarray]]:
    dataset = build_dataset(config, split, with_positions=True).take(count)
    return [list(batch) for batch in dataset.as_numpy_iterator()]


# ---- what it holds ---------------------------------------------------------------------------------------------

# In steps: where a quotient is denormal, TensorFlow has 0.
NUMBER = st.integers(-20 * 64, 320 * 64).map(lambda number: number / 64)
OBJECTS = st.lists(st.tuples(st.sampled_from([*CLASSES, "cow"]), st.tuples(*[NUMBER] * 4)), max_size=4)
IMAGES = st.lists(st.tuples(st.sampled_from(range(3)), OBJECTS), min_size=1, max_size=4)


def _traced(catalog) -> Callable[..., Any]:
    signature = [OBJECT_SPECS, tf.TensorSpec([None], tf.int32)]

    def find(objects: Objects, labels: tf.Tensor) -> Any:
        return find_targets(objects, labels, tf.ones_like(objects.sizes, tf.int32), catalog)

    return tf.function(find, input_signature=signature)


FIND = {False: _traced(DIRECTORY), True: _traced(OBJECT)}


@given(images=IMAGES, by_object=st.booleans(), stated=st.sampled_from([STATED, (333.0, 499.0)]))
@settings(max_examples=150, deadline=None)
def test_the_boxes_are_those_of_find_targets_bit_for_bit(images, by_object: bool, stated: tuple[float, float]) -> None:
    labels = np.array([BY_OBJECT if by_object else label for label, _ in images], np.int32)
    flat = [(image, *thing) for image, (_, objects) in enumerate(images) for thing in objects]
    objects = Annotated(
        np.array([image for image, _, _ in flat], np.int64),
        np.array([box for _, _, box in flat], np.float32).reshape(-1, 4),
        np.array([CLASSES.index(name) if name in CLASSES else -1 for _, name, _ in flat], np.int32),
    )
    found = targets(objects, labels, np.float32([stated] * len(images)))
    assert (found.images.dtype, found.boxes.dtype, found.labels.dtype) == (np.int32, np.float32, np.int32)
    names = tf.constant([name for _, name, _ in flat], tf.string, shape=[len(flat)])
    sizes = tf.constant([stated] * len(images), tf.float32)
    expected = FIND[by_object](Objects(objects.images, names, objects.boxes, sizes), tf.constant(labels))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


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
    }


# ---- training from it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["image", "box"])
@pytest.mark.parametrize("label_source", ["directory", "object"])
@pytest.mark.parametrize("crop", ["boxes", "random_resized"])
def test_batches_are_the_same_with_it_and_by_either_reader_and_no_xml_is_read(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, crop: str, label_source: str, unit: str
) -> None:
    keys = {"crop": crop, "label_source": label_source, "unit": unit}
    without = batches(make(**keys, annotations="xml"), "train", 9)
    by_lxml = batches(make(**keys, annotations="lxml"), "train", 9)
    build_index(make(**keys).data, "train", World(), processes=1)
    for reader in ("xml_graph.parse_xml", "xml_graph.parse_by_lxml", "annotations.read_xml"):
        monkeypatch.setattr(f"tfpipe.data.{reader}", None)
    indexed = make(**keys, annotations="index")
    for one, other, another in zip(batches(indexed, "train", 9), without, by_lxml, strict=True):
        for left, middle, right in zip(one, other, another, strict=True):
            np.testing.assert_array_equal(left, middle)
            np.testing.assert_array_equal(right, middle)


@pytest.mark.parametrize("label_source", ["directory", "object"])
def test_the_test_pass_is_the_same_with_it_and_without(make: Callable[..., Config], label_source: str) -> None:
    keys = {"test_crop": "boxes", "label_source": label_source}
    keys |= {"test_label_file": None} if label_source == "object" else {}
    without = batches(make(**keys), "test", 99)
    build_index(make(**keys).data, "test", World(), processes=1)
    indexed = batches(make(**keys, annotations="index"), "test", 99)
    assert len(indexed) == len(without) > 1
    for one, other in zip(indexed, without, strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("label_source", ["directory", "object"])
def test_the_catalog_knows_all_that_the_xmls_say(make: Callable[..., Config], label_source: str) -> None:
    config = make(label_source=label_source).data
    without = load_catalog(config, "train", World())
    assert without.boxes is None
    build_index(config, "train", World(), processes=1)
    catalog = load_catalog(config, "train", World())
    assert not catalog.by_box and catalog.samples == len(catalog)
    np.testing.assert_array_equal(catalog.annotated, without.annotated)
    for one, other in zip(catalog.boxes, read_boxes(without, World()), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert count_crops(catalog, config, World()) == (len(catalog.boxes.labels), True)
    random = config.model_copy(update={"crop": "random_resized"})
    assert count_crops(catalog, random, World()) == count_crops(without, random, World())


# ---- stale or missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["filelist", "classes", "labels", "damaged"])
def test_one_that_does_not_belong_is_never_used(
    sample: SampleData, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    (tmp_path / "train.txt").write_text(sample.train.read_text())
    names = sorted(path.name for path in (sample.root / TRAIN).iterdir())

    def config(names: Sequence[str] = names, **keys: Any):
        data = {"train_filelist": "train.txt", "classes": list(names), **keys}
        return load_config(sample.config(tmp_path / "c.json", data=data)).data

    path = build_index(config(), "train", World(), processes=1).path
    assert load_catalog(config(), "train", World()).boxes is not None
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
    assert load_catalog(config(**keys), "train", World()).boxes is None
    assert str(path) in caplog.text and "tfpipe index -c CONFIG --split train" in caplog.text
    with pytest.raises(ConfigError, match=r"tfpipe index -c CONFIG --split train"):
        load_catalog(config(**keys, annotations="index"), "train", World())
    build_index(config(**keys), "train", World(), processes=1)
    assert load_catalog(config(**keys, annotations="index"), "train", World()).boxes is not None


def test_without_one_the_xmls_are_read_unless_it_must_be_there(
    make: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    assert load_catalog(make().data, "train", World()).boxes is None
    assert "index" not in caplog.text
    with pytest.raises(ConfigError, match=r"there is no index .*train-[0-9a-f]{8}\.index\.parquet; make it with"):
        load_catalog(make(annotations="index").data, "train", World())


@pytest.mark.parametrize("annotations", ["xml", "lxml"])
def test_where_the_xmls_are_to_be_read_no_index_is_used(make: Callable[..., Config], annotations: str) -> None:
    build_index(make().data, "train", World(), processes=1)
    catalog = load_catalog(make(annotations=annotations).data, "train", World())
    assert catalog.boxes is None and catalog.annotated.any()
    assert catalog.by_lxml == (annotations == "lxml")


def test_where_no_box_is_needed_none_is_looked_for(make: Callable[..., Config]) -> None:
    assert load_catalog(make(annotations="index", crop="center").data, "train", World()).boxes is None


# ---- building it -----------------------------------------------------------------------------------------------


def test_any_number_of_processes_gives_the_same_bytes(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "CHUNK", 7)
    files = [build_index(make().data, "train", World(), processes).path.read_bytes() for processes in (1, 2)]
    assert files[0] == files[1]


def test_what_an_interrupted_build_has_finished_is_not_made_again(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "CHUNK", 10)
    monkeypatch.setattr(index_build, "PART", 40)
    config = make().data
    whole = build_index(config, "train", World(), processes=1)
    expected = whole.path.read_bytes()
    assert list(whole.path.parent.iterdir()) == [whole.path]
    whole.path.unlink()
    read, seen = index_build.read_rows, []

    def until(limit: int) -> Callable[..., Any]:
        def read_some(images, classes):
            if len(seen) == limit:
                raise KeyboardInterrupt
            seen.append(images.paths[0])
            return read(images, classes)

        return read_some

    monkeypatch.setattr(index_build, "read_rows", until(6))
    with pytest.raises(KeyboardInterrupt):
        build_index(config, "train", World(), processes=1)
    assert not whole.path.exists()
    monkeypatch.setattr(index_build, "read_rows", until(-1))
    before = len(seen)
    assert build_index(config, "train", World(), processes=1) == whole
    assert len(seen) - before == 10 - 4, "the first part of 40 was done"
    assert whole.path.read_bytes() == expected
    assert list(whole.path.parent.iterdir()) == [whole.path]


def test_a_row_group_is_made_of_several_parts(make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pq.read_table(build_index(make().data, "train", World(), processes=1).path)
    for part, group, groups in ((10, 40, [40, 40, 16]), (40, 40, [40, 40, 16]), (50, 20, [20, 20, 10, 20, 20, 6])):
        monkeypatch.setattr(index_build, "PART", part)
        monkeypatch.setattr(index_build, "ROW_GROUP", group)
        made = build_index(make().data, "train", World(), processes=1)
        file = pq.ParquetFile(made.path)
        assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == groups
        assert file.read().equals(rows)


def test_two_lists_of_one_name_share_a_folder(sample: SampleData, tmp_path: Path) -> None:
    lines, paths = sample.train.read_text().splitlines(True), {}
    for name, count in (("one", 20), ("other", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("".join(lines[:count]))
        data = {"index": "indexes", "train_filelist": f"{name}/train.txt", "classes": None}
        paths[name] = load_config(sample.config(tmp_path / f"{name}.json", data=data)).data
        build_index(paths[name], "train", World(), processes=1)
    for name, count in (("one", 20), ("other", 30)):
        must = paths[name].model_copy(update={"annotations": "index"})
        assert len(load_catalog(must, "train", World()).boxes.offsets(count)) == count + 1
    assert len(list((tmp_path / "indexes").iterdir())) == 2


def test_parts_of_what_the_list_was_before_are_removed(make: Callable[..., Config], tmp_path: Path) -> None:
    folder = index_path(make().data, make().data.train_filelist).parent
    path = build_index(make().data, "train", World(), processes=1).path
    (folder / f"{path.name}.0123456789abcdef.parts").mkdir()
    (folder / "val.index.parquet.0123456789abcdef.parts").mkdir()
    build_index(make().data, "train", World(), processes=1)
    assert {each.name for each in folder.iterdir()} == {path.name, "val.index.parquet.0123456789abcdef.parts"}


def test_while_one_is_built_another_build_does_not_begin(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, said = index_build.read_rows, []

    def build_meanwhile(images, classes):
        with pytest.raises(ConfigError) as caught:
            build_index(make(label_source="object", test_label_file=None).data, "train", World(), processes=1)
        said.append(str(caught.value))
        return read(images, classes)

    monkeypatch.setattr(index_build, "read_rows", build_meanwhile)
    made = build_index(make().data, "train", World(), processes=1)
    assert f"process {os.getpid()} on {socket.gethostname()} is building this index already" in said[0]
    assert f"{made.path}.lock" in said[0]
    assert list(made.path.parent.iterdir()) == [made.path], "no lock is left, nor the parts of the other build"


def test_all_that_cannot_be_read_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    config = write_tree(tmp_path)
    (tmp_path / "Annotations" / OWN / "fine.xml").write_text("<annotation><object>")
    (tmp_path / "Annotations" / OWN / "gray.xml").write_text("<annotation><object></object></annotation>")
    (tmp_path / "JPEGImages" / OWN / "cmyk.jpg").write_text("no image")
    (tmp_path / "JPEGImages" / OWN / "plain.jpg").unlink()
    with pytest.raises(ConfigError, match="4 problem") as caught:
        build_index(config.data, "train", World(), processes=1)
    for name in ("fine.xml", "gray.xml", "cmyk.jpg", "plain.jpg"):
        assert name in str(caught.value)
    assert not index_path(config.data, config.data.train_filelist).exists()


def test_no_more_problems_are_named_than_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "MAX_ERRORS", 3)
    config = write_tree(tmp_path)
    for path in (tmp_path / "JPEGImages" / OWN).iterdir():
        path.write_text("no image")
    with pytest.raises(ConfigError, match="at least 3 problems") as caught:
        build_index(config.data, "train", World(), processes=1)
    assert str(caught.value).count(".jpg") == 3


def test_a_folder_that_cannot_be_written_is_named(make: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "indexes").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write .*indexes.*data\.index"):
        build_index(make().data, "train", World(), processes=1)


def test_workers_start_no_tensorflow() -> None:
    code = "import sys, tfpipe.data.index_build; assert 'tensorflow' not in sys.modules"
    assert run(sys.executable, "-c", code).code == 0


def test_the_command_says_what_it_found(sample: SampleData, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json", data={"index": "."})
    done = run(sys.executable, "-m", "tfpipe", "index", "-c", path, "--split", "all", "--processes", "2")
    assert done.code == 0, done.err
    train, test = done.out.splitlines()
    data = load_config(path).data
    assert train.startswith(f"{index_path(data, sample.train)}: 96 images (") and " boxes; " in train
    assert test.startswith(f"{index_path(data, sample.val)}: 37 images (37 annotated), ")


@pytest.mark.mpi
@pytest.mark.slow
def test_two_ranks_write_the_same_bytes_as_one(sample: SampleData, tmp_path: Path) -> None:
    code = """
import sys
from tfpipe.data import index_build
from tfpipe.cli import main
index_build.PART, index_build.CHUNK = 20, 6
sys.exit(main(["index", *sys.argv[1:]])) if __name__ == "__main__" else None
"""
    (tmp_path / "small_parts.py").write_text(code)
    files = []
    for size in (1, 2):
        path = sample.config(tmp_path / "c.json", data={"index": f"of{size}"})
        done = run_ranks(size, sys.executable, tmp_path / "small_parts.py", "-c", path, "--processes", "2")
        assert done.code == 0, done.err
        assert done.out.count("96 images") == 1
        (made,) = (tmp_path / f"of{size}").iterdir()
        files.append(made.read_bytes())
    assert files[0] == files[1]


@pytest.mark.mpi
@pytest.mark.slow
def test_what_one_rank_cannot_read_stops_all_by_name(tmp_path: Path) -> None:
    write_tree(tmp_path)
    (tmp_path / "Annotations" / OWN / "fine.xml").write_text("<annotation>")
    done = run_ranks(2, sys.executable, "-m", "tfpipe", "index", "-c", tmp_path / "c.json", "--processes", "1")
    assert done.code == 2 and "fine.xml" in done.err


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
