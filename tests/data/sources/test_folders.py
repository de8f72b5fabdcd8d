"""Class folders as a source: the same samples as their filelist, splits, and errors by name."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.support.batches import crops
from tests.support.images import encoded, picture
from tests.support.sample import TINY
from tests.support.trees import touch, write_below
from tfpipe import World, load_config
from tfpipe.cli import main
from tfpipe.config import Config
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.errors import ConfigError

CLASSES = ("cat", "fox", "dog")
SMALL = {"crop_image_size": [16, 16], "batch_size": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 training and 4 test images of each of three classes; one is a PNG."""
    root = tmp_path_factory.mktemp("folders")
    for split, count in (("train", 12), ("val", 4)):
        for place, name in enumerate(CLASSES):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{number}.jpg").write_bytes(encoded(picture(24, 32, 100 * place + number)))
    (root / "train/cat/0.jpg").unlink()
    picture(24, 32, 0).save(root / "train/cat/00.png")
    return root


def config_of(folder: Path, data: dict, name: str = "c.json", **sections: object) -> Path:
    (folder / name).write_text(json.dumps({"data": {**SMALL, **data}, "model": TINY, **sections}))
    return folder / name


def folders(root: Path, **source: object) -> dict:
    return {"source": {"kind": "folders", "path": str(root), **source}}


def config_with(tmp_path: Path, data: dict) -> Config:
    return load_config(config_of(tmp_path, data))


def test_they_give_what_their_filelists_give(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filelist", str(root), "--out", str(tmp_path)]) == 0
    assert "train from the lists with --set data.annotations=none" in capsys.readouterr().out
    lists = {"train_filelist": "train.txt", "test_filelist": "val.txt", "annotations": "none"}
    listed, direct = config_with(tmp_path, lists), config_with(tmp_path, folders(root))
    for split, steps in (("train", 20), ("test", -1)):
        expected = crops(listed, split, steps=steps)
        assert crops(direct, split, steps=steps) == expected
        assert len({place[0] for place in expected}) == (80 if split == "train" else 12)
    loaded = load_split(direct.data, "train", World())
    # So a run that began on one resumes on the other.
    then = data_contract(load_split(listed.data, "train", World()))
    assert contract_differences(then, data_contract(loaded)) == []
    assert loaded.catalog.classes == ("cat", "dog", "fox")
    assert Counter(loaded.catalog.labels.tolist()) == {0: 12, 1: 12, 2: 12}


def test_classes_choose_class_folders_and_the_images_of_others_are_counted(tmp_path: Path, root: Path) -> None:
    for data in (folders(root), {"train_filelist": str(root / "train"), "test_filelist": str(root / "val")}):
        config = config_with(tmp_path, {**data, "classes": ["fox", "cat"]})
        for split, folder, count in (("train", "train", 12), ("test", "val", 4)):
            catalog = load_split(config.data, split, World()).catalog
            assert Counter(catalog.labels.tolist()) == {0: count, 1: count} and catalog.classes == ("fox", "cat")
            assert {os.path.dirname(path) for path in catalog.paths} == {
                f"{root}/{folder}/{name}" for name in ("cat", "fox")
            }
            left_out = {"train": 16, "test": 0} if "source" in data else {"train": 12, "test": 4}
            assert sum(number for number, _ in catalog.ledger.counts.values()) == left_out[split]
    config = config_with(tmp_path, {**folders(root), "classes": ["cat", "Fox", "dog"]})
    with pytest.raises(ConfigError, match=r"names Fox, without a folder of training .* the class folders fox: correct"):
        load_split(config.data, "train", World())
    # A class without an image is no mistake if no other folder may be meant.
    config = config_with(tmp_path, {**folders(root), "classes": [*CLASSES, "owl"]})
    assert len(load_split(config.data, "train", World()).catalog) == 36


def test_test_data_may_be_elsewhere(tmp_path: Path, root: Path) -> None:
    config = config_with(tmp_path, folders(root / "train", test_path=str(root / "val")))
    assert len(load_split(config.data, "train", World()).catalog) == 36
    assert len(load_split(config.data, "test", World()).catalog) == 12


def test_a_share_of_each_class_is_test_data(tmp_path: Path, root: Path) -> None:
    def split(**source: object) -> tuple[set[str], set[str]]:
        config = config_with(tmp_path, {"seed": 5, **folders(root / "train", test_share=0.25, **source)})
        train, test = (load_split(config.data, name, World()) for name in ("train", "test"))
        assert Counter(test.catalog.labels.tolist()) == {0: 3, 1: 3, 2: 3}
        assert train.catalog.classes == test.catalog.classes
        return set(train.catalog.paths), set(test.catalog.paths)

    train, test = split()
    assert not train & test and len(train | test) == 36
    assert split() == (train, test)
    assert split(test_seed=1)[1] != test


def touch_images(root: Path, counts: dict[str, int]) -> Path:
    """Makes class folders of so many images, which are listed, not read."""
    return touch(root, *(f"{name}/{number}.jpg" for name, count in counts.items() for number in range(count)))


def test_a_share_leaves_training_an_image_of_each_class(tmp_path: Path) -> None:
    source = folders(touch_images(tmp_path / "root", {"cat": 1, "dog": 2, "fox": 10}), test_share=0.99)
    splits = (load_split(config_with(tmp_path, source).data, name, World()) for name in ("train", "test"))
    assert [Counter(split.catalog.labels.tolist()) for split in splits] == [{0: 1, 1: 1, 2: 1}, {1: 1, 2: 9}]


def test_test_data_within_the_training_folder_is_no_training_data(tmp_path: Path) -> None:
    root = touch_images(tmp_path / "root", {"cat": 3, "dog": 3, "held-out/cat": 2, "held-out/dog": 2})
    config = config_with(tmp_path, folders(root, test_path=str(root / "held-out")))
    train, test = (load_split(config.data, name, World()).catalog for name in ("train", "test"))
    assert (len(train), len(test)) == (6, 4) and not set(train.paths) & set(test.paths)


@pytest.mark.parametrize(("train", "test"), [("training", "validation"), ("Train", "Val"), ("", "test")])
def test_splits_are_folders_by_the_words_in_their_names(tmp_path: Path, root: Path, train: str, test: str) -> None:
    for name, split in ((train, "train"), (test, "val")):
        shutil.copytree(root / split, tmp_path / "data" / name, dirs_exist_ok=True)
    for source in ({}, {"test_path": str(tmp_path / "data" / test)}):
        config = config_with(tmp_path, folders(tmp_path / "data", **source))
        assert open_source(config.data).has_test()
        assert [len(load_split(config.data, split, World()).catalog) for split in ("train", "test")] == [36, 12]
    listed = config_with(tmp_path, {"train_filelist": str(tmp_path / "data"), "annotations": "none"})
    with pytest.raises(ConfigError, match=f"holds training and test data, .*: name the folder of one .*data/{test}"):
        load_split(listed.data, "train", World())
    shutil.copytree(root / "val", tmp_path / "data/valid")
    shutil.copytree(root / "val", tmp_path / "data/val")
    config = config_with(tmp_path, folders(tmp_path / "data"))
    with pytest.raises(ConfigError, match=r"several folders may be the test data, .*val.* in data\.source\.test_path"):
        load_split(config.data, "test", World())


def test_test_data_may_be_missing(tmp_path: Path, root: Path) -> None:
    config = config_with(tmp_path, folders(root / "train"))
    assert not open_source(config.data).has_test()
    with pytest.raises(ConfigError, match=r"no test data: .* set data\.source\.test_path, or data\.source\.test_share"):
        load_split(config.data, "test", World())


@pytest.mark.parametrize(
    ("images", "data", "problem"),
    [
        ([], {}, r"no image below .*; expected class folders: .*/CLASS/\*\.jpg"),
        (["a/1.jpg", "a/2.jpg"], {}, "are of one class, a, which is their folder; expected class folders"),
        (["a/1.jpg", "b/1.jpg"], {"label_source": "object", "classes": ["a"]}, "needs XMLs, and class folders have"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, images: list[str], data: dict, problem: str) -> None:
    (tmp_path / "root").mkdir()
    write_below(tmp_path / "root", dict.fromkeys(images, encoded(picture(8, 8))))
    config = config_with(tmp_path, {**folders(tmp_path / "root"), **data})
    with pytest.raises(ConfigError, match=problem):
        load_split(config.data, "train", World())


def test_commands_name_a_bad_image_or_say_what_they_need(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a", "b")):
        (tmp_path / "bad" / name).mkdir(parents=True)
        (tmp_path / "bad" / name / "1.jpg").write_bytes(encoded(picture(24, 32))[: 700 if number else None])
    config = str(config_of(tmp_path, folders(tmp_path / "bad")))
    assert main(["check", "-c", config]) == 1
    assert "b/1.jpg: Premature end of JPEG file" in capsys.readouterr().out
    for command, advice in (
        (["index"], "need no index"),
        (["stage", "--out", str(tmp_path / "out")], "make these with tfpipe filelist"),
    ):
        assert main([command[0], "-c", config, *command[1:]]) == 2
        assert advice in capsys.readouterr().err


@pytest.mark.parametrize("name", [b"a/1\n2.jpg", b"a\n/1.jpg", b"a/\xff.jpg", b"\xff/1.jpg"])
@pytest.mark.parametrize("source", [{}, {"test_share": 0.5}], ids=str)
def test_a_name_never_shifts_other_names_against_their_classes(tmp_path: Path, name: bytes, source: dict) -> None:
    for path in (name, b"b/3.jpg", b"c/4.jpg", b"c/5.jpg"):
        file = os.path.join(os.fsencode(tmp_path), b"root", path)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        Path(os.fsdecode(file)).write_bytes(encoded(picture(8, 8)))
    for data in (folders(tmp_path / "root", **source), {"train_filelist": str(tmp_path / "root")}):
        with pytest.raises(
            ConfigError, match=rf"the name '{tmp_path}/root/.*' holds a line end or is not UTF-8: rename"
        ):
            load_split(config_with(tmp_path, data).data, "train", World())
