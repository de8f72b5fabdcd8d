"""Class folders are found at any depth, with their splits, and links do not lead round in circles."""

from pathlib import Path

import pytest

from tfpipe.data.catalog.class_folders import (
    BySplit,
    find_splits,
    images_below,
    images_of_split,
    splits_in,
    whole_split,
)
from tfpipe.errors import ConfigError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_images_are_found_at_any_depth_sorted(tmp_path: Path) -> None:
    images = ["a/1.jpg", "a/10.JPEG", "a/b/c/x.png", "z/0.webp"]
    touch(tmp_path, *images, "a/notes.txt", "a/.hidden.jpg", ".git/1.jpg", "z/Thumbs.db")
    assert images_below(tmp_path) == sorted(f"{tmp_path}/{name}" for name in images)


def test_a_link_to_a_folder_above_is_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "root/a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "root/a/up").symlink_to(tmp_path / "root")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    assert images_below(tmp_path / "root") == [f"{tmp_path}/root/a/1.jpg", f"{tmp_path}/root/b/2.jpg"]


@pytest.mark.parametrize(
    ("train", "test"),
    [("training", "validation"), ("Train", "Val"), ("TRAIN", "TEST"), ("seg_train", "seg_test"), ("train_set", "test")],
)
def test_splits_are_named_by_words_in_any_case(tmp_path: Path, train: str, test: str) -> None:
    touch(tmp_path, f"{train}/a/1.jpg", f"{test}/a/1.jpg", "docs/1.jpg")
    assert find_splits(tmp_path) == {"train": tmp_path / train, test: tmp_path / test}


def test_training_data_is_all_but_folders_of_test_data(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "test/a/1.jpg", "val/a/1.jpg")
    splits = find_splits(tmp_path)
    assert images_of_split(splits, "train") == [f"{tmp_path}/a/1.jpg", f"{tmp_path}/b/1.jpg"]
    assert images_of_split(splits, "val") == [f"{tmp_path}/val/a/1.jpg"]


def test_several_folders_of_training_data_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "Training/a/1.jpg", "val/a/1.jpg")
    with pytest.raises(ConfigError, match=r"by name: Training, train: name one of them in data\.source\.path"):
        find_splits(tmp_path)


@pytest.mark.parametrize(
    ("images", "splits"),
    [
        (["train/a/1.jpg", "val/a/1.jpg", "test/a/1.jpg", "other/a/1.jpg"], ["train", "val", "test"]),
        (["train/a/1.jpg", "validation/1.jpg"], ["train", "validation"]),
        (["a/1.jpg", "val/1.jpg"], [""]),
        (["train/a/1.jpg", "train_old/a/1.jpg"], ["train"]),
        (["steam_train/red/1.jpg", "bus/red/1.jpg"], [""]),  # classes
        (["a/1.jpg", "val/a/1.jpg"], ["", "val"]),
        (["train/1.jpg", "bus/1.jpg"], [""]),  # classes
    ],
    ids=str,
)
def test_splits_are_folders_beside_a_folder_train_of_folders(
    tmp_path: Path, images: list[str], splits: list[str]
) -> None:
    touch(tmp_path, *images)
    folders = find_splits(tmp_path)
    assert folders == {name or "train": tmp_path / name for name in splits}


# ---- splits by the words in names ----

TRAIN = ["imagenet-train-000000.tar", "train.csv", "TRAIN_0.tar", "Training-00.parquet", "instances_train2017.json",
         "trainset.csv", "TrainData.csv", "train-00000-of-01024", "seg_train"]  # fmt: skip
VAL = ["imagenet-val-000000.tar", "valid.csv", "Val.parquet", "VALIDATION-1.tar", "validation-00000-of-00128",
       "instances_val2017.json", "imagenet1k-validation-00.tar", "birdsVal.csv"]  # fmt: skip
TEST = ["test.parquet", "Testing_1.tar", "my.test.csv", "test-set.csv"]
UNSAID = ["labels.parquet", "valley.csv", "contest.tar", "trains.tar", "trainval.csv", "latest.csv", "000.tar"]


@pytest.mark.parametrize(("names", "split"), [(TRAIN, {"train"}), (VAL, {"val"}), (TEST, {"test"}), (UNSAID, set())])
def test_a_name_says_its_split_by_a_word(names: list[str], split: set[str]) -> None:
    assert {name: splits_in(name) for name in names} == dict.fromkeys(names, split)


def test_a_whole_name_says_nothing_else() -> None:
    names = {"train": "train", "Training": "train", "val2017": "val", "test_set": "test", "Valid": "val"}
    assert {name: whole_split(name) for name in names} == names
    assert not any(map(whole_split, ["seg_train", "train_old", "bus", "2017", "train_test"]))


@pytest.mark.parametrize(
    ("names", "train", "test", "unused"),
    [
        ([*TRAIN, *VAL, *TEST, *UNSAID], TRAIN, VAL, [*TEST, *UNSAID]),
        ([*TRAIN, *TEST], TRAIN, TEST, []),
        ([*UNSAID, *TEST], UNSAID, TEST, []),
        (UNSAID, UNSAID, [], []),
        (VAL, [], VAL, []),
        ([], [], [], []),
    ],
)
def test_names_of_a_folder_are_split(names: list[str], train: list[str], test: list[str], unused: list[str]) -> None:
    found = BySplit.of(names)
    assert (found.training(False), found.testing(False)) == (sorted(train), sorted(test))
    assert sorted(found.unused()) == sorted(unused)


def test_a_folder_of_its_own_is_used_whatever_its_names_say() -> None:
    for names in (VAL, UNSAID, TRAIN, ["train-or-test.csv"]):
        assert BySplit.of(names).training(True) == BySplit.of(names).testing(True) == sorted(names)
    both = BySplit.of([*TRAIN, *VAL, *UNSAID])
    assert (both.training(True), both.testing(True)) == (sorted(TRAIN), sorted(VAL))


def test_names_of_two_splits_are_refused_with_the_keys_that_decide() -> None:
    found = BySplit.of(["a-train-test-0.csv", "a-train-val-0.csv"])
    message = r"a-train-test-0.csv, a-train-val-0.csv may be .* in data\.source\.path and data\.source\.test_path"
    for choose in (found.training, found.testing):
        with pytest.raises(ConfigError, match=message):
            choose(False)
