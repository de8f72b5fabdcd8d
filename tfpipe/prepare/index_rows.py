"""Makes rows of the annotation index from XMLs and image headers, in many processes and without TensorFlow."""

from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tfpipe.config import Remote
from tfpipe.data.annotations.cleaning import ImageObjects, class_numbers, is_stated, odd_objects, sizes_of, targets
from tfpipe.data.annotations.formats import FORMATS, parse_annotation
from tfpipe.data.annotations.objects import NOTHING, Objects
from tfpipe.data.catalog.index import ODD, SCHEMA, STAMPS, box_columns, lists_of
from tfpipe.data.images.headers import START, Header, check_turned, jpeg_header, pillow_header, read_header
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError
from tfpipe.util.files import read_whole


class Images(NamedTuple):
    """A chunk of a list's images, to be read."""

    paths: list[str]
    annotations: list[str]  # paths of their XMLs; "" for an image without one
    labels: np.ndarray  # int32 [n]: class numbers, or BY_OBJECT
    objects: ImageObjects | None = None  # their objects from a box file; None to read the XMLs
    relative: bool = False  # True if the boxes in `known` are relative to the images' sizes instead of in pixels
    remote: Remote | None = None  # options for fetching them if the paths are URLs; None for files
    form: str = "voc"  # format of the annotations
    turn: bool = False  # whether EXIF turns the images


class RawAnnotations:
    """Content of headers and XMLs in the order of reading, as plain values in a few flat lists.

    With one object per file, the garbage collector would scan all of them repeatedly, a tenth of the total time.
    """

    def __init__(self) -> None:
        self.headers: list[Any] = []  # height, width, components, format and orientation of each image
        self.names: list[str | int] = []  # class name, or number, of each object
        self.edges: list[float] = []  # ymin, xmin, ymax, xmax of each object, in pixels, as annotated
        self.counts: list[int] = []  # number of objects of each image
        self.sizes: list[float] = []  # height and width of each image as its annotation states them; 0 if not stated
        self.stamps: list[int | None] = []  # values of index.STAMPS for each image; empty if they are not wanted

    def add(self, header: Header, objects: Objects) -> None:
        """Appends the next image's header and annotation: NOTHING if it has none."""
        self.headers += header
        self.names += objects.names
        self.edges += objects.edges
        self.counts.append(len(objects.names))
        self.sizes += objects.size


class IndexRows(NamedTuple):
    """Result of reading a chunk."""

    table: pa.Table | None  # rows in index.SCHEMA; None if any file could not be read
    errors: list[str]  # one message per file that could not be read


def read_rows(images: Images, classes: dict[str, int]) -> IndexRows:
    """Reads each XML and header once and makes their rows; `classes` maps class names to numbers."""
    if images.remote is not None:
        return _fetch_rows(images, images.remote, classes)
    content, errors = RawAnnotations(), []
    for path, annotation in zip(images.paths, images.annotations, strict=True):
        try:
            header, xml = read_header(path, content.stamps).turned(images.turn), NOTHING
            if annotation:
                xml = parse_annotation(read_whole(annotation, content.stamps), annotation, images.form, len(classes))
                check_turned(xml.size, header[:2], annotation, header.orientation > 4)
            else:
                content.stamps += [None, None]
            content.add(header, xml)
        except (OSError, ValueError) as error:
            errors.append(str(error))
    return IndexRows(None, errors) if errors else IndexRows(tabulate(images, content, classes), [])


def _fetch_rows(images: Images, remote: Remote, classes: dict[str, int]) -> IndexRows:
    """Makes the rows from URLs: fetches an image's first bytes, and the whole image only if they lack its size."""
    fetcher = Fetcher(remote, images.paths)
    texts = fetcher.fetch(images.annotations)
    starts = fetcher.starts(images.paths, START)
    headers = [None if isinstance(start, FetchError) else jpeg_header(start) for start in starts]
    contents = iter(fetcher.fetch([path for path, header in zip(images.paths, headers, strict=True) if header is None]))
    fetcher.close()
    content, errors = RawAnnotations(), []
    for path, header, annotation, text in zip(images.paths, headers, images.annotations, texts, strict=True):
        try:
            header = (header or pillow_header(BytesIO(_check_fetched(next(contents))), path)).turned(images.turn)
            xml = NOTHING
            if text is not None:
                xml = parse_annotation(_check_fetched(text), annotation, images.form, len(classes))
                check_turned(xml.size, header[:2], annotation, header.orientation > 4)
            content.add(header, xml)
        except (FetchError, OSError, ValueError) as error:
            errors.append(str(error))
    if errors:
        return IndexRows(None, errors)
    existing = ["" if text is None else url for url, text in zip(images.annotations, texts, strict=True)]
    return IndexRows(tabulate(images._replace(annotations=existing), content, classes), [])


def _check_fetched(contents: bytes | FetchError | None) -> bytes:
    if isinstance(contents, FetchError):
        raise contents
    return contents or b""


def tabulate(images: Images, content: RawAnnotations, classes: dict[str, int]) -> pa.Table:
    """Returns a table in index.SCHEMA with one row per image.

    `content` holds the images' headers and annotations; `classes` maps class names to numbers.
    """
    heights, widths, components, formats = (content.headers[column :: len(Header._fields)] for column in range(4))
    real = np.array([heights, widths], np.float32).T
    if images.objects is None:
        owners = np.repeat(np.arange(len(real)), np.array(content.counts, np.int64))
        edges = np.array(content.edges, np.float32).reshape(-1, 4)
        objects = ImageObjects(owners, edges, class_numbers(content.names, classes))
        stated = np.array(content.sizes, np.float32).reshape(-1, 2)
        sizes = sizes_of(stated, real.__getitem__)
        annotated = np.array([path != "" for path in images.annotations])
    else:
        objects, stated = images.objects, real
        sizes = np.ones_like(real) if images.relative else real
        annotated = np.bincount(objects.images, minlength=len(real)) > 0
    counts = np.bincount(objects.images, minlength=len(real))
    boxes = targets(objects, images.labels, sizes)
    # What relative boxes are divided by is not the image's size.
    states_size = is_stated(stated) & (not FORMATS[images.form].relative)
    odd = {
        "not jpeg": np.array(formats) != "JPEG",
        "gray": np.array(components) < 3,  # with alpha two
        "cmyk": (np.array(components) == 4) & (np.array(formats) == "JPEG"),  # a PNG's fourth component is alpha
        "no object": annotated & (counts == 0),
        "no size": annotated & ~is_stated(stated),
        "size differs": states_size & (stated != real).any(axis=1),
        **{
            code: np.bincount(objects.images[which], minlength=len(real)) > 0
            for code, which in odd_objects(objects, images.labels, sizes).items()
        },
    }
    # From [n, len(ODD)], np.nonzero goes row by row, so the anomalies come sorted by image.
    row, code = np.nonzero(np.stack([odd[name] for name in ODD], axis=1))
    stamps = content.stamps or [None] * len(STAMPS) * len(real)
    columns = {
        "path": images.paths,
        "label": images.labels,
        "width": widths,
        "height": heights,
        "components": components,
        "format": formats,
        "annotated": annotated,
        **box_columns(boxes, len(real)),
        "odd": lists_of(row, pa.array(np.array(list(ODD), object)[code], pa.string()), len(real)),
        **{name: stamps[column :: len(STAMPS)] for column, name in enumerate(STAMPS)},
    }
    return pa.table(columns, schema=SCHEMA)
