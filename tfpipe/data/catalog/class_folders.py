"""Class folders: images in folders that are named by their class, ROOT/CLASS/*.jpg or ROOT/train/CLASS/*.jpg."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tfpipe.data.catalog.splits import TESTS, listing, splits_in, whole_split
from tfpipe.errors import ConfigError
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

# Formats that are decoded; a file is read as what it is, whatever its name.
SUFFIXES = (".jpeg", ".jpg", ".png", ".gif", ".bmp", ".webp")
# Listing folders waits for the file system, not for the CPU.
SCAN_THREADS = 16


def find_splits(root: Path) -> dict[str, Path]:
    """Returns the folder of each split: "train", and the folders of test data in `root` by their names.

    Folders are split by their names (splits.py), if they hold folders: those of test data beside one of training data
    may hold images alone. A name that says nothing else comes first, so that train_old beside train is no split; a name
    that does, such as seg_train, counts only if there are training and test data. Without a folder of training data,
    as in a tree whose classes are train, bus and car, all of `root` but folders of test data is "train".

    Raises ConfigError if several folders may be the training data, and OSError.
    """
    said = {entry.name: splits_in(entry.name) for entry in os.scandir(root) if entry.name[0] != "." and entry.is_dir()}
    named = {name: next(iter(splits)) for name, splits in sorted(said.items()) if len(splits) == 1}
    nested = {name for name in named if any(entry.is_dir() for entry in os.scandir(root / name))}
    trains = [name for name in nested if whole_split(name) == "train"]
    if not trains and any(named[name] != "train" for name in nested):
        trains = [name for name in nested if named[name] == "train"]
    if len(trains) > 1:
        raise ConfigError(
            f"{root} holds several folders of training data, by name: {listing(sorted(trains))}: name one of them in "
            "data.source.path, and the test data in data.source.test_path"
        )
    tests = [name for name in named if whole_split(name) in TESTS and (trains or name in nested)]
    if trains and not tests:
        tests = [name for name in named if named[name] in TESTS and name in nested]
    return {"train": root / trains[0] if trains else root, **{name: root / name for name in tests}}


def images_of_split(splits: dict[str, Path], split: str, show: bool = False) -> list[str]:
    """Returns the images below a folder of find_splits, without those of folders of other splits in it."""
    folder = splits[split]
    return images_below(folder, show, [other for other in splits.values() if other != folder])


def images_below(root: Path, show: bool = False, but: Iterable[Path] = ()) -> list[str]:
    """Returns the paths of all images in `root` and its folders, at any depth, sorted; follows links.

    Leaves out names that begin with a dot, and the folders `but`. Raises OSError if a folder cannot be listed.
    """
    images: list[str] = []
    left_out = set(map(str, but))
    folders, seen = [str(root)], set()
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        while folders:
            listings = progress(pool.map(_list, folders), len(folders), f"listing {root.name}", "folder", show)
            # A link to a folder above would lead round in a circle.
            new = [found for found in listings if found.identity not in seen]
            seen |= {found.identity for found in new}
            images += [image for found in new for image in found.images]
            folders = [folder for found in new for folder in found.folders if folder not in left_out]
    return sorted(images)


def has_image(root: Path) -> bool:
    """Returns whether there is an image in `root` or its folders; lists only as many as that takes. Raises OSError."""
    folders, seen = [str(root)], set()
    while folders:
        found = _list(folders.pop())
        if found.images:
            return True
        if found.identity not in seen:
            seen.add(found.identity)
            folders += found.folders
    return False


class _Listing(NamedTuple):
    """The contents of a folder."""

    identity: tuple[int, int]  # device and inode
    images: list[str]
    folders: list[str]


@retried
def _list(folder: str) -> _Listing:
    about = os.stat(folder)
    images, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(SUFFIXES):
                images.append(entry.path)
            elif entry.is_dir():
                folders.append(entry.path)
    return _Listing((about.st_dev, about.st_ino), images, folders)
