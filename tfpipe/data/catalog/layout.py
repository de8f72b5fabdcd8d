"""Layouts: where the XML of each image is, and which images have one; and the storage that holds both."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tfpipe.config import Layout
from tfpipe.data.annotations import masks
from tfpipe.data.annotations.formats import FORMATS
from tfpipe.data.catalog.class_folders import SCAN_THREADS
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.headers import read_header
from tfpipe.errors import ConfigError
from tfpipe.util.files import read_whole
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

LAYOUTS = {
    "ilsvrc": Layout(images="Data/CLS-LOC", annotations="Annotations/CLS-LOC"),
    "voc": Layout(images="JPEGImages", annotations="Annotations"),
}
"""Layouts that an image's path tells."""
NAMED = {**LAYOUTS, "yolo": Layout(images="images", annotations="labels", format="yolo")}
# Ends of the names of annotations.
SUFFIXES = tuple({form.suffix for form in FORMATS.values()})


def find_layout(layout: str | Layout, paths: Sequence[str]) -> Layout:
    """Returns the layout of these image paths; "auto" is the known layout that matches the first path.

    Raises ConfigError if no known layout matches it.
    """
    if isinstance(layout, Layout):
        return layout
    layouts = LAYOUTS if layout == "auto" else {layout: NAMED[layout]}
    for rule in layouts.values():
        if f"/{rule.images}/" in paths[0]:
            return rule
    folders = " or ".join(rule.images for rule in layouts.values())
    raise ConfigError(
        f"{paths[0]} is in no folder {folders}, so where its XML would be is unknown; set data.layout to "
        '{"images": FOLDER, "annotations": FOLDER}, or data.annotations to "none"'
    )


def annotation_folders(paths: FileList, layout: Layout) -> list[str]:
    """Returns the folder of the XMLs for each of `paths.folders`, with a trailing slash.

    ROOT/images/a/ becomes ROOT/annotations/a/, with the names `images` and `annotations` of `layout`. The last match of
    the images folder counts, so folders above it may have any name: /lus/Data/ILSVRC/Data/CLS-LOC/train/n02437312/.
    Raises ConfigError if a folder is not below `layout.images`; the message names the folder's first image.
    """
    folders = []
    for number, folder in enumerate(paths.folders):
        root, separator, rest = folder.rpartition(f"/{layout.images}/")
        if not separator:
            image = paths[int(np.argmax(paths.folder == number))]
            raise ConfigError(f'{image} is in no folder "{layout.images}", as data.layout has it')
        folders.append(f"{root}/{layout.annotations}/{rest}")
    return folders


def annotation_name(image: str, suffix: str) -> str:
    """Returns the base name of an image's annotation: the image's with its extension, if any, replaced by `suffix`."""
    return f"{image.rpartition('.')[0] or image}{suffix}"


def mask_paths(paths: FileList, layout: Layout | None) -> FileList:
    """Returns the path of each image's mask: in the layout's folder of annotations, or next to it if None; with .png.

    Raises ConfigError as annotation_folders, or if a mask would be its image.
    """
    folders = paths.folders if layout is None else annotation_folders(paths, layout)
    files = FileList.of(folders[folder] + annotation_name(name, masks.SUFFIX) for folder, name in paths.entries())
    same = next((path for path, mask in zip(paths, files, strict=True) if path == mask), None)
    if same is not None:
        raise ConfigError(
            f"data.targets.masks: {same} is an image, and its mask would have the same name: keep masks in a folder of "
            'their own, and set masks to {"images": FOLDER, "annotations": FOLDER}'
        )
    return files


def is_optional(url: str) -> bool:
    """Returns whether a file may be missing: HTTP cannot list folders, so each image's XML is requested on trial."""
    return url.startswith(("http://", "https://")) and url.endswith(SUFFIXES)


def existing(paths: FileList, layout: Layout, storage: "Storage", *, show: bool) -> np.ndarray:
    """Returns which images have an XML, as bool [len(paths)].

    Lists each annotation folder once: on a parallel file system this is a thousand times cheaper than a call per file.
    HTTP cannot list folders, so every image behind HTTP counts as annotated. Raises ConfigError as annotation_folders,
    and FetchError if `storage` cannot list a folder.
    """
    folders, suffix = annotation_folders(paths, layout), FORMATS[layout.format].suffix
    optional = np.array([is_optional(f"{folder}{suffix}") for folder in folders])[paths.folder]
    if optional.all():
        logger.info("HTTP cannot list folders: requests an XML with each image; without one uses the whole image")
        return optional
    folder_names = list(progress(storage.names(folders), len(folders), "looking for XMLs", "folder", show))
    if not any(folder_names):
        return optional
    annotated = (annotation_name(name, suffix) in folder_names[folder] for folder, name in paths.entries())
    return np.fromiter(annotated, bool, len(paths)) | optional


@retried
def _names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


class Storage(ABC):
    """Access to files by path or URL, many at once."""

    @abstractmethod
    def names(self, folders: list[str]) -> Iterator[set[str]]:
        """Yields the base names in each folder, an empty set for one that does not exist."""

    @abstractmethod
    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        """Returns the files at `paths`; None for one that may be missing, and is. Raises OSError or TfpipeError."""

    @abstractmethod
    def sizes(self, paths: list[str]) -> np.ndarray:
        """Returns heights and widths (float32 [n, 2]) of the images at `paths`. Raises OSError or ValueError."""


class LocalFiles(Storage):
    """Files on a file system."""

    def __init__(self, turn: bool = False) -> None:
        """Takes sizes of images as EXIF turns them, if `turn`."""
        self._turn = turn

    def names(self, folders: list[str]) -> Iterator[set[str]]:
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            yield from pool.map(_names_in, folders)

    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        return [read_whole(path) for path in paths]

    def sizes(self, paths: list[str]) -> np.ndarray:
        return np.array([read_header(path).turned(self._turn)[:2] for path in paths], np.float32)
