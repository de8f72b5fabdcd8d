"""A tree has the same splits, classes and ledger as folders, as a tar file and as a zip file."""

import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.archives import tar_bytes
from tests.support.images import encoded, picture
from tfpipe import World, make_config
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.errors import ConfigError

IMAGE = encoded(picture(8, 8))
FORMS = ("folders", "tar", "zip")


class Found(NamedTuple):
    """The images of a split by their names in the tree, and what is left out."""

    classes: tuple[str, ...]
    images: dict[str, str]  # class of each
    left_out: dict[str, int]


def zip_bytes(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, contents in files.items():
            archive.writestr(name, contents)
    return buffer.getvalue()


def written(folder: Path, form: str, names: list[str]) -> dict:
    """Writes a tree, empty but for its names, and returns the source that reads it."""
    files = dict.fromkeys(names, IMAGE)
    folder.mkdir(parents=True)
    if form == "folders":
        for name, contents in files.items():
            (folder / "ds" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ds" / name).write_bytes(contents)
        return {"kind": "folders", "path": str(folder / "ds")}
    path = folder / f"ds.{form}"
    path.write_bytes(tar_bytes(files) if form == "tar" else zip_bytes(files))
    return {"kind": "archive", "path": str(path)}


def found(source: dict, split: str, **data: object) -> Found | str:
    config = make_config({"data": {"crop_image_size": [8, 8], "source": source, **data}}).data
    try:
        catalog = load_split(config, split, World()).catalog
    except ConfigError as error:
        return str(error)
    names = [path.rpartition("/ds/")[2].removeprefix("ds/") for path in catalog.paths]
    labels = [catalog.classes[label] for label in catalog.labels]
    counts = {reason: count for reason, (count, _) in catalog.ledger.counts.items()}
    # Archives hold no folders but those of their members.
    counts.pop("folders without an image", None)
    return Found(catalog.classes, dict(zip(names, labels, strict=True)), counts)


DEEP = [f"images/{split}/{name}/{number}.jpg" for split in ("train", "val") for name in "ab" for number in range(2)]


@pytest.mark.parametrize(
    ("names", "classes", "train", "left_out"),
    [
        pytest.param(DEEP, "a b", 4, {}, id="splits-below-another-folder"),
        pytest.param([*DEEP, "images/train/x.jpg", "readme.png"], "a b", 4,
                     {"images beside the class folders": 1, "images of no split": 1}, id="images-beside"),
        pytest.param(["a/1.jpg", "b/1.jpg", "preview.jpg", "notes.txt", "a/2.psd"], "a b", 2,
                     {"images beside the class folders": 1, ".txt": 1, ".psd": 1}, id="files-beside"),
        pytest.param(["a/1.jpg", "b/1.jpg", "@eaDir/1.jpg", "__MACOSX/a/._1.jpg", "lost+found/1.jpg"], "a b", 2,
                     None, id="system"),
        pytest.param(["a/1.jpg", "b/1.jpg", "train.catalog/1.jpg"], "a b", 2, None, id="tfpipe's-own"),
        pytest.param(["fox.png/1.jpg", "cat/1.jfif", "cat/2.jpe"], "cat fox.png", 3, {}, id="names-of-images"),
        pytest.param(["a/2024/1.jpg", "b/2024/1.jpg", "b/2023/1.jpg"], "a b", 3, {}, id="folders-in-classes"),
        pytest.param(["train/n1/images/1.jpg", "train/n2/images/2.jpg"], "n1 n2", 2, {}, id="tiny-imagenet"),
        pytest.param(["ds/a/1.jpg", "ds/b/1.jpg"], "a b", 2, {}, id="wrapped"),
        pytest.param(["seg_train/seg_train/a/1.jpg", "seg_train/seg_train/b/1.jpg", "seg_test/seg_test/a/1.jpg"],
                     "a b", 2, {}, id="intel"),
    ],
)  # fmt: skip
def test_all_forms_find_the_same(tmp_path: Path, names: list[str], classes: str, train: int, left_out: dict) -> None:
    results = [found(written(tmp_path / form, form, names), "train") for form in FORMS]
    assert all(isinstance(result, Found) for result in results), results
    first = results[0]
    assert isinstance(first, Found)
    assert first.classes == tuple(classes.split()) and len(first.images) == train
    assert [result[:2] for result in results] == [first[:2]] * len(FORMS)
    if left_out is not None:
        assert [result[2] for result in results] == [left_out] * len(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_images_of_splits_without_class_folders_are_refused(tmp_path: Path, form: str) -> None:
    yolo = ["images/train/1.jpg", "images/val/2.jpg", "labels/train/1.txt"]
    message = found(written(tmp_path / form, form, yolo), "train")
    assert isinstance(message, str) and "no" in message


@pytest.mark.parametrize("form", FORMS)
def test_the_level_of_the_classes_may_be_chosen(tmp_path: Path, form: str) -> None:
    source = written(tmp_path / form, form, ["a/2024/1.jpg", "b/2023/1.jpg", "b/2.jpg"])
    result = found(source, "train", class_level=2)
    assert isinstance(result, Found)
    assert result.classes == ("2023", "2024") and result.left_out == {"images beside the class folders": 1}


@pytest.mark.parametrize("form", FORMS)
def test_test_data_are_found_at_any_depth(tmp_path: Path, form: str) -> None:
    source = written(tmp_path / form, form, DEEP)
    assert open_source(make_config({"data": {"source": source}}).data).has_test()
    result = found(source, "test")
    assert isinstance(result, Found)
    assert result.images == {name: name.split("/")[2] for name in DEEP if "/val/" in name}


FOLDERS = st.lists(st.sampled_from(["a", "b", "train", "val", "Test", "images", "@eaDir", "x.png"]), max_size=3)
FILES = st.sampled_from(["1.jpg", "2.PNG", "n.txt", ".h.jpg", "Thumbs.db"])


@given(st.sets(st.builds(lambda folders, file: "/".join([*folders, file]), FOLDERS, FILES), min_size=1, max_size=8))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_file_is_used_or_counted_in_every_form_alike(tmp_path_factory, names: set[str]) -> None:
    root = tmp_path_factory.mktemp("trees")
    files = sorted(name for name in names if not any(f"{name}/" in other for other in names))
    results = [found(written(root / form, form, files), split) for form in FORMS for split in ("train",)]
    used = [result.images if isinstance(result, Found) else None for result in results]
    assert used == [used[0]] * len(FORMS), results
    for form, result in zip(FORMS, results, strict=True):
        if isinstance(result, Found):
            test = found(written(root / f"{form}-again", form, files), "test")
            if isinstance(test, str) and "no test data" not in test and "hold no test image" not in test:
                continue  # a class of the test data alone, which is refused
            tested = len(test.images) if isinstance(test, Found) else 0
            hidden = Counter(result.left_out)
            counted = sum(hidden.values())
            assert len(result.images) + tested + counted <= len(files) + len(result.left_out)
            if form != "folders":
                assert len(result.images) + tested + counted == len(files)
