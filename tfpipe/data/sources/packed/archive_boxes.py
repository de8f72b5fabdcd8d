"""Boxes that lie next to an archive: a tar file of XMLs such as ILSVRC2012_bbox_train_v2.tar.gz, or a box table.

They are read once, and stored (catalog/table.py).
"""

import gzip
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from tfpipe.data.annotations.cleaning import Annotated, is_stated, left_out, numbered, targets
from tfpipe.data.annotations.voc import find_objects
from tfpipe.data.catalog.box_tables import find_images, read_box_table
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, boxes_columns, table_boxes
from tfpipe.data.catalog.types import Index
from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.data.sources.packed.members import Member, read_member, tar_members
from tfpipe.data.sources.packed.scan import THREADS, ScannedRows
from tfpipe.data.sources.packed.shards import COPY_AGAIN, Shards
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

GZIP = (".tar.gz", ".tgz")
XMLS = (".tar", *GZIP)
# XMLs that one call parses; bytes of an archive from which several processes parse them, which take a second to start.
CHUNK, MANY_BYTES = 1024, 2**20
# Bytes of an archive in memory: each header is looked at twice, for which gzip would begin again.
BUFFER_BYTES = 2**20


class Objects(NamedTuple):
    """The objects of n images."""

    objects: Annotated  # in the order of the images
    annotated: np.ndarray  # bool [n]: the images that have an XML, or a row
    sizes: np.ndarray  # float32 [n, 2]: heights and widths that the boxes are divided by; 0 if not stated


def load_box_file(
    file: Path, images: ScannedRows, labels: np.ndarray, classes: Sequence[str], store: TableStore
) -> Index:
    """Returns which images the file of boxes knows, and the boxes to crop; every rank must call.

    The file's entries go by the images' base names without extension. `labels` (int32 [n]) are the images' classes, or
    BY_OBJECT; `store` is of the archives and the file. Sizes of images that the file does not state are read from the
    images. Raises ConfigError if the file cannot be read or is damaged, or an entry may be of several images.
    """
    paths, shards = FileList.of(images.rows.names), images.as_shards(labels)

    def make(world: World) -> StoredTable:
        objects, annotated, sizes = world.from_rank0(lambda: _read(file, paths, labels, classes))
        unsized = np.unique(objects.images)
        unsized = unsized[~is_stated(sizes[unsized])]
        if unsized.size:
            show = world.rank == 0
            sizes[unsized] = world.share(unsized.tolist(), lambda mine: _measured(shards, paths, mine, show=show))
        sizes = np.maximum(sizes, 1)
        kinds = left_out(objects, labels, sizes).items()
        counts = {reason: (len(which), paths[int(objects.images[which[0]])]) for reason, which in kinds}
        boxes = targets(objects, labels, sizes)
        return StoredTable({"left_out": counts}, {"annotated": annotated, **boxes_columns(boxes, len(paths))})

    digest = hashlib.sha256(np.ascontiguousarray(labels).data).hexdigest()
    settings = {"the images": paths.digest, "the classes": list(classes), "the labels": digest, "columns": 2}
    table = store.table("objects", settings, make, shared=True)
    assert table is not None, "boxes are always read"
    return Index(table.columns["annotated"], table_boxes(table), left_out=table.values["left_out"])


def _read(file: Path, paths: FileList, labels: np.ndarray, classes: Sequence[str]) -> Objects:
    if file.name.lower().endswith(XMLS):
        return read_xmls(file, paths, classes)
    table = read_box_table(file, paths, labels, classes)
    annotated = np.bincount(table.images, minlength=len(paths)) > 0
    sizes = np.full((len(paths), 2), 1 if table.relative else 0, np.float32)
    return Objects(Annotated(table.images, table.boxes, table.classes), annotated, sizes)


def read_xmls(file: Path, paths: FileList, classes: Sequence[str]) -> Objects:
    """Reads the XMLs in a tar file, plain or compressed by gzip, and in such files within it.

    Logs how many are of none of the images `paths`. Raises ConfigError that names the file, and the XML, if it is cut
    off or damaged, an XML is no annotation, or two XMLs are of one image, or one may be of several.
    """
    try:
        stems, objects, sizes = _parsed_members(file, classes)
    except (OSError, EOFError) as error:  # gzip's are these
        raise ConfigError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}; {COPY_AGAIN}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    if not stems:
        raise ConfigError(f"{file} holds no XML; accepted: a tar file of XMLs, or a box table, *.csv")
    items = find_images(file, np.array([stem.encode() for stem in stems]), paths, "XMLs")
    known = items[items >= 0]
    images, counts = np.unique(known, return_counts=True)
    for item in images[counts > 1].tolist():
        raise ConfigError(f"{file} holds several XMLs of {paths[item]}: take all but one out")
    stated = np.zeros((len(paths), 2), np.float32)
    stated[known] = sizes[items >= 0]
    owners = items[objects.images]
    order = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
    annotated = np.zeros(len(paths), bool)
    annotated[known] = True
    return Objects(Annotated(owners[order], objects.boxes[order], objects.classes[order]), annotated, stated)


@retried
def _parsed_members(file: Path, classes: Sequence[str]) -> tuple[list[str], Annotated, np.ndarray]:
    """Returns the XMLs' base names without extension, their objects, and the sizes that they state; see parse."""
    work = partial(parse, classes={name: number for number, name in enumerate(classes)})
    with file.open("rb") as stream:
        processes = len(os.sched_getaffinity(0)) if file.stat().st_size > MANY_BYTES else 1
        members = _xmls(stream, file.name)
        chunks = iter(lambda: list(islice(members, CHUNK)), [])
        results = parallel(work, chunks, processes, __name__)
        parts = list(progress(results, None, f"reading boxes of {file.name}", f"{CHUNK} XMLs"))
    names = [name.rpartition("/")[2][:-4] for part, _, _ in parts for name in part]
    starts = np.cumsum([0, *(len(part) for part, _, _ in parts)])
    nothing = Annotated(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    found = [part._replace(images=part.images + start) for (_, part, _), start in zip(parts, starts, strict=False)]
    objects = Annotated(*map(np.concatenate, zip(nothing, *found, strict=True)))
    return names, objects, np.concatenate([np.zeros((0, 2), np.float32), *(sizes for _, _, sizes in parts)])


def parse(members: list[tuple[str, bytes]], classes: dict[str, int]) -> tuple[list[str], Annotated, np.ndarray]:
    """Returns the names of n XMLs, their objects, and the heights and widths that they state, float32 [n, 2].

    Raises ValueError that names the XML if one is no annotation.
    """
    xmls = [find_objects(contents, name) for name, contents in members]
    return [name for name, _ in members], numbered(xmls, classes), np.array([xml.size for xml in xmls], np.float32)


def _xmls(stream: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the contents of each XML in a tar file, also in tar files within it.

    Raises ValueError if one is damaged or cut off; gzip raises EOFError or OSError.
    """
    if name.lower().endswith(GZIP):
        stream = io.BufferedReader(gzip.GzipFile(fileobj=stream), BUFFER_BYTES)
    for member in tar_members(stream, 0, sys.maxsize, Ledger()):
        base = member.name.rpartition("/")[2].lower()
        if base.endswith(".xml") and not base.startswith("."):
            yield member.name, read_member(stream, member)
        elif base.endswith(XMLS) and not base.startswith("."):
            yield from _xmls(io.BytesIO(read_member(stream, member)), member.name)


def _measured(shards: Shards, paths: FileList, items: Sequence[int], *, show: bool) -> list[tuple[int, int]]:
    """Returns the heights and widths of images, from the starts of their files; raises ConfigError."""

    def measure(item: int) -> tuple[int, int]:
        ((shard, offset, length),) = shards.places(np.array([item]))
        name = paths[item]
        try:
            with open(shards.paths[shard], "rb") as file:
                is_deflated = shards.deflated is not None and shards.deflated.sizes[item] > 0
                start = b"" if is_deflated else read_member(file, Member(name, offset, min(length, START)))
            header = jpeg_header(start) or header_of(shards.whole(item, shards.contents(item)), name)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} has boxes in pixels, and its size cannot be read from it: {error}") from error
        return header.height, header.width

    with ThreadPoolExecutor(THREADS) as pool:
        return list(progress(pool.map(measure, items), len(items), "reading sizes", "image", show))
