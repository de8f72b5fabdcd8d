"""A tree has the same splits, classes and ledger as folders, as a tar file and as a zip file."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.archives import tar_bytes, write_zip
from tests.support.examples import FULL
from tests.support.images import encoded, picture
from tests.support.trees import touch, write_below
from tfpipe import World, make_config
from tfpipe.data.sources.folders import Folders
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.errors import ConfigError

IMAGE = encoded(picture(8, 8))
FORMS = ("folders", "tar", "zip")


class Found(NamedTuple):
    """The images of a split by their names in the tree, and what is left out."""

    classes: tuple[str, ...]
    images: dict[str, str]  # class of each
    left_out: dict[str, int]


def written(folder: Path, form: str, names: list[str]) -> dict:
    """Writes a tree, empty but for its names, and returns the source that reads it."""
    files = dict.fromkeys(names, IMAGE)
    folder.mkdir(parents=True)
    if form == "folders":
        return {"kind": "folders", "path": str(write_below(folder / "ds", files))}
    path = folder / f"ds.{form}"
    if form == "tar":
        path.write_bytes(tar_bytes(files))
    else:
        write_zip(path, files)
    return {"kind": "archive", "path": str(path)}


def found(source: dict, split: str, **data: object) -> Found | str:
    config = make_config({"data": {"crop_image_size": [8, 8], "source": source, **data}}).data
    try:
        catalog = load_split(config, split, World()).catalog
    except ConfigError as error:
        return str(error)
    names = [path.rpartition("/ds/")[2].removeprefix("ds/") for path in catalog.paths]
    labels = [catalog.classes[label] if catalog.classes else "" for label in catalog.labels]
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
    assert isinstance(message, str) and "of one class, train" in message and "expected class folders" in message


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
@settings(max_examples=15)
def test_what_is_hidden_is_left_out_in_every_form(tmp_path_factory, names: set[str]) -> None:
    root = tmp_path_factory.mktemp("trees")
    files = sorted(name for name in names if not any(f"{name}/" in other for other in names))
    results = [found(written(root / form, form, files), "train") for form in FORMS]
    assert len({isinstance(result, Found) for result in results}) == 1, results
    for result in results:
        if isinstance(result, Found):
            assert not any("/." in f"/{name}" or "@eaDir" in name for name in result.images)
    assert len({str(result[:2]) for result in results if isinstance(result, Found)}) <= 1


# ---- every entry is used, or counted ----

NAMES = ["cat", "dog", "train", "test", "val", "Training", "seg_train", "seg_test", "2023", "docs"]
DEPTHS = st.lists(st.sampled_from(NAMES), max_size=4)
ENTRIES = st.sets(
    st.builds(lambda folders, file: "/".join([*folders, file]), DEPTHS, st.sampled_from(["1.jpg", "2.png", "n.txt"])),
    min_size=1,
    max_size=12,
)
USUAL = {f"{split}/{name}/{number}.jpg" for split in ("train", "val") for name in ("cat", "dog") for number in range(2)}
TREES = st.one_of(ENTRIES, ENTRIES.map(lambda names: names | USUAL), ENTRIES.map(lambda names: {*names, *BARE}))
BARE = {f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(3)}
# Words of the keys that decide, or of what else is said of data that cannot be trained on.
REFUSED = re.compile(
    r"test_path|class_level|one class|no image|no class|hold no (train|test) image|less than one image|several folders|"
    r"a label that is no class|no test data|data\.classes"
)


def check_identity(root: Path, files: list[str], data: dict, source: dict) -> None:
    """Checks that training, test and left-out entries are all entries, in every form, unless the data are refused."""
    outcomes = []
    for form in FORMS if "test_share" not in source else FORMS[:1]:
        about = {**written(root / form, form, files), **source}
        train, test = (found(about, split, **data) for split in ("train", "test"))
        if isinstance(train, str) or (isinstance(test, str) and "no test" not in test):
            message = train if isinstance(train, str) else str(test)
            assert REFUSED.search(message), message
            outcomes.append("refused")
            continue
        tested = test.images if isinstance(test, Found) else {}
        assert not train.images.keys() & tested.keys()
        assert len(train.images) + len(tested) + sum(train.left_out.values()) == len(files), (form, train, test)
        assert isinstance(test, str) or not test.left_out, "what is left out is counted once"
        config = make_config({"data": {"source": about, "crop_image_size": [8, 8], **data}}).data
        assert "test_share" in source or open_source(config).has_test() == bool(tested)
        outcomes.append((train[:2], tested, train.left_out))
    assert outcomes == outcomes[:1] * len(outcomes), outcomes


SETTINGS = st.sampled_from(
    [({}, {}), ({}, {}), ({"class_level": 1}, {}), ({"class_level": -1}, {}), ({"targets": "none"}, {}),
     ({}, {"test_share": 0.3}), ({"classes": ["dog"]}, {}), ({"classes": ["dog", "cat", "seg_train"]}, {})]
)  # fmt: skip


# In parts, each of which is far from pytest's limit of time.
@pytest.mark.parametrize("part", range(2 if FULL else 1))
@given(TREES, SETTINGS)
@settings(max_examples=500 if FULL else 100)
def test_every_entry_is_used_once_or_counted_or_the_data_are_refused(tmp_path_factory, part, names, how) -> None:
    files = sorted(name for name in names if not any(other.startswith(f"{name}/") for other in names))
    root = tmp_path_factory.mktemp("entries")
    check_identity(root, files, *how)
    shutil.rmtree(root)


SPLITS = st.lists(st.sampled_from(["cat", "dog", "train", "val", "seg_train", "seg_test", "@eaDir", "ds"]), max_size=4)


@given(st.sets(SPLITS.map(lambda names: "/".join([*names, "1.jpg"])), max_size=8), st.sampled_from([None, 1, 2, -1]))
@settings(max_examples=1_500 if FULL else 400)
def test_there_is_test_data_if_some_is_chosen(tmp_path_factory, names: set[str], level: int | None) -> None:
    """Also where the names of a few folders tell, and not all images are listed."""
    root = tmp_path_factory.mktemp("there")
    touch(root, *({*names, "train/cat/1.jpg", "train/dog/1.jpg"} if len(names) % 2 else names))
    about = {"kind": "folders", "path": str(root)}
    source = Folders(make_config({"data": {"source": about, "class_level": level}}).data)
    try:
        chosen = bool(source._choose("test").paths)
    except ConfigError as error:
        assert REFUSED.search(str(error)) or "by its name" in str(error)
    else:
        assert source.has_test() == chosen
    shutil.rmtree(root)


@given(TREES, ENTRIES, st.sampled_from(["inside", "beside", "link"]))
@settings(max_examples=500 if FULL else 15)
def test_entries_of_two_folders_are_used_once_or_counted(tmp_path_factory, names, others, place: str) -> None:
    root = tmp_path_factory.mktemp("entries")
    inside, elsewhere = root / "ds/held-out", root / "test"
    for folder, files in ((root / "ds", names), (inside if place == "inside" else elsewhere, others)):
        write_below(folder, dict.fromkeys(files, IMAGE))
    if place == "link":
        inside.symlink_to(elsewhere)
    source = {"kind": "folders", "path": str(root / "ds"), "test_path": str(inside if place != "beside" else elsewhere)}
    train, test = (found(source, split) for split in ("train", "test"))
    if isinstance(train, Found) and isinstance(test, Found):
        counted = sum([*train.left_out.values(), *test.left_out.values()])
        assert len(train.images) + len(test.images) + counted == len(names) + len(others), (train, test)
    else:
        assert all(isinstance(result, Found) or REFUSED.search(result) for result in (train, test)), (train, test)
    shutil.rmtree(root)


FILES_OF_DATA = st.sets(
    st.builds(lambda words, number: "-".join([*words, str(number)]),
              st.lists(st.sampled_from(["train", "val", "test", "few", "labels"]), max_size=2), st.integers(0, 2)),
    min_size=1, max_size=6,
)  # fmt: skip
ENDINGS = {"webdataset": "tar", "archive": "tar", "table": "csv", "tfrecord": "tfrecord", "coco": "json"}


@given(FILES_OF_DATA, st.sampled_from(["nowhere", "a file", "a folder"]))
@settings(max_examples=750 if FULL else 60)
def test_every_file_of_data_is_used_once_or_counted_in_every_source(tmp_path_factory, names, elsewhere: str) -> None:
    root, outcomes = tmp_path_factory.mktemp("files"), []
    for kind, ending in ENDINGS.items():
        folder = root / kind
        folder.mkdir()
        for name in names:
            (folder / f"{name}.{ending}").touch()
        about = {"kind": kind, "path": str(folder)}
        if elsewhere != "nowhere":
            test = folder / f"{min(names)}.{ending}" if elsewhere == "a file" else root / f"{kind}-test"
            (root / f"{kind}-test").mkdir()
            (root / f"{kind}-test" / f"{max(names)}.{ending}").touch()
            about["test_path"] = str(test)
        source = open_source(make_config({"data": {"source": about}}).data)
        try:
            used = {split: {path.stem for path in source.split_files(split)} for split in ("train", "test")}
        except ConfigError as error:
            outcomes.append("refused")
            assert "may be training data or test data, by name" in str(error)
            continue
        counts = [count for split in used for count, _ in source.unused_files(split).counts.values()]
        total = len(names) + (elsewhere == "a folder")
        assert sum(map(len, used.values())) + sum(counts) == total, (kind, used)
        assert elsewhere == "a folder" or not used["train"] & used["test"]
        outcomes.append(str(sorted(map(sorted, used.values()))))
    assert outcomes == outcomes[:1] * len(ENDINGS)
    shutil.rmtree(root)
