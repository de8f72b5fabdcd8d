"""YOLO's annotations: read as they are written, or refused by file and line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.annotations import read_annotation
from tests.support.batches import assert_same, batches
from tests.support.routes import CLASSES, SMALL, as_txt, samples, write_files
from tests.support.server import serving
from tests.support.trees import write_below
from tfpipe import Config, Loader, World, load
from tfpipe.config import make_config
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.yolo import class_names, data_folder
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.index import build_index
from tfpipe.prepare.stage import stage
from tfpipe.tools.check.split import check

SAMPLES = samples(12)
# Edges in 64ths of the image, so that all of its numbers are exact.
EDGES = st.tuples(*[st.integers(0, 64)] * 4).map(lambda edges: [edge / 64 for edge in edges])


def objects_of(text: str | bytes) -> tuple[list[str | int], list[list[float]]]:
    found = parse_annotation(text.encode() if isinstance(text, str) else text, "a/1.txt", "yolo")
    assert found.size == [1, 1], "the boxes are relative"
    return found.names, found.boxes.tolist()


@given(st.lists(st.tuples(st.integers(0, 99), EDGES)), st.sampled_from(["\n", "\r\n", " \n\n"]))
def test_boxes_are_read_as_their_edges(objects: list[tuple[int, list[float]]], end: str) -> None:
    boxes = [
        [min(edges[0::2]), min(edges[1::2]), max(edges[0::2]), max(edges[1::2])] for _, edges in objects
    ]  # ymin, xmin, ymax, xmax
    lines = [
        f"{number} {(left + right) / 2} {(top + low) / 2} {right - left} {low - top}"
        for (number, _), (top, left, low, right) in zip(objects, boxes, strict=True)
    ]
    assert objects_of(end.join(lines)) == ([number for number, _ in objects], boxes)


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64)), min_size=3))
def test_a_polygon_has_the_box_around_its_points(points: list[tuple[int, int]]) -> None:
    text = "7 " + " ".join(f"{x / 64} {y / 64}" for x, y in points)
    x, y = ([value / 64 for value in values] for values in zip(*points, strict=True))
    assert objects_of(text) == ([7], [[min(y), min(x), max(y), max(x)]])


@given(st.one_of(st.binary(max_size=60), st.text("0123456789.-+e \n\t", max_size=60).map(str.encode)))
def test_any_text_is_read_or_refused_by_name(text: bytes) -> None:
    try:
        names, boxes = objects_of(text)
    except ValueError as error:
        assert re.match(r"a/1\.txt: line \d+: received ", str(error))
    else:
        assert len(names) == len(boxes) and np.isfinite(boxes).all()


def test_rounding_beyond_the_image_is_no_oddity() -> None:
    assert objects_of("\ufeff0 0.123457 0.5 0.246915 1.000001\n") == ([0], [[0, 0, 1, pytest.approx(0.2469145)]])
    assert objects_of("0 -0.000001 0.25 0.5 -0.000001 1 1.000001") == ([0], [[0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("0 0.5 0.5 0.5", "it has 4 fields"),
        ("0 0.5 0.5 0.5 0.5 0.9", "it has 6 fields"),
        ("0 0.5 0.5 0.5 0.5 0.5 0.5 0.5", "it has 8 fields"),
        ("cat 0.5 0.5 0.5 0.5", "where class is a whole number from 0"),
        ("-1 0.5 0.5 0.5 0.5", "where class is a whole number from 0"),
        ("0 0.5 nan 0.5 0.5", "where class is a whole number from 0"),
        ("0 120 80 40 40", "relative to the image's width and height"),
        ("0 0.5 0.5 -0.2 0.5", "relative to the image's width and height"),
        (
            "0 0.5 0.5 0.2 0.5 0.9 1",
            "a polygon of three points, or a box with the confidence and the number of a track",
        ),
        (
            "0 0.5 0.5 0.2 0.5 0.9 17",
            "a polygon of three points, or a box with the confidence and the number of a track",
        ),
    ],
)
def test_another_line_is_refused_by_file_and_line(tmp_path: Path, line: str, accepted: str) -> None:
    (tmp_path / "1.txt").write_text(f"0 0.5 0.5 0.1 0.1\n\n{line}\n")
    with pytest.raises(ValueError, match=accepted) as caught:
        read_annotation(str(tmp_path / "1.txt"), "yolo")
    assert str(caught.value).startswith(f'{tmp_path}/1.txt: line 3: received "{line}"; ')


@given(st.integers(1, 9), st.integers(0, 9))
def test_a_class_number_is_below_the_number_of_classes(classes: int, number: int) -> None:
    """Lines that count from 1 would lose the last class, and give the others the next one's name."""
    text = f"{number} 0.5 0.5 0.1 0.1".encode()
    if number < classes:
        assert parse_annotation(text, "1.txt", "yolo", classes).names == [number]
        return
    with pytest.raises(ValueError, match=rf"1\.txt: line 1: .*it is none of {classes} classes, 0 to"):
        parse_annotation(text, "1.txt", "yolo", classes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Images with boxes in YOLO's form; every third image has none, but one an empty .txt."""
    folder = tmp_path / "birds"
    folder.mkdir()
    write_files(folder, SAMPLES)
    annotated = [sample for sample in SAMPLES if sample.boxes or sample is SAMPLES[0]]
    write_below(folder, {f"labels/{each.label}/{each.name}.txt": as_txt(each).encode() for each in annotated})
    (folder / "data.yaml").write_text(f"train: images\nval: images/dog\nnames: [{', '.join(CLASSES)}]\nnc: 3\n")
    return folder


def config_of(root: Path, **keys: object) -> Config:
    data = {**SMALL, "train_filelist": str(root / "images"), "layout": "yolo", "classes": str(root / "data.yaml")}
    return make_config({"data": {**data, "label_source": "object", **keys}})


def test_a_data_yaml_is_loaded(root: Path) -> None:
    for path in (root, root / "data.yaml"):
        with load(path, image_size=16, batch_size=4, targets="boxes") as train:
            assert train.class_names == list(CLASSES)
        with load(path, "test", image_size=16, batch_size=4) as test:
            labels = np.concatenate([labels for _, labels in test])
            assert set(labels.tolist()) == {CLASSES.index("dog")}


@pytest.mark.parametrize("by_url", [False, True])
def test_check_and_training_name_a_bad_line(root: Path, by_url: bool) -> None:
    bad = root / "labels/cat/004.txt"
    bad.write_text(bad.read_text() + "1 0.5 0.5 0.1\n")
    with serving(root) as server:
        base = server.url if by_url else str(root)
        listed = root.parent / "train.txt"
        listed.write_text("".join(f"{base}/images/{each.label}/{each.name}.jpg\n" for each in SAMPLES))
        config = config_of(root, train_filelist=str(listed))
        (found,) = check(config.data, ["train"], World(), 1)
        named = {oddity.code: oddity.examples[0]["reason"] for oddity in found.oddities}
        line = f'{base}/labels/cat/004.txt: line 2: received "1 0.5 0.5 0.1"; it has 4 fields'
        assert named["bad xml"].startswith(line) and {*named} <= {"bad xml", "no xml", "no object"}
        with pytest.raises(TfpipeError, match=re.escape(line)), Loader(config) as loader:
            list(loader.epoch(0))


@pytest.mark.parametrize("keys", [{}, {"unit": "box"}, {"annotations": "index"}])
def test_lines_that_count_from_1_are_refused_by_name(root: Path, keys: dict) -> None:
    last = next(sample for sample in SAMPLES if sample.label == CLASSES[2] and sample.boxes)
    path = root / "labels" / last.label / f"{last.name}.txt"
    path.write_text(re.sub(r"(?m)^2", "3", path.read_text()))
    config = config_of(root, index=str(root.parent), **keys)
    with pytest.raises(TfpipeError, match=rf"{path}: line 1: .*none of 3 classes"):
        if "annotations" in keys:
            build_index(config.data, "train", World(), 1)
        else:
            with Loader(config) as loader:
                list(loader.epoch(0))


def test_annotations_behind_urls_are_those_of_files(root: Path) -> None:
    listed = root.parent / "train.txt"
    with serving(root) as server:
        found = []
        for base in (root, server.url):
            listed.write_text("".join(f"{base}/images/{each.label}/{each.name}.jpg\n" for each in SAMPLES))
            found.append(batches(config_of(root, train_filelist=str(listed)), count=4))
    assert_same(*found)


def test_a_staged_copy_has_the_same_crops(root: Path) -> None:
    config = config_of(root)
    stage(config.data, ["train"], root.parent / "copy", World())
    assert_same(
        batches(config, count=4),
        batches(config_of(root, train_filelist=str(root.parent / "copy/train.txt")), count=4),
    )


@pytest.mark.parametrize(
    "names", ["names: [bird, cat, 7]", "names:\n  0: bird\n  1: cat\n  2: 7\n", "names:\n- bird\n- cat\n- '7'\n"]
)
def test_class_names_are_a_list_or_a_mapping(tmp_path: Path, names: str) -> None:
    (tmp_path / "data.yaml").write_text(names)
    assert class_names(tmp_path / "data.yaml") == ["bird", "cat", "7"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("names: {1: bird, 2: cat}", "a mapping of all numbers from 0 to names"),
        ("train: images", "received names None"),
        ("names: [a, b]\nnc: 3", "received nc 3 and 2 names; correct the one that is wrong"),
        ("names: [a]\nkpt_shape: [17, 3]", r"received kpt_shape \[17, 3\]: its lines hold keypoints after each box"),
        ("names: [", "is not YAML"),
        ("- names", "received a list"),
    ],
)
def test_a_data_yaml_without_names_is_refused_by_name(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        class_names(tmp_path / "data.yaml")
    assert str(caught.value).startswith(str(tmp_path / "data.yaml"))


@pytest.mark.parametrize(
    "keys",
    [
        {"train": "images/train"},
        {"path": "datasets/coco8", "train": "images/train"},
        {"path": "sub", "train": "train"},
        {"train": "../images/train"},
    ],
)
def test_folders_are_found_as_ultralytics_and_roboflow_write_them(tmp_path: Path, keys: dict) -> None:
    root = tmp_path / "data"
    (root / "images/train").mkdir(parents=True)
    (root / "sub").symlink_to(root / "images")
    (root / "data.yaml").write_text(json.dumps({**keys, "val": "gone", "names": ["a"]}))
    found = data_folder(root / "data.yaml", "train")
    assert found is not None and found.samefile(root / "images/train")
    with pytest.raises(ConfigError, match="val gone is neither"):
        data_folder(root / "data.yaml", "test")


def test_test_data_is_val_and_without_it_test(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        (tmp_path / name).mkdir()
    for keys, expected in (({"val": "val", "test": "test"}, "val"), ({"test": "test"}, "test"), ({}, None)):
        (tmp_path / "data.yaml").write_text(json.dumps({"train": "train", **keys}))
        assert data_folder(tmp_path / "data.yaml", "test") == (expected and tmp_path / expected)
        assert data_folder(tmp_path / "data.yaml", "train") == tmp_path / "train"
