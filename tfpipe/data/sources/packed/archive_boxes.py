"""Boxes that lie next to an archive: a tar file of XMLs such as ILSVRC2012_bbox_train_v2.tar.gz, or a box table.

They are read once, and stored (catalog/table.py).
"""

import gzip
import io
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.catalog.box_tables import find_images, read_box_table
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore
from tfpipe.data.sources.packed.members import Member, read_member, tar_members
from tfpipe.data.sources.packed.scan import rows_of
from tfpipe.data.sources.packed.shards import COPY_AGAIN, Shards
from tfpipe.data.sources.rows import Rows, Texts
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress
from tfpipe.util.resources import usable_cpus
from tfpipe.util.retry import retried

GZIP = (".tar.gz", ".tgz")
XMLS = (".tar", *GZIP)
# XMLs that one call parses; bytes of an archive from which several processes parse them, which take a second to start.
CHUNK, MANY_BYTES = 1024, 2**20
# Bytes of an archive in memory: each header is looked at twice, for which gzip would begin again.
BUFFER_BYTES = 2**20


def with_box_file(
    rows: Rows, file: Path, shards: Shards, classes: Sequence[str], config: DataConfig, store: TableStore
) -> Rows:
    """Returns images, which are in `shards`, with the boxes that a file has of them; every rank must call.

    The file's entries go by the images' base names without extension. `store` is of the archives and the file. Sizes of
    images that the file does not state are read from the images. Raises ConfigError if the file cannot be read or is
    damaged, or an entry may be of several images.
    """
    by_object = config.label_source == "object"

    def make(world: World) -> StoredTable:
        read = world.from_rank0(lambda: _read(file, rows, classes, by_object))

        def sizes_of(items: list[int]) -> list[Sequence[float]]:
            return [shards.header(item, rows.names[item]).turned(config.turn)[:2] for item in items]

        measure = partial(rows.read_sizes, real=sizes_of, show=world.rank == 0)
        read = read.with_sizes(lambda items: world.share(items, measure))
        columns = {"images": read.box_images, "boxes": read.boxes, "labels": read.box_labels.numbers}
        columns |= {} if read.sizes is None else {"sizes": read.sizes}
        return StoredTable({"labels": read.box_labels.names}, columns)

    settings = {
        "the images": FileList.of(rows.names).digest,
        "the classes": list(classes),
        "labels of objects": by_object,
        **config.stored_exif,
    }
    table = store.table("objects", {**settings, "columns": 3}, make, shared=True)
    assert table is not None, "boxes are always read"
    images, boxes, numbers = (table.columns[name] for name in ("images", "boxes", "labels"))
    labels = Texts(numbers, table.values["labels"])
    return rows._replace(box_images=images, boxes=boxes, box_labels=labels, sizes=table.columns.get("sizes"))


def _read(file: Path, rows: Rows, classes: Sequence[str], by_object: bool) -> Rows:
    if file.name.lower().endswith(XMLS):
        return read_xmls(file, rows)
    labels = np.full(len(rows.names), BY_OBJECT if by_object else 0, np.int32)
    table = read_box_table(file, FileList.of(rows.names), labels, classes)
    # Without a name they have their image's class.
    numbers = np.full_like(table.classes, -1) if table.relative else table.classes
    texts, sizes = Texts(numbers.astype(np.int32), list(classes)), np.zeros((len(rows.names), 2), np.float32)
    boxed = rows._replace(box_images=table.images, boxes=table.boxes, box_labels=texts)
    return boxed._replace(sizes=None if table.relative else sizes)


def read_xmls(file: Path, rows: Rows) -> Rows:
    """Returns images with the boxes of the XMLs in a tar file, plain or gzipped, and in such files within it.

    Logs how many are of none of the images. Raises ConfigError that names the file, and the XML, if it is cut off or
    damaged, an XML is no annotation, or two XMLs are of one image, or one may be of several.
    """
    try:
        xmls = _parsed_members(file)
    except (OSError, EOFError) as error:  # gzip's are these
        raise ConfigError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}; {COPY_AGAIN}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    if xmls is None:
        raise ConfigError(f"{file} holds no XML; accepted: a tar file of XMLs, or a box table, *.csv")
    stems = np.array([name.rpartition("/")[2][:-4].encode() for name in xmls.names])
    items = find_images(file, stems, FileList.of(rows.names), "XMLs")
    annotated = items[items >= 0]
    images, counts = np.unique(annotated, return_counts=True)
    for item in images[counts > 1].tolist():
        raise ConfigError(f"{file} holds several XMLs of {rows.names[item]}: take all but one out")
    sizes = np.ones((len(rows.names), 2), np.float32)
    assert xmls.sizes is not None, "XMLs have sizes, if only 0"
    sizes[annotated] = xmls.sizes[items >= 0]
    boxed = rows._replace(boxes=xmls.boxes, box_labels=xmls.box_labels, sizes=sizes)
    return boxed.with_owners(items[xmls.box_images])


@retried
def _parsed_members(file: Path) -> Rows | None:
    """Returns the XMLs as rows of their names; None if there is none."""
    with file.open("rb") as stream:
        processes = usable_cpus() if file.stat().st_size > MANY_BYTES else 1
        members = _xmls(stream, file.name)
        chunks = iter(lambda: list(islice(members, CHUNK)), [])
        results = parallel(parse, chunks, processes, __name__)
        parts = list(progress(results, None, f"reading boxes of {file.name}", f"{CHUNK} XMLs"))
    return Rows.concat(parts) if parts else None


def parse(members: list[tuple[str, bytes]]) -> Rows:
    """Returns XMLs, each as an image of its name; raises ValueError that names the XML if one is no annotation."""
    xmls = [parse_annotation(contents, name) for name, contents in members]
    objects = [(number, xml.boxes, xml.names) for number, xml in enumerate(xmls)]
    names = [Member(name, 0, 0) for name, _ in members]
    sizes = np.array([xml.size for xml in xmls], np.float32)
    return rows_of(Path(), names, [None] * len(names), objects, sizes)


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
