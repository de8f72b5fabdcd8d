"""Rows of the annotation index: what the XMLs and headers of some images say; without TensorFlow, in many processes."""

from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tfpipe.config import Remote
from tfpipe.data.catalog import WHOLE_IMAGE, Boxes
from tfpipe.data.files import read_whole
from tfpipe.data.headers import START, Header, jpeg_header, pillow_header, read_header
from tfpipe.data.index import ODD, SCHEMA
from tfpipe.data.labels import BY_OBJECT
from tfpipe.data.remote import Fetcher, FetchError
from tfpipe.data.voc import Found, find_objects


class Annotated(NamedTuple):
    """The objects of some images, one after the other."""

    images: np.ndarray  # int64 [k]: number of the object's image
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    classes: np.ndarray  # int32 [k]: number of its class, -1 where its name is none


class Images(NamedTuple):
    """Some images of a list, to be read."""

    paths: list[str]
    annotations: list[str]
    """Paths of their XMLs, "" where there is none."""
    labels: np.ndarray
    """int32: class number, or BY_OBJECT."""
    known: Annotated | None = None
    """Their objects as a table has them, in the XMLs' place."""
    relative: bool = False
    """Whether the boxes of these are relative to the images' sizes, instead of in pixels."""
    remote: Remote | None = None
    """How to fetch them, where the paths are URLs."""


class Said:
    """What headers and XMLs say, in turn: plain values in a few lists.

    An object kept of each file would have the garbage collector look at them again and again, a tenth of all the work.
    """

    def __init__(self) -> None:
        self.headers: list[Any] = []
        """Height, width, components and format of each image."""
        self.names: list[str] = []
        """Of the objects."""
        self.edges: list[float] = []
        """ymin, xmin, ymax, xmax of each object, in pixels, as annotated."""
        self.counts: list[int] = []
        """How many objects each XML has."""
        self.sizes: list[float] = []
        """Height and width of the image as each XML states them; 0 where it does not."""

    def add_header(self, header: Header) -> None:
        """What the next image's header says."""
        self.headers += header

    def add_objects(self, found: Found) -> None:
        """What the XML says of the next image that has one."""
        self.names += found.names
        self.edges += found.edges
        self.counts.append(len(found.names))
        self.sizes += found.size


class Rows(NamedTuple):
    """What was read."""

    table: pa.Table | None
    """Of index.SCHEMA; None if anything could not be read."""
    errors: list[str]
    """What could not be read, and why; names each file."""


def read_rows(images: Images, classes: dict[str, int]) -> Rows:
    """Reads each XML and header once; `classes` are the classes' numbers."""
    if images.remote is not None:
        return _fetch_rows(images, images.remote, classes)
    said, errors = Said(), []
    for path, annotation in zip(images.paths, images.annotations, strict=True):
        try:
            said.add_header(read_header(path))
            if annotation:
                said.add_objects(find_objects(read_whole(annotation), annotation))
        except (OSError, ValueError) as error:
            errors.append(str(error))
    return Rows(None, errors) if errors else Rows(tabulate(images, said, classes), [])


def _fetch_rows(images: Images, remote: Remote, classes: dict[str, int]) -> Rows:
    """The same from URLs: the start of each image alone, unless that does not tell its size."""
    fetcher = Fetcher(remote, images.paths)
    texts = fetcher.fetch(images.annotations)
    starts = fetcher.starts(images.paths, START)
    known = [None if isinstance(start, FetchError) else jpeg_header(start) for start in starts]
    whole = iter(fetcher.fetch([path for path, header in zip(images.paths, known, strict=True) if header is None]))
    fetcher.close()
    said, errors = Said(), []
    for path, header, annotation, text in zip(images.paths, known, images.annotations, texts, strict=True):
        try:
            said.add_header(header or pillow_header(BytesIO(_fetched(next(whole))), path))
            if text is not None:
                said.add_objects(find_objects(_fetched(text), annotation))
        except (FetchError, OSError, ValueError) as error:
            errors.append(str(error))
    if errors:
        return Rows(None, errors)
    there = ["" if text is None else url for url, text in zip(images.annotations, texts, strict=True)]
    return Rows(tabulate(images._replace(annotations=there), said, classes), [])


def _fetched(contents: bytes | FetchError | None) -> bytes:
    if isinstance(contents, FetchError):
        raise contents
    return contents or b""


def targets(objects: Annotated, labels: np.ndarray, sizes: np.ndarray) -> Boxes:
    """The same as crops.find_targets, for many images at once.

    Args:
        objects: of all the images.
        labels: int32 [n] of the images; all BY_OBJECT or none.
        sizes: float32 [n, 2]: height and width that the boxes are relative to, at least 1.
    """
    images, boxes, classes = objects
    low, high = _clamped(boxes, sizes[images])
    relative = np.concatenate([low / sizes[images], high / sizes[images]], axis=1)
    kept = (high > low).all(axis=1)
    if (labels == BY_OBJECT).any():
        kept &= classes >= 0
        return Boxes(images[kept].astype(np.int32), relative[kept], classes[kept])
    kept &= (classes < 0) | (classes == labels[images])
    without = np.flatnonzero(np.bincount(images[kept], minlength=len(labels)) == 0)
    images = np.concatenate([images[kept], without])
    boxes = np.concatenate([relative[kept], np.repeat(WHOLE_IMAGE, len(without), axis=0)])
    order = np.argsort(images, kind="stable")
    return Boxes(images[order].astype(np.int32), boxes[order], labels[images[order]])


def _clamped(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [k, 2] each: the lower and the higher edges, within the image."""
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.clip(low, 0, sizes), np.clip(high, 0, sizes)


def tabulate(images: Images, said: Said, classes: dict[str, int]) -> pa.Table:
    """index.SCHEMA's rows, one an image.

    Args:
        images: n of them.
        said: what their headers say, and the XMLs of those that have one.
        classes: the classes' numbers, by name.
    """
    heights, widths, components, formats = (said.headers[column :: len(Header._fields)] for column in range(4))
    real = np.array([heights, widths], np.float32).T
    if images.known is None:
        annotated, counts, objects, stated = _from_xmls(images, said, classes)
        is_stated = np.all(stated >= 1, axis=1)
        sizes = np.where(is_stated[:, None], stated, real)
    else:
        objects, stated, is_stated = images.known, real, np.ones(len(real), bool)
        counts = np.bincount(objects.images, minlength=len(real))
        annotated = counts > 0
        sizes = np.ones_like(real) if images.relative else real
    boxes = targets(objects, images.labels, sizes)
    odd = {
        "not jpeg": np.array(formats) != "JPEG",
        "gray": np.array(components) == 1,
        "cmyk": (np.array(components) == 4) & (np.array(formats) == "JPEG"),  # a PNG's fourth is alpha
        "no object": annotated & (counts == 0),
        "no size": annotated & ~is_stated,
        "size differs": is_stated & (stated != real).any(axis=1),
        **_odd_objects(objects, images.labels, sizes),
    }
    # [n, len(ODD)]: read row by row, it gives each image's in turn.
    row, code = np.nonzero(np.stack([odd[name] for name in ODD], axis=1))
    columns = {
        "path": images.paths,
        "label": images.labels,
        "width": widths,
        "height": heights,
        "components": components,
        "format": formats,
        "annotated": annotated,
        "boxes": _lists(boxes.images, pa.FixedSizeListArray.from_arrays(boxes.boxes.ravel(), 4), len(real)),
        "box_labels": _lists(boxes.images, pa.array(boxes.labels), len(real)),
        "odd": _lists(row, pa.array(np.array(list(ODD), object)[code], pa.string()), len(real)),
    }
    return pa.table(columns, schema=SCHEMA)


def _from_xmls(
    images: Images, said: Said, classes: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, Annotated, np.ndarray]:
    """Which images have an XML, how many objects each has, the objects, and float32 [n, 2] the stated sizes or 0."""
    annotated = np.array([path != "" for path in images.annotations])
    counts = np.zeros(len(annotated), np.int64)
    counts[annotated] = said.counts
    stated = np.zeros((len(annotated), 2), np.float32)
    stated[annotated] = np.array(said.sizes, np.float32).reshape(-1, 2)
    objects = Annotated(
        np.repeat(np.arange(len(annotated)), counts),
        np.array(said.edges, np.float32).reshape(-1, 4),
        np.array([classes.get(name, -1) for name in said.names], np.int32),
    )
    return annotated, counts, objects, stated


def _odd_objects(objects: Annotated, labels: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """bool [n] by code: which images have an object that is odd so."""
    images, boxes, classes = objects
    low, high = _clamped(boxes, sizes[images])
    outside = (boxes < 0) | (boxes > np.tile(sizes[images], 2))
    other = (classes >= 0) & (classes != labels[images]) & (labels[images] != BY_OBJECT)
    odd = {
        "box swapped": (boxes[:, :2] > boxes[:, 2:]).any(axis=1),
        "box out of range": outside.any(axis=1),
        "box empty": ~(high > low).all(axis=1),
        "class unknown": classes < 0,
        "class differs": other,
    }
    return {code: np.bincount(images[which], minlength=len(labels)) > 0 for code, which in odd.items()}


def _lists(rows: np.ndarray, values: pa.Array, count: int) -> pa.ListArray:
    """`count` lists of `values`; `rows`, ascending, says which list each is in."""
    offsets = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values)
