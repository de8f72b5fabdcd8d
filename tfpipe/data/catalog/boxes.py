"""Reads the boxes of many images at once, before training: if every box is a sample, or to count crops."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes, left_out, number_classes, sizes_of, targets
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import Objects
from tfpipe.data.catalog.layout import Storage
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.ledger import Ledger
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress
from tfpipe.util.resources import usable_cpus

# XMLs read by one call; and how many there are before several processes read them, which take a second to start.
CHUNK = 256
MANY_XMLS = 20_000
REMEDY = "repair it or take it out of the filelist; tfpipe check finds all such files"


class ReadBoxes(NamedTuple):
    """The boxes of some images, as their XMLs have them."""

    boxes: Boxes
    items: np.ndarray  # int64 [n]: the images
    stated: np.ndarray  # float32 [n, 2]: the heights and widths that the XMLs state, or else the images' own
    ledger: Ledger  # counts the objects that are left out


def with_boxes(catalog: Catalog, storage: Storage | None, world: World) -> Catalog:
    """Adds every box to `catalog`, the same on every rank; the ranks share the reading.

    `storage` holds the XMLs, None if there are none. Raises ConfigError if an XML cannot be used; the message names it.
    """
    annotated, ledger = np.flatnonzero(catalog.annotated), Ledger(catalog.ledger.counts)
    stated = np.zeros((len(catalog), 2), np.float32)
    parts = []
    for read in world.on_all(lambda: boxes_of(catalog, storage, world.mine(annotated), show=world.rank == 0)):
        parts.append(read.boxes)
        stated[read.items] = read.stated
        ledger.update(read.ledger)
    if not catalog.by_object:
        plain = np.flatnonzero(~catalog.annotated)
        parts.append(Boxes(plain, np.repeat(WHOLE_IMAGE, len(plain), axis=0), catalog.labels[plain]))
    images, boxes, labels = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(images, kind="stable")
    all_boxes = Boxes(images[order].astype(np.int32), boxes[order], labels[order])
    return replace(catalog, boxes=all_boxes, stated=stated, ledger=ledger)


def boxes_of(catalog: Catalog, storage: Storage | None, items: np.ndarray, *, show: bool) -> ReadBoxes:
    """Reads the boxes of `items`, which all have an XML; errors as of with_boxes. Several processes read MANY_XMLS."""
    ledger, stated = Ledger(), [np.zeros((0, 2), np.float32)]
    parts = [Boxes(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))]
    if not len(items):
        return ReadBoxes(parts[0], items, stated[0], ledger)
    if storage is None:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {catalog.display_name} holds no XMLs")
    numbers = {name: number for number, name in enumerate(catalog.classes)}
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    tasks = ([catalog.annotation(item) for item in chunk.tolist()] for chunk in chunks)
    read = partial(read_objects, storage, catalog.annotation_format, len(numbers))
    processes = usable_cpus() if len(items) > MANY_XMLS else 1
    try:
        chunk_xmls = parallel(read, tasks, processes, __name__)
        for chunk, xmls in zip(chunks, progress(chunk_xmls, len(chunks), "reading boxes", "chunk", show), strict=True):
            sizes = sizes_of(
                np.array([xml.size for xml in xmls], np.float32),
                partial(_real_sizes, storage, catalog.paths, chunk),
                np.array([bool(xml.names) for xml in xmls]),
            )
            stated.append(sizes)
            objects, names = number_classes(xmls, numbers), [name for xml in xmls for name in xml.names]
            for reason, which in left_out(objects, catalog.labels[chunk], sizes).items():
                first = catalog.annotation(int(chunk[objects.images[which[0]]]))
                ledger.add(reason, f'"{names[which[0]]}" in {first}', len(which))
            images, boxes, labels = targets(objects, catalog.labels[chunk], sizes)
            parts.append(Boxes(chunk[images], boxes, labels))
    except (OSError, ValueError, TfpipeError) as error:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {error}; {REMEDY}") from error
    return ReadBoxes(Boxes(*map(np.concatenate, zip(*parts, strict=True))), items, np.concatenate(stated), ledger)


def _real_sizes(storage: Storage, paths: FileList, items: np.ndarray, some: np.ndarray) -> np.ndarray:
    return storage.sizes([paths[item] for item in items[some].tolist()])


def read_objects(storage: Storage, form: str, classes: int, paths: list[str]) -> list[Objects]:
    """Reads annotations as parse_annotation does; one that is missing, if it may be, counts as one without objects.

    Raises OSError, ValueError or TfpipeError if one cannot be read, or is no annotation; the message names it.
    """
    texts = zip(storage.contents(paths), paths, strict=True)
    nothing = Objects([], [], [1.0, 1.0])
    return [nothing if text is None else parse_annotation(text, path, form, classes) for text, path in texts]
