"""Class folders are found at any depth, with their splits, and links do not lead round in circles."""

from pathlib import Path

import pytest

from tfpipe.data.catalog.class_folders import find_splits, images_below


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
    ("images", "splits"),
    [
        (["train/a/1.jpg", "val/a/1.jpg", "test/a/1.jpg", "other/a/1.jpg"], ["train", "val", "test"]),
        (["train/a/1.jpg", "validation/1.jpg"], ["train", "validation"]),
        (["a/1.jpg", "val/1.jpg"], [""]),
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
