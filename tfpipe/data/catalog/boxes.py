"""Reads the boxes of many images at once, before training: if every box is a sample, or to count crops."""

import os
from functools import partial

import numpy as np

from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes, is_stated, numbered, targets
from tfpipe.data.annotations.parse import parse_annotation
from tfpipe.data.annotations.voc import VocObjects
from tfpipe.data.catalog.layout import Storage
from tfpipe.data.catalog.types import Catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress

# XMLs read by one call; and how many there are before several processes read them, which take a second to start.
CHUNK = 256
MANY = 20_000
REMEDY = "repair it or take it out of the filelist; tfpipe check finds all such files"


def read_boxes(catalog: Catalog, storage: Storage | None, world: World) -> Boxes:
    """Returns every box of `catalog`, the same on every rank; the ranks share the reading.

    `storage` holds the XMLs, None if there are none. Raises ConfigError if an XML cannot be used; the message names it.
    """
    annotated = np.flatnonzero(catalog.annotated)
    parts = world.on_all(lambda: boxes_of(catalog, storage, world.mine(annotated), show=world.rank == 0))
    if not catalog.by_object:
        plain = np.flatnonzero(~catalog.annotated)
        parts.append(Boxes(plain, np.repeat(WHOLE_IMAGE, len(plain), axis=0), catalog.labels[plain]))
    images, boxes, labels = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(images, kind="stable")
    return Boxes(images[order].astype(np.int32), boxes[order], labels[order])


def boxes_of(catalog: Catalog, storage: Storage | None, items: np.ndarray, *, show: bool) -> Boxes:
    """Reads the boxes of `items`, all of which have an XML; in several processes if they are MANY.

    Raises ConfigError if an XML cannot be used; the message names it.
    """
    if not len(items):
        return Boxes(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    if storage is None:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {catalog.display_name} holds no XMLs")
    numbers = {name: number for number, name in enumerate(catalog.classes)}
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    tasks = ([catalog.annotation(item) for item in chunk.tolist()] for chunk in chunks)
    processes = len(os.sched_getaffinity(0)) if len(items) > MANY else 1
    parts = []
    try:
        chunk_xmls = parallel(partial(read_objects, storage), tasks, processes, __name__)
        for chunk, xmls in zip(chunks, progress(chunk_xmls, len(chunks), "reading boxes", "chunk", show), strict=True):
            sizes = np.array([xml.size for xml in xmls], np.float32)
            unstated = np.flatnonzero(~is_stated(sizes) & np.array([bool(xml.names) for xml in xmls]))
            if unstated.size:
                sizes[unstated] = storage.sizes([catalog.paths[item] for item in chunk[unstated].tolist()])
            images, boxes, labels = targets(numbered(xmls, numbers), catalog.labels[chunk], sizes)
            parts.append(Boxes(chunk[images], boxes, labels))
    except (OSError, ValueError, TfpipeError) as error:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {error}; {REMEDY}") from error
    return Boxes(*map(np.concatenate, zip(*parts, strict=True)))


def read_objects(storage: Storage, paths: list[str]) -> list[VocObjects]:
    """Reads XMLs; an XML that is missing, if it may be, counts as one without objects.

    Raises OSError, ValueError or TfpipeError if one cannot be read, or is no annotation; the message names it.
    """
    texts = storage.contents(paths)
    return [
        VocObjects([], [], [1.0, 1.0]) if text is None else parse_annotation(text, path)
        for path, text in zip(paths, texts, strict=True)
    ]
