"""Class folders: images in folders that are named by their class, ROOT/CLASS/*.jpg or ROOT/train/CLASS/*.jpg."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

# Formats that are decoded; a file is read as what it is, whatever its name.
SUFFIXES = (".jpeg", ".jpg", ".png", ".gif", ".bmp", ".webp")
# Folders of test data beside a folder "train", the preferred one first.
TESTS = ("val", "valid", "validation", "test")
# Listing folders waits for the file system, not for the CPU.
SCAN_THREADS = 16


def find_splits(root: Path) -> dict[str, Path]:
    """Returns the folder of each split: "train", and those of TESTS that `root` holds.

    Without a subfolder train of folders, as in a tree whose classes are train, bus and car, all of `root` is "train".
    """
    train = root / "train"
    if not train.is_dir() or not any(entry.is_dir() for entry in os.scandir(train)):
        return {"train": root}
    return {"train": train, **{name: root / name for name in TESTS if (root / name).is_dir()}}


def images_below(root: Path, show: bool = False) -> list[str]:
    """Returns the paths of all images in `root` and its folders, at any depth, sorted; follows links.

    Leaves out names that begin with a dot. Raises OSError if a folder cannot be listed.
    """
    images: list[str] = []
    folders, seen = [str(root)], set()
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        while folders:
            listings = progress(pool.map(_list, folders), len(folders), f"listing {root.name}", "folder", show)
            # A link to a folder above would lead round in a circle.
            new = [listing for listing in listings if listing.identity not in seen]
            seen |= {listing.identity for listing in new}
            images += [image for listing in new for image in listing.images]
            folders = [folder for listing in new for folder in listing.folders]
    return sorted(images)


def has_image(root: Path) -> bool:
    """Returns whether there is an image in `root` or its folders; lists only as many as that takes. Raises OSError."""
    folders, seen = [str(root)], set()
    while folders:
        listing = _list(folders.pop())
        if listing.images:
            return True
        if listing.identity not in seen:
            seen.add(listing.identity)
            folders += listing.folders
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
