"""Lists class folders, ROOT/CLASS/*.jpg or ROOT/train/CLASS/*.jpg, and chooses the images of a split by splits.py."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.data.annotations.objects import composed_form
from tfpipe.data.catalog.paths import FileList, pack_lines
from tfpipe.data.catalog.splits import SPLITS, TESTS, FolderRule, class_level, find_splits, listing, splits_of, uses_of
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
NO_IMAGE = "no image in {0} or its folders; expected {0.name}/CLASS/*.jpg, a folder a class"
# Images of one split, whose labels are elsewhere.
LABELLED = FolderRule(labelled=SPLITS, role="train")

Identity = tuple[int, int]
"""Device and inode, the same by whatever path a folder is reached."""


def identity_of(folder: str | Path) -> Identity:
    """Returns the identity of a folder; raises OSError."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


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


def images_below(root: Path, ledger: Ledger, *, show: bool = False, but: Path | None = None) -> list[str]:
    """Returns the paths of all images in `root` and its folders, at any depth, sorted.

    Follows links, unless they lead to a folder above them. Counts in `ledger` what is no image, but for the folder
    `but`, by whatever path it is reached. Raises OSError if a folder cannot be listed.
    """
    images: list[str] = []
    other = None if but is None or not but.exists() else identity_of(but)
    # With each folder those on its path, so that a link never leads round in a circle.
    folders = [(str(root), frozenset[Identity]())]
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        while folders:
            listings = pool.map(_list, [folder for folder, _ in folders])
            shown = list(progress(listings, len(folders), f"listing {root.name}", "folder", show))
            new = []
            for (folder, above), contents in zip(folders, shown, strict=True):
                if contents.identity == other:
                    continue
                if contents.identity in above:
                    ledger.add("links to a folder above them", folder)
                    continue
                ledger.update(contents.ledger)
                images += contents.images
                below = above | {contents.identity}
                new += [(path, below) for path in contents.folders]
                if not contents.images and not contents.folders:
                    ledger.add("folders without an image", folder)
            folders = new
    return sorted(images)


def has_image(root: Path) -> bool:
    """Returns whether there is an image in `root` or its folders; lists only as many as that takes. Raises OSError."""
    folders, seen = [str(root)], set()
    while folders:
        contents = _list(folders.pop())
        if contents.images:
            return True
        folders += [] if contents.identity in seen else contents.folders
        seen.add(contents.identity)
    return False


def _folders_of_images(root: Path) -> Iterator[Path]:
    """Returns the folders right in `root` that hold images, at any depth; lists no more than are asked for."""
    return filter(has_image, map(Path, _list(str(root)).folders))


def has_usual_splits(root: Path, rule: FolderRule) -> bool:
    """Returns whether a folder surely holds test data: False also where only the names of all images tell.

    One folder says that it holds training data, and has two class folders or more, which are the level of the classes
    then; another one, of test data, has one of a class that is used. Each split is said once, by names among the
    folders that hold images.
    """
    if not root.is_dir() or "train" not in splits_of(os.listdir(root)).values():
        return False
    splits = splits_of(path.name for path in _folders_of_images(root))
    folders = {split: root / name for name, split in splits.items()}
    if len(folders) < len(splits) or "train" not in folders:
        return False
    tests = [_folders_of_images(folders[split]) for split in TESTS if split in folders]
    if len([*islice(_folders_of_images(folders["train"]), 2)]) < 2 or (first := next(chain(*tests), None)) is None:
        return False
    if "test" in rule.labelled or not _why_no_class(first.name, rule):
        return True
    return any(not _why_no_class(folder.name, rule) for folder in _folders_of_images(first.parent))


class _Listing(NamedTuple):
    """The contents of a folder."""

    identity: Identity
    images: list[str]
    folders: list[str]
    ledger: Ledger


@retried
def _list(folder: str) -> _Listing:
    contents = _Listing(identity_of(folder), [], [], Ledger())
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


class FolderList(NamedTuple):
    """Images below a folder, and their classes by the names of folders."""

    paths: FileList
    classes: list[str]  # class of each of paths.folders
    ledger: Ledger

    def select(self, which: Sequence[bool]) -> "FolderList":
        """Returns the images for which `which`, [n], is true."""
        class_of = dict(zip(self.paths.folders, self.classes, strict=True))
        paths = FileList.of([path for path, taken in zip(self.paths, which, strict=True) if taken])
        return self._replace(paths=paths, classes=[class_of[folder] for folder in paths.folders])


class SplitSelection(NamedTuple):
    """Images of a split among those below a folder, or in archives."""

    kept: np.ndarray  # bool [n]
    classes: list[str]  # class of each of the paths' folders
    ledger: Ledger  # counts the images of neither split


def select_split(paths: FileList, trees: Sequence[str], split: str, rule: FolderRule) -> SplitSelection:
    """Chooses the images of `split`, "train" or "test", by the names of folders; see splits.py.

    `trees` is the root of each of paths.folders: the data's folder, or an archive. Raises ConfigError if a folder's
    split is not clear, several levels may be the classes, or rule.classes are not among them.
    """
    places = find_splits([folder[len(tree) :] for folder, tree in zip(paths.folders, trees, strict=True)], rule)
    uses, ledger = uses_of(places, rule), Ledger()
    names_in = defaultdict[str, list[tuple[str, ...]]](list)
    for place, use, tree in zip(places, uses, trees, strict=True):
        if use.split == ("test" if rule.role == "test" else "train"):
            names_in[tree].append(place.names)
    is_labelled = {*rule.labelled} >= {use.split for use in uses if use.split is not None}
    at = -1 if is_labelled else _level_of(names_in, rule)
    classes = [place.names[at] if -len(place.names) <= at < len(place.names) else None for place in places]
    counts, kept = np.bincount(paths.folder, minlength=len(places)).tolist(), list[bool]()
    if split == "train" and rule.classes is not None:
        _check_classes([name for name, use in zip(classes, uses, strict=True) if name and use.split == split], rule)
    for folder, (use, name) in enumerate(zip(uses, classes, strict=True)):
        reason = use.reason or ("" if use.split in rule.labelled else _why_no_class(name, rule))
        kept.append(use.split == split and not reason)
        if reason:
            ledger.add(reason, paths[int(np.argmax(paths.folder == folder))], counts[folder])
    return SplitSelection(np.array(kept, bool)[paths.folder], [name or "" for name in classes], ledger)


def _level_of(names_in: Mapping[str, list[tuple[str, ...]]], rule: FolderRule) -> int:
    """Returns the index of the class in the names of folders, by their tree; raises ConfigError if trees differ."""
    levels = {tree: class_level(names, rule.level) for tree, names in names_in.items()}
    if not levels:
        return 0
    low, high = min(levels, key=levels.__getitem__), max(levels, key=levels.__getitem__)
    if levels[low] != levels[high]:
        raise ConfigError(
            f"the classes of {low} seem to be its folders of level {levels[low] + 1}, e.g. "
            f"{'/'.join(names_in[low][0])}, and those of {high} of level {levels[high] + 1}, e.g. "
            f"{'/'.join(names_in[high][0])}: set data.class_level, e.g. -1 for each image's own folder"
        )
    return levels[low]


def _why_no_class(name: str | None, rule: FolderRule) -> str:
    """Returns why the images of a folder of this name are of no class, None for one that has none; "" if they are."""
    if name is None:
        return "images beside the class folders"
    is_other = rule.classes is not None and composed_form(name) not in rule.classes
    return "images of classes that data.classes does not name" if is_other else ""


def _check_classes(names: Sequence[str], rule: FolderRule) -> None:
    """Raises ConfigError if names of data.classes may be misspelt: they have no class folder, and others are left out.

    `names` are those of the class folders of the training data.
    """
    there, wanted = dict.fromkeys(map(composed_form, names)), rule.classes or ()
    missing, others = [name for name in wanted if name not in there], [name for name in there if name not in wanted]
    if missing and others and "train" not in rule.labelled:
        raise ConfigError(
            f"data.classes names {listing(missing)}, without a folder of training images, and leaves out the class "
            f"folders {listing(sorted(others))}: correct data.classes, or take the names without a folder out of it"
        )


def select_below(root: str, images: Sequence[str], split: str, rule: FolderRule) -> FolderList:
    """Chooses the images of a split below a folder as select_split does; raises ConfigError that names the folder."""
    paths = FileList.of(images)
    try:
        choice = select_split(paths, [f"{root}/"] * len(paths.folders), split, rule)
    except ConfigError as error:
        raise ConfigError(f"{root}: {error}") from error
    chosen = FolderList(paths, choice.classes, choice.ledger)
    return chosen if choice.kept.all() else chosen.select(choice.kept.tolist())


def read_folder(folder: Path, rule: FolderRule = LABELLED) -> FolderList:
    """Lists the images of a folder and of its folders, sorted: the list that would hold them, relative to the folder.

    Raises ConfigError as select_below, and if there is no image, the folder holds folders of training and of test data,
    or it cannot be listed.
    """
    root, ledger = str(folder.absolute()), Ledger()
    try:
        images = images_below(Path(root), ledger)
    except OSError as error:
        raise ConfigError(f"cannot list the folder {folder}: {error.strerror}") from error
    if not images:
        raise ConfigError(NO_IMAGE.format(folder))
    _refuse_splits(folder, root, images, rule)
    chosen = select_below(root, images, rule.role, rule)
    ledger.update(chosen.ledger)
    if not len(chosen.paths):
        raise ConfigError(f"{folder} holds no image that is used, but {', '.join(ledger.texts)}")
    relative = pack_lines([[image[len(root) + 1 :] for image in chosen.paths]], root)
    return chosen._replace(paths=relative, ledger=ledger)


def _refuse_splits(folder: Path, root: str, images: Sequence[str], rule: FolderRule) -> None:
    """Raises ConfigError if folders below `folder` say that they hold training data, and test data."""
    folders = sorted({os.path.dirname(image)[len(root) + 1 :] + "/" for image in images})
    roots = {place.root: place.split for place in find_splits(folders, rule) if place.split and place.has_labels}
    tests = sorted(root for root, split in roots.items() if split in TESTS)
    if tests:
        raise ConfigError(
            f"{folder} holds training and test data, by the names of its folders {listing(sorted(roots))}: name the "
            f"folder of one split, e.g. {folder / tests[0]}"
        )
