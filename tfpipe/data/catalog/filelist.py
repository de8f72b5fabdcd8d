"""Filelists: written once from a folder tree and read by training; or a folder of class folders, listed each time."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tfpipe.config.section import NETRC
from tfpipe.data.catalog.class_folders import find_splits, has_image, images_below, images_of_split, listing
from tfpipe.data.catalog.layout import LAYOUTS
from tfpipe.data.catalog.paths import FileList, is_url, packed
from tfpipe.errors import LOGIN, ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import open_text, read_text, unreadable
from tfpipe.util.progress import progress

JPEG_SUFFIXES = (".jpeg", ".jpg")
VOC_SPLITS = ("train", "val", "test", "trainval")
# Characters of lines read at a time.
CHUNK_CHARS = 2**18
# Python reads a byte of a file's name that is not UTF-8 as a surrogate.
BREAKS_A_LINE = re.compile("[\r\n\ud800-\udfff]")
LIST = "the filelist "
HOW_TO_MAKE = "make one with: tfpipe filelist ROOT --out DIR"


def read_filelist(path: str | Path, show: bool = False) -> FileList:
    """Reads the list at `path`, one path a line; blank lines are skipped. Lists the images of a folder.

    A relative line is relative to the list's folder; a URL is left as it is. `show` shows the progress. Raises
    ConfigError if the list cannot be read, holds no line, holds both URLs and paths, or a URL with a user or a
    password; or a folder holds no image.
    """
    path = Path(path)
    if path.is_dir():
        return read_folder(path)
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


def read_folder(folder: Path) -> FileList:
    """Lists the images of a folder and of its folders, sorted: the list that would hold them, relative to the folder.

    Raises ConfigError if there is none, the folder holds folders of training and of test data, or it cannot be listed.
    """
    root = str(folder.absolute())
    try:
        _, *tests = splits = find_splits(folder)
        if tests:
            raise ConfigError(
                f"{folder} holds training and test data, by the names of its folders {listing(list(splits))}: name the "
                f"folder of one split, e.g. {folder / tests[0]}"
            )
        images = images_below(Path(root))
    except OSError as error:
        raise ConfigError(f"cannot list the folder {folder}: {error.strerror}") from error
    if not images:
        raise ConfigError(_no_image(folder))
    return packed([[image[len(root) + 1 :] for image in images]], root)


def _no_image(folder: Path) -> str:
    return f"no image in {folder} or its folders; expected {folder.name}/CLASS/*.jpg, a folder a class"


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
            errors += [] if has_image(path) else [_no_image(path)]
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
    for base in (root, root / "ILSVRC"):
        if (base / "Data/CLS-LOC").is_dir():
            return _scan_ilsvrc(base / "Data/CLS-LOC", show)
    if (root / "JPEGImages").is_dir() and (root / "ImageSets/Main").is_dir():
        return _scan_voc(root)
    folders = find_splits(root) if root.is_dir() else {}
    splits = {split: images_of_split(folders, split, show) for split in folders}
    images = splits.get("train", [])
    for rule in LAYOUTS.values():
        tree, separator, _ = "".join(images[:1]).partition(f"/{rule.images}/")
        if separator and Path(tree) != root:
            raise ConfigError(f"{root} holds a tree of its own, {tree}: give that instead")
    if len({os.path.dirname(path) for path in images}) < 2:
        raise ConfigError(
            f"{root} is neither an ILSVRC tree (Data/CLS-LOC/train) nor a Pascal VOC one (JPEGImages, ImageSets/Main) "
            "nor does it hold class folders with images (CLASS/*.jpg or train/CLASS/*.jpg, of two classes or more)"
        )
    return {split: images for split, images in splits.items() if images}


def _scan_ilsvrc(images: Path, show: bool) -> dict[str, list[str]]:
    splits = {}
    for split in ("train", "val"):
        if (images / split).is_dir():
            splits[split] = _jpegs(images_below(images / split, show))
    if not splits.get("train"):
        raise ConfigError(f"no image below {images / 'train'}; expected WNID folders of .JPEG files")
    return splits


def _jpegs(paths: list[str]) -> list[str]:
    return [path for path in paths if path.lower().endswith(JPEG_SUFFIXES)]


def _scan_voc(root: Path) -> dict[str, list[str]]:
    by_name = {os.path.splitext(os.path.basename(path))[0]: path for path in _jpegs(images_below(root / "JPEGImages"))}
    splits = {}
    for split in VOC_SPLITS:
        names = root / "ImageSets/Main" / f"{split}.txt"
        if not names.exists():
            continue
        listed = sorted({line.split()[0] for line in read_text(names).splitlines() if line.strip()})
        missing = [name for name in listed if name not in by_name]
        if missing:
            raise ConfigError(f"{names} names {len(missing)} images that are not in JPEGImages, e.g. {missing[0]}")
        splits[split] = [by_name[name] for name in listed]
    if not splits:
        raise ConfigError(f"no list in {root / 'ImageSets/Main'}; expected one of {', '.join(VOC_SPLITS)} (.txt)")
    return splits
