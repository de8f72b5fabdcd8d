"""Class folders, ROOT/CLASS/*.jpg or ROOT/train/CLASS/*.jpg, and splits by words in names, one rule for all sources.

train and training are training data; val, valid and validation, else test and testing, are test data. A name's words
are its letters between other characters, and between small and capital ones, in any case: imagenet-train-000000.tar,
instances_val2017.json, TestData.csv.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from tfpipe.errors import ConfigError
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

# Formats that are decoded; a file is read as what it is, whatever its name.
SUFFIXES = (".jpeg", ".jpg", ".png", ".gif", ".bmp", ".webp")
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


class Folder(Protocol):
    """A folder, by its path or its URL."""

    def __truediv__(self, name: str, /) -> Any: ...


AnyFolder = TypeVar("AnyFolder", bound=Folder)


def find_splits(root: Path) -> dict[str, Path]:
    """Returns the folder of each split, as splits_below does; raises OSError too."""
    return splits_below(root, lambda folder: [entry.name for entry in os.scandir(folder) if entry.is_dir()])


def splits_below(root: AnyFolder, subfolders: Callable[[AnyFolder], list[str]]) -> dict[str, AnyFolder]:
    """Returns the folder of each split: "train", and the folders of test data in `root` by their names.

    Folders are split by their names, if they hold folders: those of test data next to one of training data may
    hold images alone. A name that says nothing else comes first, so that train_old next to train is no split; a name
    that does, such as seg_train, counts only if there are training and test data. Without a folder of training data,
    as in a tree whose classes are train, bus and car, all of `root` but folders of test data is "train".

    `subfolders` returns the names of the folders in a folder. Raises ConfigError if several folders may be the training
    data, and what `subfolders` raises.
    """
    said = {name: splits_in(name) for name in subfolders(root) if name[0] != "."}
    named = {name: next(iter(splits)) for name, splits in sorted(said.items()) if len(splits) == 1}
    nested = {name for name in named if subfolders(root / name)}
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


def split_of_folders(folders: Sequence[str]) -> list[str | None]:
    """Returns the split of each of the folders (paths with a slash at their ends) that images lie in; None: no split.

    The rule is that of splits_below, at any depth: a folder's name that says nothing but a split counts for all below
    it, if it holds folders, or there is a folder of training data that does: Data/train/CLASS/ and Data/val/.
    """
    said: list[str | None] = []
    nested: list[bool] = []
    for folder in folders:
        names = folder.split("/")[:-1]
        at = next((depth for depth, name in enumerate(names) if whole_split(name)), None)
        said.append(None if at is None else whole_split(names[at]))
        nested.append(at is not None and at < len(names) - 1)
    has_train = ("train", True) in zip(said, nested, strict=True)
    return [
        split if inner or (has_train and split in TESTS) else None for split, inner in zip(said, nested, strict=True)
    ]


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
            new = [contents for contents in listings if contents.identity not in seen]
            seen |= {contents.identity for contents in new}
            images += [image for contents in new for image in contents.images]
            folders = [folder for contents in new for folder in contents.folders if folder not in left_out]
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


@retried
def _list(folder: str) -> _Listing:
    status = os.stat(folder)
    images, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(SUFFIXES):
                images.append(entry.path)
            elif entry.is_dir():
                folders.append(entry.path)
    return _Listing((status.st_dev, status.st_ino), images, folders)
