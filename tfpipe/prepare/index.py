"""Builds the annotation index in parallel over processes and ranks, or compares it with the files it was made of.

An interrupted build can be continued.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import ImageObjects
from tfpipe.data.annotations.formats import FORMATS
from tfpipe.data.catalog.box_tables import BoxTable, read_box_table
from tfpipe.data.catalog.class_folders import SCAN_THREADS
from tfpipe.data.catalog.filelist import index_path, read_filelist
from tfpipe.data.catalog.index import FINGERPRINT, MAKE, SCHEMA, STAMPS, index_fingerprint
from tfpipe.data.catalog.layout import annotation_name, find_layout
from tfpipe.data.catalog.load import may_have_annotations
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.prepare import parts
from tfpipe.prepare.index_rows import Images, IndexRows, read_rows
from tfpipe.prepare.parts import MAX_ERRORS, ImageParts
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import Stamp, stamp
from tfpipe.util.pools import parallel
from tfpipe.util.process import without_log
from tfpipe.util.progress import progress

# Images per task of a process, and per row group of the file; constant, so that the file does not depend on the ranks.
CHUNK = 1_000
ROW_GROUP = 20_000
# The crops for which training would use the index.
PLAIN = {"crop": "boxes", "test_crop": "boxes", "unit": "image", "scope": "global"}


class IndexSummary(NamedTuple):
    """Statistics of an index."""

    path: Path
    images: int
    annotated: int
    boxes: int
    odd: dict[str, int]  # number of images by anomaly, a key of index.ODD; most frequent first


def build_index(config: DataConfig, split: str, world: World, processes: int | None = None) -> IndexSummary:
    """Writes the index of `split` atomically; returns its statistics.

    The ranks share the parts. Parts that an interrupted build of the same index finished are reused. Rank 0 holds a
    lock, so that two builds never write the same index. `config` gives the lists, labels, and XMLs or a box file; how
    images are cropped is ignored. `processes` are those of this rank; None for one per CPU that it may use. Raises
    ConfigError if XMLs or images cannot be read (the message names up to 20), the box file cannot be read, or the index
    cannot be written or is being built by another process.
    """
    check_indexed(config, split, world)
    box_file = config.box_file_for(split)
    config = config.model_copy(update=PLAIN | config.targets.unread)
    xmls = {"annotations": "xml" if box_file is None else "none"}
    loaded = load_split(config.model_copy(update=xmls), split, world)
    loaded = replace(loaded, catalog=replace(loaded.catalog, classes=loaded.object_classes))
    catalog = loaded.catalog
    table = None
    if box_file is not None:
        table = world.from_rank0(lambda: read_box_table(box_file, catalog.paths, catalog.labels, catalog.classes))
    source = box_file or find_layout(config.layout, catalog.paths)
    key = index_fingerprint(catalog.paths, catalog.classes, catalog.labels, source, config.turn)
    target = index_path(config, config.filelist_for(split))
    summary = IndexParts(loaded, target, key, CHUNK, processes, table).run()
    # Leaves the files that every rank of a training maps (catalog/table.py); what it would log has been logged.
    with without_log():
        load_split(config.model_copy(update={"annotations": "index"}), split, world)
    return summary


def check_indexed(config: DataConfig, split: str, world: World) -> None:
    """Raises ConfigError if the images of `split` have no boxes that an index could hold; every rank must call."""
    source = open_source(config)
    source.check_use("index")
    source.check(split == "test")
    filelist = config.filelist_for(split)
    if not isinstance(filelist, Path) or not filelist.is_dir():
        return
    paths = world.from_rank0(lambda: read_filelist(filelist))
    if not may_have_annotations(config, split, paths):
        raise ConfigError(
            f"{filelist} is a folder of images in no known layout, so it has no XML and needs no index: train from it "
            'as it is; if there are XMLs, set data.layout to {"images": FOLDER, "annotations": FOLDER}'
        )


@dataclass(frozen=True)
class IndexParts(ImageParts[IndexSummary]):
    """The parts of an index."""

    boxes: BoxTable | None

    name, task = "index", "building this index"
    suffix = ".arrow"

    def read(self, chunks: list[range], processes: int) -> Iterator[IndexRows]:
        tasks = (images_of(self.split, self.boxes, chunk) for chunk in chunks)
        classes = {name: number for number, name in enumerate(self.split.classes)}
        return parallel(partial(read_rows, classes=classes), tasks, processes, __name__)

    def write(self, contents: list[pa.Table], path: Path) -> None:
        # Arrow IPC takes a fifth of Parquet's time, in rank 0's process, for which all others wait.
        table, options = pa.concat_tables(contents), pa.ipc.IpcWriteOptions(compression="lz4")
        with atomic_write(path) as unfinished, pa.OSFile(str(unfinished), "wb") as file:
            with pa.ipc.new_file(file, table.schema, options=options) as writer:
                writer.write_table(table)

    def is_current(self, path: Path, items: range) -> bool:
        return not _changes(self.split, _read_part(path), items)

    def merge(self, paths: list[Path]) -> IndexSummary:
        images = annotated = boxes = 0
        odd: Counter[str] = Counter()
        schema = SCHEMA.with_metadata({FINGERPRINT: self.key})
        together = max(1, ROW_GROUP // parts.PART)
        # Dictionary encoding, the default, makes the file larger and half as fast to read: zstd finds the repetitions.
        options = {"compression": "zstd", "use_dictionary": False}
        with atomic_write(self.target) as unfinished, pq.ParquetWriter(unfinished, schema, **options) as writer:
            for start in range(0, len(paths), together):
                tables = map(_read_part, paths[start : start + together])
                table = pa.concat_tables(tables).cast(schema).combine_chunks()
                writer.write_table(table, row_group_size=ROW_GROUP)
                images += len(table)
                annotated += pc.sum(table["annotated"]).as_py()
                boxes += len(table["box_labels"].combine_chunks().flatten())
                odd.update(table["odd"].combine_chunks().flatten().to_pylist())
        return IndexSummary(self.target, images, annotated, boxes, dict(odd.most_common()))


def _read_part(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        return reader.read_all()


def images_of(split: Split, table: BoxTable | None, items: range) -> Images:
    """Returns the images numbered `items` with the paths of their XMLs, or their objects from the box `table`."""
    catalog, part = split.catalog, slice(items.start, items.stop)
    remote, turn = split.config.remote if catalog.paths.remote else None, split.config.turn
    numbers, names = catalog.paths.part(items.start, items.stop)
    paths = [catalog.paths.folders[number] + name for number, name in zip(numbers, names, strict=True)]
    if table is not None:
        low, high = np.searchsorted(table.images, [items.start, items.stop])
        objects = ImageObjects(table.images[low:high] - items.start, table.boxes[low:high], table.classes[low:high])
        return Images(paths, [""] * len(paths), catalog.labels[part], objects, table.relative, remote, turn=turn)
    suffix = FORMATS[catalog.annotation_format].suffix
    annotations = [
        catalog.annotation_folders[number] + annotation_name(name, suffix) if annotated else ""
        for number, name, annotated in zip(numbers, names, catalog.annotated[part].tolist(), strict=True)
    ]
    return Images(paths, annotations, catalog.labels[part], remote=remote, form=catalog.annotation_format, turn=turn)


def verify_index(config: DataConfig, split: str) -> str:
    """Compares the images and XMLs of `split` with its index, without opening them; returns a message for the user.

    Raises TfpipeError if a file is missing, new, or of another size or time of change (the message names up to 20), and
    ConfigError if there is no index of the list, or the index does not hold its files' sizes and times.
    """
    check_indexed(config, split, World())
    loaded = load_split(config.model_copy(update=PLAIN | {"annotations": "index"}), split, World())
    catalog = loaded.catalog
    path, renew = index_path(config, config.filelist_for(split)), f"make it again with: {MAKE} {split}"
    if catalog.paths.remote:
        raise ConfigError(f"{path} is of URLs, whose sizes and times of change it does not hold")
    if not {*STAMPS} <= {*pq.read_schema(path).names}:
        raise ConfigError(f"{path} does not hold the sizes and times of its files: `tfpipe stage` copied it; {renew}")
    # Every XML is looked for, so that a new one is noticed.
    has_folder = np.array([folder != "" for folder in catalog.annotation_folders])
    loaded = replace(loaded, catalog=replace(catalog, annotated=has_folder[catalog.paths.folder]))
    chunks = [range(start, min(start + CHUNK, len(catalog))) for start in range(0, len(catalog), CHUNK)]
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        stamps = pq.read_table(path, columns=list(STAMPS))
        rows = (stamps.slice(items.start, len(items)) for items in chunks)
        changes_by_chunk = pool.map(partial(_changes, loaded), rows, chunks)
        changes = list(chain.from_iterable(progress(changes_by_chunk, len(chunks), f"comparing {split} data", "chunk")))
    if changes:
        count = f"{counted(len(changes), 'file')} of {counted(len(catalog), 'image')} changed since the index was made"
        raise TfpipeError("\n  ".join([f"{path}: {count}; {renew}", *changes[:MAX_ERRORS]]))
    return f"{path}: the files of {counted(len(catalog), 'image')} are as they were indexed"


def _changes(split: Split, rows: pa.Table, items: range) -> list[str]:
    """Returns a message for each image or XML of `items` that differs from the STAMPS in their rows."""
    images = images_of(split, None, items)
    size, changed, xml_size, xml_changed = (rows[name].to_pylist() for name in STAMPS)
    files = zip(images.paths + images.annotations, size + xml_size, changed + xml_changed, strict=True)
    return [_change(path, Stamp(*old), current) for path, *old in files if (current := stamp(path)) != tuple(old)]


def _change(path: str, before: Stamp, current: Stamp) -> str:
    if current.size is None or before.size is None:
        return f"{path} is {'missing' if current.size is None else 'new'}"
    if current.size != before.size:
        return f"{path} has {current.size} bytes, had {before.size}"
    return f"{path} has another time of change"
