"""Trees of ILSVRC, of Pascal VOC and of class folders are found with their splits, sorted, and refused otherwise."""

import os
from pathlib import Path

import pytest

from tests.data.catalog.test_filelist import below
from tests.support.trees import touch
from tfpipe.errors import ConfigError
from tfpipe.prepare.trees import scan


def test_class_folders_become_lists(tmp_path):
    touch(tmp_path, "train/b/2.jpg", "train/a/1.jpg", "val/a/3.jpg", "notes/4.jpg")
    found = scan(tmp_path, show=False)
    assert {split: below(tmp_path, images) for split, images in found.items()} == {
        "train": ["train/a/1.jpg", "train/b/2.jpg"],
        "val": ["val/a/3.jpg"],
    }


ILSVRC = [
    "train/n02/n02_10.JPEG",
    "train/n02/n02_2.JPEG",
    "train/n01/b.jpg",
    "train/n01/a.JPG",
    "train/n01/c.jpeg",
    "val/ILSVRC2012_val_00000002.JPEG",
    "val/ILSVRC2012_val_00000001.JPEG",
]
NO_IMAGES = ["train/n01/._a.JPEG", "train/n01/notes.txt", "train/n01/JPEG", "train/list.txt", "test/t.JPEG"]


@pytest.mark.parametrize(("inside", "given_root"), [("", ""), ("ILSVRC", ""), ("ILSVRC", "ILSVRC")])
def test_an_ilsvrc_tree_is_found_at_its_root_or_the_parents(tmp_path, inside, given_root):
    base = tmp_path / inside / "Data/CLS-LOC"
    touch(base, *ILSVRC, *NO_IMAGES)
    found = scan(tmp_path / given_root, show=False)
    assert list(found) == ["train", "val"]
    assert below(base, found["train"]) == sorted(ILSVRC[:5])
    assert below(base, found["val"]) == sorted(ILSVRC[5:])
    assert all(os.path.isabs(image) and os.path.exists(image) for images in found.values() for image in images)


def test_a_val_folder_may_be_flat_or_in_folders_or_missing(tmp_path):
    base = tmp_path / "Data/CLS-LOC"
    touch(base, "train/n01/a.JPEG")
    assert list(scan(tmp_path, show=False)) == ["train"]
    touch(base, "val/n01/v2.JPEG", "val/n00/v3.JPEG", "val/v1.JPEG")
    assert below(base, scan(tmp_path, show=False)["val"]) == ["val/n00/v3.JPEG", "val/n01/v2.JPEG", "val/v1.JPEG"]


def test_paths_are_absolute_from_a_relative_root_and_through_links(tmp_path, monkeypatch):
    touch(tmp_path, "store/n01/a.JPEG", "tree/Data/CLS-LOC/train/n00/z.JPEG")
    (tmp_path / "tree/Data/CLS-LOC/train/n01").symlink_to(tmp_path / "store/n01")
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "tree/Data/CLS-LOC/train"
    assert scan("tree", show=False)["train"] == [str(base / "n00/z.JPEG"), str(base / "n01/a.JPEG")]


@pytest.mark.parametrize("names", [["val/v.JPEG"], ["train/n01/notes.txt"], ["train/n01/.hidden.JPEG"]])
def test_a_tree_without_training_images_is_refused(tmp_path, names):
    touch(tmp_path / "Data/CLS-LOC", *names)
    with pytest.raises(ConfigError, match=r"no image below .*Data/CLS-LOC/train"):
        scan(tmp_path, show=False)


@pytest.mark.parametrize("names", [[], ["JPEGImages/a.jpg"], ["ImageSets/Main/train.txt"], ["Data/train/a.JPEG"]])
def test_a_tree_of_neither_kind_is_refused(tmp_path, names):
    touch(tmp_path, *names)
    with pytest.raises(ConfigError, match=r"neither an ILSVRC tree .* nor a Pascal VOC one"):
        scan(tmp_path, show=False)
    with pytest.raises(ConfigError, match="neither"):
        scan(tmp_path / "nowhere", show=False)


def voc(root: Path, **lists: str) -> None:
    touch(root, "JPEGImages/2007_1.jpg", "JPEGImages/2007_2.jpg", "JPEGImages/2008_1.jpeg", "JPEGImages/x.png")
    (root / "ImageSets/Main").mkdir(parents=True, exist_ok=True)
    for name, text in lists.items():
        (root / f"ImageSets/Main/{name}.txt").write_text(text)


def test_a_voc_tree_has_the_splits_of_its_lists(tmp_path):
    voc(tmp_path, val="2008_1\n2007_1\n2007_1\n", trainval="2007_2\r\n\n2007_1  1\n", aeroplane_train="nothing -1\n")
    found = scan(tmp_path, show=False)
    assert {split: below(tmp_path / "JPEGImages", images) for split, images in found.items()} == {
        "val": ["2007_1.jpg", "2008_1.jpeg"],
        "trainval": ["2007_1.jpg", "2007_2.jpg"],
    }


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    voc(tmp_path, val="\ufeff2008_1\n")
    assert scan(tmp_path, show=False) == {"val": [f"{tmp_path}/JPEGImages/2008_1.jpeg"]}


def test_a_voc_list_that_names_a_missing_image_is_refused(tmp_path):
    voc(tmp_path, train="2007_1\n2009_8\n2009_7\n")
    with pytest.raises(ConfigError, match=r"train\.txt names 2 images not in JPEGImages, e\.g\. 2009_7"):
        scan(tmp_path, show=False)


def test_a_voc_tree_without_lists_is_refused(tmp_path):
    voc(tmp_path, cat_train="2007_1 1\n")
    with pytest.raises(ConfigError, match=r"no list in .*ImageSets/Main"):
        scan(tmp_path, show=False)
