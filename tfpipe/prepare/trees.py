"""Finds the images of a tree, whose lists `tfpipe filelist` writes: ILSVRC's, Pascal VOC's, or class folders."""

import logging
import os
from pathlib import Path

from tfpipe.data.catalog.class_folders import images_below
from tfpipe.data.catalog.labels import folder_of
from tfpipe.data.catalog.layout import LAYOUTS
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.splits import FolderRule, class_level, find_splits, uses_of
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import near, read_text
from tfpipe.util.ledger import Ledger

logger = logging.getLogger(__name__)

VOC_SPLITS = ("train", "val", "test", "trainval")


def scan(root: str | Path, show: bool = True) -> dict[str, list[str]]:
    """Finds the images of an ILSVRC or Pascal VOC tree, or of class folders; returns absolute paths by split, sorted.

    ILSVRC: Data/CLS-LOC/train/WNID/*.JPEG and Data/CLS-LOC/val/, flat or in folders. VOC: the images in JPEGImages that
    the lists in ImageSets/Main name. `root` holds Data or JPEGImages, or is the ILSVRC folder's parent. Class folders:
    ROOT/CLASS/*.jpg, or the same below ROOT/train, ROOT/val ... Raises ConfigError if `root` is none of these, an
    ILSVRC tree has no training image, or a VOC list names a missing image.
    """
    root = Path(root).absolute()
    if not root.exists():
        raise ConfigError(f"there is no folder {root}{near(root)}")
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
    # The labels of test data in images alone may be in a file.
    rule = FolderRule(labelled=("test",), role="train")
    places = find_splits([folder[len(str(root)) + 1 :] for folder in paths.folders], rule)
    train = [use.split == "train" for use in uses_of(places, rule)]
    named = ["train" if used else os.path.basename(place.root) for place, used in zip(places, train, strict=True)]
    for path, folder in zip(paths, paths.folder.tolist(), strict=True):
        if named[folder]:
            splits.setdefault(named[folder], []).append(path)
        else:
            ledger.add("images of no split", path)
    if show:
        ledger.warn(str(root))
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
            raise ConfigError(f"{names} names {counted(len(missing), 'image')} not in JPEGImages, e.g. {missing[0]}")
        splits[split] = [by_name[name] for name in stems]
    if not splits:
        raise ConfigError(f"no list in {root / 'ImageSets/Main'}; expected one of {', '.join(VOC_SPLITS)} (.txt)")
    return splits
