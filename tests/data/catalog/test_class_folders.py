"""Class folders are found at any depth, with their splits, and links do not lead round in circles."""

from pathlib import Path

import pytest

from tfpipe.data.catalog.class_folders import find_splits, images_below, images_of_split
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
