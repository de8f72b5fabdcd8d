"""Filelists: written once from a folder tree and read by training; or a folder of class folders, listed each time."""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.config.section import NETRC
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.catalog.class_folders import (
    TESTS,
    class_level,
    has_image,
    images_below,
    listing,
    of_split,
    places_of,
    test_split,
)
from tfpipe.data.catalog.labels import folder_of
from tfpipe.data.catalog.layout import LAYOUTS
from tfpipe.data.catalog.paths import FileList, is_url, packed
from tfpipe.errors import LOGIN, ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import open_text, read_text, unreadable
from tfpipe.util.ledger import Ledger
from tfpipe.util.progress import progress

logger = logging.getLogger(__name__)

VOC_SPLITS = ("train", "val", "test", "trainval")
# Characters of lines read at a time.
CHUNK_CHARS = 2**18
# Python reads a byte of a file's name that is not UTF-8 as a surrogate.
BREAKS_A_LINE = re.compile("[\r\n\ud800-\udfff]")
LIST = "the filelist "
NO_IMAGE = "no image in {0} or its folders; expected {0.name}/CLASS/*.jpg, a folder a class"
HOW_TO_MAKE = "make one with: tfpipe filelist ROOT --out DIR"


def read_filelist(path: str | Path, show: bool = False) -> FileList:
    """Reads the list at `path`, one path a line; blank lines are skipped. Lists the images of a folder.

    A relative line is relative to the list's folder; a URL is left as it is. `show` shows the progress. Raises
    ConfigError if the list cannot be read, holds no line, holds both URLs and paths, or a URL with a user or a
    password; or a folder holds no image.
    """
    path = Path(path)
    if path.is_dir():
        return read_folder(path).paths
    try:
        paths = packed(read_lines(path, show), str(path.parent.absolute()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{unreadable(path, error, LIST)}; {HOW_TO_MAKE}") from error
    if not paths:
        raise ConfigError(f"the filelist {path} holds no line; {HOW_TO_MAKE}")
    check_urls(paths, f"the filelist {path}", "line")
    return paths


def check_urls(paths: FileList, place: str, entry: str) -> None:
    """Raises ConfigError if one of the paths is a URL with a user or a password, or they are URLs and paths mixed.

    `place` and `entry` name the list or table, and an entry of it, in the message, e.g. "the filelist a.txt", "line".
    """
    remote = np.array([is_url(folder) for folder in paths.folders], bool)
    if not remote.any():
        return
    login = next((path for path in paths.folders if is_url(path) and LOGIN.search(path)), None)
    if login is not None:
        raise ConfigError(
            f"{place} has a URL with a user or a password, {login}..., which logs and copies of it would repeat: "
            f"{NETRC}"
        )
    if not remote.all():
        of_image = remote[paths.folder]
        first, second = (int(np.argmax(which)) for which in (of_image, ~of_image))
        raise ConfigError(
            f"{place} holds both URLs and paths, e.g. {paths[first]} ({entry} {first + 1}) and {paths[second]} "
            f"({entry} {second + 1}): use one kind, e.g. copy the remote files with `tfpipe stage`"
        )


class FolderList(NamedTuple):
    """Images below a folder, and their classes by the names of folders."""

    paths: FileList
    classes: list[str]  # class of each of paths.folders
    ledger: Ledger

    def taken(self, which: Sequence[bool]) -> "FolderList":
        """Returns the images for which `which`, [n], is true."""
        class_of = dict(zip(self.paths.folders, self.classes, strict=True))
        paths = FileList.of([path for path, taken in zip(self.paths, which, strict=True) if taken])
        return self._replace(paths=paths, classes=[class_of[folder] for folder in paths.folders])


class FolderRule(NamedTuple):
    """How the images below a folder get their classes."""

    level: int | None = None  # data.class_level
    labelled: bool = True  # whether something else has the labels, so that images need no class folders

    @classmethod
    def of(cls, config: DataConfig, split: str) -> "FolderRule":
        """Returns the rule for a split."""
        labelled = config.label_file_for(split) is not None or config.targets.kind in UNCLASSED
        return cls(config.class_level, labelled or config.label_source == "object")


LABELLED = FolderRule()


class Choice(NamedTuple):
    """Images of a split among those below a folder, or in archives."""

    kept: np.ndarray  # bool [n]
    classes: list[str]  # class of each of the paths' folders
    ledger: Ledger


def chosen_folders(paths: FileList, trees: Sequence[str], split: str, rule: FolderRule, *, apart: bool) -> Choice:
    """Chooses the images of `split`, "train" or "test", by the names of folders; see class_folders.

    `trees` is the root of each of paths.folders: the data's folder, or an archive. `apart`: data of the other split lie
    elsewhere. Raises ConfigError if several folders may be the split, or several levels the classes.
    """
    places = places_of([folder[len(tree) :] for folder, tree in zip(paths.folders, trees, strict=True)])
    used = of_split(places, split, apart=apart)
    train = used if apart else of_split(places, "train", apart=False)
    names_in = defaultdict[str, list[tuple[str, ...]]](list)
    for place, tree, of_train in zip(places, trees, train, strict=True):
        if of_train:
            names_in[tree].append(place.names)
    at = -1 if rule.labelled else min((class_level(names, rule.level) for names in names_in.values()), default=0)
    classes = [place.names[at] if -len(place.names) <= at < len(place.names) else None for place in places]
    test, ledger = test_split(places), Ledger()
    counts = np.bincount(paths.folder, minlength=len(places)).tolist()
    for folder, place in enumerate(places):
        beside = used[folder] and classes[folder] is None and not rule.labelled
        of_none = not used[folder] and (apart or (split == "train" and (place.split is None or place.split != test)))
        if beside or of_none:
            reason = "images beside the class folders" if beside else "images of no split"
            ledger.add(reason, paths[int(np.argmax(paths.folder == folder))], counts[folder])
    kept = [use and (rule.labelled or name is not None) for use, name in zip(used, classes, strict=True)]
    return Choice(np.array(kept, bool)[paths.folder], [name or "" for name in classes], ledger)


def chosen_below(root: str, images: Sequence[str], split: str, rule: FolderRule, *, apart: bool) -> FolderList:
    """Chooses the images of a split below a folder as chosen_folders does; raises ConfigError that names the folder."""
    paths = FileList.of(images)
    try:
        choice = chosen_folders(paths, [f"{root}/"] * len(paths.folders), split, rule, apart=apart)
    except ConfigError as error:
        raise ConfigError(f"{root}: {error}") from error
    chosen = FolderList(paths, choice.classes, choice.ledger)
    return chosen if choice.kept.all() else chosen.taken(choice.kept.tolist())


def read_folder(folder: Path, rule: FolderRule = LABELLED) -> FolderList:
    """Lists the images of a folder and of its folders, sorted: the list that would hold them, relative to the folder.

    Raises ConfigError as chosen_below, and if there is no image, the folder holds folders of training and of test data,
    or it cannot be listed.
    """
    root, ledger = str(folder.absolute()), Ledger()
    try:
        images = images_below(Path(root), ledger)
    except OSError as error:
        raise ConfigError(f"cannot list the folder {folder}: {error.strerror}") from error
    if not images:
        raise ConfigError(NO_IMAGE.format(folder))
    _refuse_splits(folder, root, images)
    chosen = chosen_below(root, images, "train", rule, apart=True)
    ledger.update(chosen.ledger)
    relative = packed([[image[len(root) + 1 :] for image in chosen.paths]], root)
    return chosen._replace(paths=relative, ledger=ledger)


def _refuse_splits(folder: Path, root: str, images: Sequence[str]) -> None:
    """Raises ConfigError if folders below `folder` say that they hold training data, and test data."""
    folders = sorted({os.path.dirname(image)[len(root) + 1 :] + "/" for image in images})
    roots = {place.root: place.split for place in places_of(folders) if place.split}
    tests = sorted(root for root, split in roots.items() if split in TESTS)
    if tests:
        raise ConfigError(
            f"{folder} holds training and test data, by the names of its folders {listing(sorted(roots))}: name the "
            f"folder of one split, e.g. {folder / tests[0]}"
        )


def read_lines(path: Path, show: bool = False) -> Iterator[list[str]]:
    """Yields a filelist's lines, stripped, without blank ones: thousands at a time, to save memory.

    Millions at once would take ten times the memory of a FileList. `show` shows the progress. Raises OSError or
    UnicodeDecodeError.
    """
    with open_text(path) as file:
        blocks = iter(lambda: file.readlines(CHUNK_CHARS), [])
        count = path.stat().st_size // CHUNK_CHARS + 1
        for lines in progress(blocks, count, f"reading {path.name}", "block", show):
            yield [line for line in map(str.strip, lines) if line]


def check_filelists(paths: Iterable[Path | None]) -> None:
    """Checks, without reading them completely, that the lists can be read and hold a line, and folders an image.

    Raises ConfigError if a list cannot be read or holds no line; the message names all such lists.
    """
    errors = []
    for path in filter(None, paths):
        if path.is_dir():
            errors += [] if has_image(path) else [NO_IMAGE.format(path)]
            continue
        try:
            with open_text(path) as lines:
                if not any(line.strip() for line in lines):
                    errors.append(f"the filelist {path} holds no line")
        except (OSError, UnicodeDecodeError) as error:
            errors.append(unreadable(path, error, LIST))
    if errors:
        raise ConfigError("; ".join([*errors, HOW_TO_MAKE]))


def write_filelist(path: Path, images: Iterable[str]) -> None:
    """Writes one image a line; the file appears complete, by renaming.

    Raises ConfigError if the file cannot be written, or a path could not be read from it again: one that is not UTF-8,
    holds a line break, or has white space around it.
    """
    images = list(images)
    odd = [image for image in images if image != image.strip() or BREAKS_A_LINE.search(image)]
    if odd:
        raise ConfigError(
            f"{path} is not written: {len(odd)} of {len(images)} paths are not UTF-8, hold a line break or have white "
            f"space around them, e.g. {odd[0]!a}: rename or remove these files"
        )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_text("".join(f"{image}\n" for image in images), encoding="utf-8")


def scan(root: str | Path, show: bool = True) -> dict[str, list[str]]:
    """Finds the images of an ILSVRC or Pascal VOC tree, or of class folders; returns absolute paths by split, sorted.

    ILSVRC: Data/CLS-LOC/train/WNID/*.JPEG and Data/CLS-LOC/val/, flat or in folders. VOC: the images in JPEGImages that
    the lists in ImageSets/Main name. `root` holds Data or JPEGImages, or is the ILSVRC folder's parent. Class folders:
    ROOT/CLASS/*.jpg, or the same below ROOT/train, ROOT/val ... Raises ConfigError if `root` is none of these, an
    ILSVRC tree has no training image, or a VOC list names a missing image.
    """
    root = Path(root).absolute()
    for images in (root / "Data/CLS-LOC", root / "ILSVRC/Data/CLS-LOC"):
        if images.is_dir():
            return _scan_ilsvrc(images, show)
    if (root / "JPEGImages").is_dir() and (root / "ImageSets/Main").is_dir():
        return _scan_voc(root)
    splits = _scan_class_folders(root, show) if root.is_dir() else {}
    train = splits.get("train", [])
    for rule in LAYOUTS.values():
        tree, separator, _ = "".join(train[:1]).partition(f"/{rule.images}/")
        if separator and Path(tree) != root:
            raise ConfigError(f"{root} holds a tree of its own, {tree}: give that instead")
    if len({os.path.dirname(path) for path in train}) < 2:
        raise ConfigError(
            f"{root} is neither an ILSVRC tree (Data/CLS-LOC/train) nor a Pascal VOC one (JPEGImages, ImageSets/Main) "
            "nor does it hold class folders with images (CLASS/*.jpg or train/CLASS/*.jpg, of two classes or more)"
        )
    return splits


def _scan_class_folders(root: Path, show: bool) -> dict[str, list[str]]:
    """Returns the images of each split by the name of its folder, "train" for training data."""
    ledger, splits = Ledger(), dict[str, list[str]]()
    paths = FileList.of(images_below(root, ledger, show=show))
    places = places_of([folder[len(str(root)) + 1 :] for folder in paths.folders])
    train = of_split(places, "train", apart=False)
    named = ["train" if used else os.path.basename(place.root) for place, used in zip(places, train, strict=True)]
    for path, folder in zip(paths, paths.folder.tolist(), strict=True):
        if named[folder]:
            splits.setdefault(named[folder], []).append(path)
        else:
            ledger.add("images of no split", path)
    if ledger and show:
        logger.warning("%s holds what is in no list:%s", root, ledger.lines())
    at = class_level([place.names for place, used in zip(places, train, strict=True) if used], None)
    deeper = [folder for folder, place in zip(paths.folders, places, strict=True) if len(place.names) > at + 1]
    if deeper and show:
        logger.warning(
            "the class of an image of a list is the folder that it lies in: of those in %s it is %s; set "
            'data.class_level, e.g. -2 for the folder above, or train from the folder, data.source {"kind": "folders"}',
            *(deeper[0], folder_of(deeper[0])),
        )
    return splits


def _scan_ilsvrc(images: Path, show: bool) -> dict[str, list[str]]:
    folders = {split: images / split for split in ("train", "val") if (images / split).is_dir()}
    splits = {split: images_below(folder, Ledger(), show=show) for split, folder in folders.items()}
    if not splits.get("train"):
        raise ConfigError(f"no image below {images / 'train'}; expected WNID folders of .JPEG files")
    return splits


def _scan_voc(root: Path) -> dict[str, list[str]]:
    # Of x.jpg and x.png the list means x.jpg.
    images = reversed(images_below(root / "JPEGImages", Ledger()))
    by_name = {os.path.splitext(os.path.basename(path))[0]: path for path in images}
    splits = {}
    for split in VOC_SPLITS:
        names = root / "ImageSets/Main" / f"{split}.txt"
        if not names.exists():
            continue
        stems = sorted({line.split()[0] for line in read_text(names).splitlines() if line.strip()})
        missing = [name for name in stems if name not in by_name]
        if missing:
            raise ConfigError(f"{names} names {len(missing)} images that are not in JPEGImages, e.g. {missing[0]}")
        splits[split] = [by_name[name] for name in stems]
    if not splits:
        raise ConfigError(f"no list in {root / 'ImageSets/Main'}; expected one of {', '.join(VOC_SPLITS)} (.txt)")
    return splits
