"""Annotations: finds the XML of each image and reads the objects in it.

Two parsers of Pascal VOC XML return the same `Objects`. `read_xml` uses lxml and is the reference: it reads any XML and
explains errors. `xml_graph.parse_xml` is a graph of string ops: it runs in parallel without the GIL, but rejects XML
with an unusual syntax.
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

# Folders of an object store that are listed concurrently.
LISTED_TOGETHER = 256
LAYOUTS = {
    "ilsvrc": Layout(images="Data/CLS-LOC", annotations="Annotations/CLS-LOC"),
    "voc": Layout(images="JPEGImages", annotations="Annotations"),
}


class Objects(NamedTuple):
    """The objects annotated in n XMLs, one XML after the other, as numpy arrays or tensors."""

    images: Any  # int64 [k]: index of the object's XML, ascending
    names: Any  # string [k]
    boxes: Any  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    sizes: Any  # float32 [n, 2]: height and width of each image as annotated; 0 if not stated


def find_layout(layout: str | Layout, paths: Sequence[str]) -> Layout:
    """Returns the layout of these image paths; "auto" is the known layout that matches the first path.

    Raises:
        ConfigError: no known layout matches it.
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
    """Returns the folder of the XMLs for each of `paths.folders`, with a trailing slash.

    ROOT/images/a/ becomes ROOT/annotations/a/, with the names `images` and `annotations` of `layout`. The last match of
    the images folder counts, so folders above it may have any name: /lus/Data/ILSVRC/Data/CLS-LOC/train/n02437312/.

    Raises:
        ConfigError: a folder is not below `layout.images`; names the folder's first image.
    """
    folders = []
    for number, folder in enumerate(paths.folders):
        root, separator, rest = folder.rpartition(f"/{layout.images}/")
        if not separator:
            image = paths[int(np.argmax(paths.folder == number))]
            raise ConfigError(f'{image} is in no folder "{layout.images}", as data.layout has it')
        folders.append(f"{root}/{layout.annotations}/{rest}")
    return folders


def xml_name(image: str) -> str:
    """Returns the base name of an image's XML: the image's base name with its extension, if any, replaced by .xml."""
    return f"{image.rpartition('.')[0] or image}.xml"


def existing(paths: FileList, layout: Layout, show: bool = False, remote: Remote | None = None) -> np.ndarray:
    """Returns which images have an XML, as bool [len(paths)].

    Lists each annotation folder once: on a parallel file system this is a thousand times cheaper than a call per file.
    HTTP cannot list folders, so every image behind HTTP counts as annotated.

    Args:
        paths: the images.
        layout: maps their folders to the XMLs' folders.
        show: whether to show progress.
        remote: settings to list folders behind URLs; None if `paths` are files.

    Raises:
        ConfigError: as annotation_folders or Fetcher.
        FetchError: a folder behind a URL cannot be listed.
    """
    folders = annotation_folders(paths, layout)
    optional = np.array([is_optional(f"{folder}.xml") for folder in folders])[paths.folder]
    if optional.all():
        logger.info("HTTP cannot list folders: requests an XML with each image; without one uses the whole image")
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
    empty: set[str] = set()
    listings_of = [listed.get(number, empty) for number in range(len(folders))]
    annotated = (xml_name(name) in listings_of[folder] for folder, name in paths.entries())
    return np.fromiter(annotated, bool, len(paths)) | optional


def _listed(listings: Iterable[set[str]], count: int, show: bool) -> dict[int, set[str]]:
    """Returns the base names in each folder that is not empty, by the folder's number."""
    shown = progress(listings, count, "looking for XMLs", "folder", show)
    return {number: names for number, names in enumerate(shown) if names}


def _names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def read_xml(path: str) -> Objects:
    """Returns the objects in the XML at `path`, parsed by lxml.

    Raises:
        ValueError: it is not XML, or an object lacks a name or a number; says which.
        OSError: it cannot be read.
    """
    return objects_in([read_whole(path)], [path])


def objects_in(texts: Iterable[bytes], paths: Iterable[str]) -> Objects:
    """Returns the objects in several XMLs, parsed by lxml; an XML whose path is "" has none.

    Raises:
        ValueError: as read_xml.
    """
    xmls = [find_by_lxml(text, path) if path else NOTHING for text, path in zip(texts, paths, strict=True)]
    return Objects(
        np.repeat(np.arange(len(xmls)), [len(xml.names) for xml in xmls]),
        np.array([name for xml in xmls for name in xml.names], object),
        np.array([edge for xml in xmls for edge in xml.edges], np.float32).reshape(-1, 4),
        np.array([xml.size for xml in xmls], np.float32),
    )
