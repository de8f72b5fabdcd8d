"""Class folders, ROOT/CLASS/*.jpg or ROOT/train/CLASS/*.jpg, and splits by words in names, one rule for all sources.

train and training are training data; val, valid and validation, else test and testing, are test data. A name's words
are its letters between other characters, and between small and capital ones, in any case: imagenet-train-000000.tar,
instances_val2017.json, TestData.csv. Folders of splits may be at any depth, and classes are the first level below them,
as in torchvision, Keras and timm.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

# Formats that are decoded; a file is read as what it is, whatever its name.
SUFFIXES = (".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".jp2",
            ".ppm", ".pgm", ".heic", ".heif")  # fmt: skip
# Files and folders of operating systems, file servers and archivers, in small letters.
SYSTEM = ("@eadir", "lost+found", "$recycle.bin", "system volume information", "thumbnails", "thumbs.db", "desktop.ini",
          "__macosx")  # fmt: skip
# Ends of the names of tfpipe's own files and folders: what it stores next to data.
OWN = (".catalog", ".index.parquet", ".entries")
# Listing folders waits for the file system, not for the CPU.
SCAN_THREADS = 16
# Splits of test data, the preferred one first.
TESTS = ("val", "test")
LETTERS = re.compile(r"[A-Za-z]+")
CAMEL_CASE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
WORD = re.compile(r"(?:(train)(?:ing)?|(val)(?:id(?:ation)?)?|(test)(?:ing)?)(?:sets?|data|split)?")
# Names of examples in a message.
EXAMPLES = 3


def splits_in(name: str) -> set[str]:
    """Returns the splits that words of a name say: some of "train", "val" and "test"."""
    words = {word.lower() for pattern in (LETTERS, CAMEL_CASE) for word in pattern.findall(name)}
    return {next(filter(None, match.groups())) for word in words if (match := WORD.fullmatch(word))}


def whole_split(name: str) -> str | None:
    """Returns the split of a name that says nothing else: Training, val2017, test_set."""
    match = WORD.fullmatch("".join(LETTERS.findall(name)).lower())
    return next(filter(None, match.groups())) if match else None


class BySplit(NamedTuple):
    """Names, sorted, by what their words say of a split."""

    train: list[str]
    val: list[str]
    test: list[str]
    unsaid: list[str]  # no split
    both: list[str]  # several splits

    @classmethod
    def of(cls, names: Iterable[str]) -> "BySplit":
        """Sorts names by their split."""
        result = cls([], [], [], [], [])
        for name in sorted(names):
            splits = splits_in(name)
            result[cls._fields.index(next(iter(splits))) if len(splits) == 1 else 4 if splits else 3].append(name)
        return result

    def training(self, apart: bool) -> list[str]:
        """Returns the names of training data, without those of test data; `apart` if test data is elsewhere."""
        self._check(apart)
        named = self.train or self.unsaid
        return named if named or not apart else self.both or [*self.val, *self.test]

    def testing(self, apart: bool) -> list[str]:
        """Returns the names of test data; `apart` if they are of a place that holds nothing else."""
        self._check(apart)
        named = self.val or self.test
        return named if named or not apart else self.unsaid or self.both or self.train

    def unused(self) -> list[str]:
        """Returns the names that are of neither split, though they lie next to those that are."""
        return [*(self.test if self.val else []), *(self.unsaid if self.train else [])]

    def _check(self, apart: bool) -> None:
        if self.both and not apart:
            raise ConfigError(
                f"data.source.path: {listing(self.both)} may be training data or test data, by name: put each into a "
                "folder of its own, and name these in data.source.path and data.source.test_path"
            )


def listing(names: Sequence[str]) -> str:
    """Returns the first names and the number of the others, for a message."""
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"


def why_left_out(name: str, *, is_folder: bool) -> str:
    """Returns why a file or folder of this name is no image, and no folder of images; "" if it may be one."""
    if name.startswith("."):
        return "names that begin with a dot"
    if name.lower() in SYSTEM:
        return "names of the operating system"
    if name.lower().endswith(OWN):
        return "files of tfpipe's own"
    if is_folder or name.lower().endswith(SUFFIXES):
        return ""
    return os.path.splitext(name)[1].lower() or "names without an ending"


class Place(NamedTuple):
    """A folder of images, by the split that the name of a folder above them says."""

    split: str | None  # "train", "val" or "test"; None: no name says one
    root: str  # path of the folder whose name says it; "" if none does
    names: tuple[str, ...]  # names of the folders below that, or of all


def places_of(folders: Sequence[str]) -> list[Place]:
    """Returns the split of each folder that holds images, a path with a slash at its end, relative to the data's root.

    A folder whose name says nothing but a split counts for all below it if it holds folders, as class folders are, or
    lies beside one of training data that does: Data/train/CLASS/ and Data/val/. So a class may be called train. A name
    that says more, such as seg_train, counts only if there are folders of training and of test data. Without a folder
    of training data, training data are the folders of no split. Raises ConfigError if several folders may be it.
    """
    paths = [tuple(folder.split("/")[:-1]) for folder in folders]
    whole, words = ([_place(path, split_of) for path in paths] for split_of in (whole_split, _only_split))
    splits = {place.root: place.split for place in whole if place.split}
    roots = {place.root: place.split for place in whole if place.names and place.split}
    more = {place.root: place.split for place in words if place.names and place.split}
    # Folders train and val of images alone are splits too, without classes; those train and bus are classes.
    if "train" in roots.values() or (not roots and {"train"} < set(splits.values())):
        roots = splits
    if "train" not in roots.values():
        roots |= more if {"train"} < set(more.values()) else {}
    elif set(roots.values()) == {"train"}:
        roots |= {root: split for root, split in more.items() if split in TESTS}
    trains = sorted(root for root, split in roots.items() if split == "train")
    if len(trains) > 1:
        raise ConfigError(
            f"several folders may be the training data, by name: {listing(trains)}: name one of them in "
            "data.source.path, and the test data in data.source.test_path"
        )
    return [
        next((place for place in both if place.root in roots), Place(None, "", path))
        for *both, path in zip(whole, words, paths, strict=True)
    ]


def _place(path: tuple[str, ...], split_of: Callable[[str], str | None]) -> Place:
    """Returns the place of a folder by the first of the names in its path that `split_of` knows."""
    at = next((depth for depth, name in enumerate(path) if split_of(name)), None)
    if at is None:
        return Place(None, "", path)
    return Place(split_of(path[at]), "/".join(path[: at + 1]), path[at + 1 :])


def _only_split(name: str) -> str | None:
    """Returns the split that words of a name say, None if they say none or several."""
    splits = splits_in(name)
    return next(iter(splits)) if len(splits) == 1 else None


def test_split(places: Iterable[Place]) -> str | None:
    """Returns the split that is used as test data: val, else test; None if no name says one."""
    splits = {place.split for place in places}
    return next((name for name in TESTS if name in splits), None)


def of_split(places: Sequence[Place], split: str, *, apart: bool) -> list[bool]:
    """Returns which places are of "train" or "test"; `apart` if test data lies elsewhere, or these are all of it.

    Test data are those of val, else of test. Raises ConfigError if several folders may be it.
    """
    if split == "train":
        wanted = "train" if any(place.split == "train" for place in places) else None
        return [place.split == wanted for place in places]
    test = test_split(places)
    roots = sorted({place.root for place in places if place.split == test}) if test else []
    if len(roots) > 1:
        raise ConfigError(
            f"several folders of test data, by name: {listing(roots)}: name one of them in data.source.test_path"
        )
    return [place.split == test if test else apart for place in places]


def class_level(folders: Sequence[tuple[str, ...]], level: int | None) -> int:
    """Returns the index of the class in the names of the folders below a split's, given those of training images.

    `level` is `data.class_level`. None stands for the first, 0, or if all images are below one folder, that at which
    they part, if they lie there and no deeper. Raises ConfigError if they do not.
    """
    if level is not None:
        return level - 1 if level > 0 else level
    paths = [names for names in folders if names]
    shared = len(list(takewhile(lambda names: len({*names}) == 1, zip(*paths, strict=False))))
    at = shared if any(len(names) > shared for names in paths) else max(shared - 1, 0)
    if at and any(len(names) > at + 1 for names in paths):
        raise ConfigError(
            f"all images are below the folder {'/'.join(paths[0][:at])}, and in folders of several levels: set "
            f"data.class_level to that of the classes: {at + 1} for {max(paths, key=len)[at]}, -1 for each image's own"
        )
    return at


def images_below(root: Path, ledger: Ledger, *, show: bool = False, but: Iterable[str] = ()) -> list[str]:
    """Returns the paths of all images in `root` and its folders, at any depth, sorted; follows links.

    Counts in `ledger` what is no image, but for the folders `but`. Raises OSError if a folder cannot be listed.
    """
    images: list[str] = []
    others = set(but)
    folders, seen = [str(root)], set()
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        while folders:
            listings = list(progress(pool.map(_list, folders), len(folders), f"listing {root.name}", "folder", show))
            new = []
            for folder, contents in zip(folders, listings, strict=True):
                # A link to a folder above would lead round in a circle.
                if contents.identity in seen:
                    ledger.add("links to folders that are listed already", folder)
                    continue
                seen.add(contents.identity)
                ledger.update(contents.ledger)
                images += contents.images
                new += contents.folders
                if not contents.images and not contents.folders:
                    ledger.add("folders without an image", folder)
            folders = [folder for folder in new if folder not in others]
    return sorted(images)


def has_image(root: Path) -> bool:
    """Returns whether there is an image in `root` or its folders; lists only as many as that takes. Raises OSError."""
    folders, seen = [str(root)], set()
    while folders:
        contents = _list(folders.pop())
        if contents.images:
            return True
        if contents.identity not in seen:
            seen.add(contents.identity)
            folders += contents.folders
    return False


class _Listing(NamedTuple):
    """The contents of a folder."""

    identity: tuple[int, int]  # device and inode
    images: list[str]
    folders: list[str]
    ledger: Ledger


@retried
def _list(folder: str) -> _Listing:
    status = os.stat(folder)
    contents = _Listing((status.st_dev, status.st_ino), [], [], Ledger())
    with os.scandir(folder) as entries:
        for entry in entries:
            # A link whose name is an image's is none to a folder, so that a million links cost no call each.
            is_image = entry.name.lower().endswith(SUFFIXES)
            is_folder = entry.is_dir(follow_symlinks=not is_image)
            reason = why_left_out(entry.name, is_folder=is_folder)
            if reason:
                contents.ledger.add(reason, entry.path)
            else:
                (contents.folders if is_folder else contents.images).append(entry.path)
    return contents
