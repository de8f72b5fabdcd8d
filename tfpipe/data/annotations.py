"""Annotations: where an image's XML is, and what objects it holds.

Two readers of Pascal VOC XML give the same `Objects`: `read_xml` with lxml, the reference, which reads any XML and says
what is wrong with one; and `xml_graph.parse_xml`, a graph of string ops, which runs in parallel without the GIL, and
refuses what is written in an unusual way.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import Layout, Remote
from tfpipe.data.filelist import SCAN_THREADS, FileList
from tfpipe.data.files import read_whole
from tfpipe.data.remote import Fetcher, is_optional
from tfpipe.data.voc import NOTHING, find_by_lxml
from tfpipe.errors import ConfigError
from tfpipe.progress import progress

logger = logging.getLogger(__name__)

# Of an object store.
LISTED_TOGETHER = 256
LAYOUTS = {
    "ilsvrc": Layout(images="Data/CLS-LOC", annotations="Annotations/CLS-LOC"),
    "voc": Layout(images="JPEGImages", annotations="Annotations"),
}


class Objects(NamedTuple):
    """What n XMLs say, as numpy arrays or tensors: their objects, one after the other."""

    images: Any  # int64 [k]: number of the object's XML, ascending
    names: Any  # string [k]
    boxes: Any  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    sizes: Any  # float32 [n, 2]: height and width of each image as annotated; 0 where not stated


def find_layout(layout: str | Layout, paths: Sequence[str]) -> Layout:
    """The rule for these image paths; "auto" is the known layout that fits the first of them.

    Raises:
        ConfigError: none fits.
    """
    if isinstance(layout, Layout):
        return layout
    known = LAYOUTS if layout == "auto" else {layout: LAYOUTS[layout]}
    for rule in known.values():
        if f"/{rule.images}/" in paths[0]:
            return rule
    folders = " or ".join(rule.images for rule in known.values())
    raise ConfigError(
        f"{paths[0]} is in no folder {folders}, so where its XML would be is unknown; set data.layout to "
        '{"images": FOLDER, "annotations": FOLDER}, or data.annotations to "none"'
    )


def annotation_folders(paths: FileList, layout: Layout) -> list[str]:
    """For each of `paths.folders`, where the XMLs of its images belong, with a slash at the end.

    ROOT/images/a/ -> ROOT/annotations/a/, where `layout` has "images" and "annotations". Anchored at the last place
    where the path holds the images folder whole, so that a folder above it may have any name, e.g.
    /lus/Data/ILSVRC/Data/CLS-LOC/train/n02437312/.

    Raises:
        ConfigError: a folder is not below one `layout.images`; names its first image.
    """
    folders = []
    for number, folder in enumerate(paths.folders):
        root, found, rest = folder.rpartition(f"/{layout.images}/")
        if not found:
            image = paths[int(np.argmax(paths.folder == number))]
            raise ConfigError(f'{image} is in no folder "{layout.images}", as data.layout has it')
        folders.append(f"{root}/{layout.annotations}/{rest}")
    return folders


def xml_name(image: str) -> str:
    """The base name of an image's XML, given the image's: its last extension, where it has one, becomes .xml."""
    return f"{image.rpartition('.')[0] or image}.xml"


def existing(paths: FileList, layout: Layout, show: bool = False, remote: Remote | None = None) -> np.ndarray:
    """bool [len(paths)]: which images have an XML; shows progress if told to.

    Lists each annotation folder once, which on a parallel file system is a thousand times cheaper than asking
    for each file. HTTP has no listing: an image behind it may have one.

    Args:
        paths: of the images.
        layout: where their XMLs would be.
        show: whether to show progress.
        remote: how to list what is behind URLs; None where `paths` are none.

    Raises:
        ConfigError: as annotation_folders, or as Fetcher.
        FetchError: a folder behind a URL cannot be listed.
    """
    folders = annotation_folders(paths, layout)
    optional = np.array([is_optional(f"{folder}.xml") for folder in folders])[paths.folder]
    if optional.all():
        logger.info("HTTP lists no folders: with each image its XML is asked for, and where there is none it is whole")
        return optional
    if remote is not None:
        fetcher = Fetcher(remote, folders)
        groups = [folders[start : start + LISTED_TOGETHER] for start in range(0, len(folders), LISTED_TOGETHER)]
        listings = (names for group in groups for names in fetcher.names(group))
        listed = _listed(listings, len(folders), show)
        fetcher.close()
    else:
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            listed = _listed(pool.map(_names_in, folders), len(folders), show)
    if not listed:
        return optional
    nothing: set[str] = set()
    listings_of = [listed.get(number, nothing) for number in range(len(folders))]
    found = (xml_name(name) in listings_of[folder] for folder, name in paths.entries())
    return np.fromiter(found, bool, len(paths)) | optional


def _listed(listings: Iterable[set[str]], count: int, show: bool) -> dict[int, set[str]]:
    """Those of the folders that hold anything, by number."""
    shown = progress(listings, count, "looking for XMLs", "folder", show)
    return {number: names for number, names in enumerate(shown) if names}


def _names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def read_xml(path: str) -> Objects:
    """The objects in the XML at `path`, by lxml.

    Raises:
        ValueError: it is not XML, or an object lacks a name or a number; says which.
        OSError: it cannot be read.
    """
    return objects_in([read_whole(path)], [path])


def objects_in(texts: Iterable[bytes], paths: Iterable[str]) -> Objects:
    """The objects in some XMLs, by lxml; none where a path is "".

    Raises:
        ValueError: as read_xml.
    """
    found = [find_by_lxml(text, path) if path else NOTHING for text, path in zip(texts, paths, strict=True)]
    return Objects(
        np.repeat(np.arange(len(found)), [len(each.names) for each in found]),
        np.array([name for each in found for name in each.names], object),
        np.array([edge for each in found for edge in each.edges], np.float32).reshape(-1, 4),
        np.array([each.size for each in found], np.float32),
    )
