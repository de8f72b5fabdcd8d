"""Tables as a source: files of columns with a path or the bytes, the label and perhaps boxes of each image."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np

from tfpipe.config import SourceConfig
from tfpipe.data.catalog.filelist import check_urls
from tfpipe.data.catalog.paths import FileList, is_url
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.files import kind_of, storage_of
from tfpipe.data.sources.known import NEITHER, Known, check_files, check_split, files_of, known_catalog, not_used
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.packed.stored import ShardSplit
from tfpipe.data.sources.rows import Rows, classes_of, targets_of
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.sources.tables.columns import read_rows
from tfpipe.data.sources.tables.contents import COPY, locate
from tfpipe.data.sources.tables.formats import FORMATS, FURTHER, holds_bytes
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.progress import progress

logger = logging.getLogger(__name__)

# Images whose sizes are read by one call, and the calls at once: they wait for storage.
SIZES_TOGETHER, SIZE_CALLS = 64, 16


class Table(BaseSource):
    """Images that a table names, or holds."""

    refused: ClassVar[dict[str, str]] = {
        **BaseSource.refused,
        "index": "data.source names a table, which has the boxes: it needs no index",
    }
    suffixes: ClassVar[tuple[str, ...]] = tuple(FORMATS)

    @property
    def about(self) -> SourceConfig:
        """Settings of the source."""
        assert self.config.source is not None and self.config.source.path is not None, "the config is checked"
        return self.config.source

    @property
    def display_name(self) -> str:
        return str(self.about.path)

    def has_test(self) -> bool:
        return bool(self.tables("test"))

    def check(self, test: bool = False) -> None:
        for split in ("train", "test") if test and self.about.test_path is not None else ("train",):
            self._check_split(split)

    def _check_split(self, split: str) -> None:
        expected = f"a file, or a folder of them, that ends with {' or '.join(self.suffixes)}"
        check_files(self.tables(split), self.about, split, "table", expected)

    def tables(self, split: str) -> list[Path]:
        """Returns the files of a split."""
        paths = files_of(self.about, split, self.suffixes, COPY)
        # Notes next to a table are no table.
        return [path for path in paths if path.suffix.lower() not in FURTHER] or paths

    def open(self, split: str, world: World) -> Split:
        check_split(split)
        self._check_split("train")
        self._check_split(split)
        tables, columns = self.tables(split), self.about.columns
        stored = world.from_rank0(lambda: self.stored(tables))
        rows = train = world.from_rank0(lambda: self.rows(split, stored))
        if split == "test" and self.config.classes is None:
            # The class table is that of the training data, whatever numbers the test data has.
            train = world.from_rank0(lambda: self.rows("train", self.stored(self.tables("train"))))
        paths = FileList.of(rows.names)
        if not stored:
            check_urls(paths, self.display_name, "image")
        shards = locate(tables, columns.bytes, self.config, world) if stored else None
        if len(rows.boxes):
            unit = "relative to the images' sizes" if rows.sizes is None else "in pixels"
            logger.info("%s: the boxes of the %s data are %s", tables[0], split, unit)
        if rows.unsized.size:
            rows = rows._replace(sizes=world.from_rank0(lambda: self._measured(rows, shards, world)))
        place = str(tables[0].parent if len(tables) > 1 else tables[0])
        classes = classes_of(self.config, train, self.display_name)
        labels, boxes = targets_of(self.config, rows, classes, place)
        left_out = not_used(self.tables(NEITHER) if split == "train" else [])
        known = Known(paths, labels, classes, boxes, rows.annotated, rows.weights, left_out)
        catalog = known_catalog(self.config, split, self.display_name, known, show=world.rank == 0)
        if shards is not None:
            return ShardSplit(self.config, catalog, world, shards)
        return kind_of(catalog.paths)(self.config, catalog, world)

    def stored(self, tables: list[Path]) -> bool:
        """Returns whether the tables hold the images' bytes.

        Raises ConfigError if a table cannot be read, or only some hold them.
        """
        holding = [path for path in tables if holds_bytes(path, self.about.columns.bytes)]
        if holding and len(holding) < len(tables):
            other = next(path for path in tables if path not in holding)
            raise ConfigError(
                f'data.source: {holding[0]} holds images in the column "{self.about.columns.bytes}", and {other} does '
                "not: make all tables hold the images, or their paths"
            )
        return bool(holding)

    def _measured(self, rows: Rows, shards: Shards | None, world: World) -> np.ndarray:
        """Returns the sizes of the images, with those that the table lacks read from the images' headers.

        Raises ConfigError if one cannot be read; the message names its row.
        """
        assert rows.sizes is not None, "only boxes in pixels need sizes"
        sizes = rows.sizes.copy()
        storage = storage_of(self.config, FileList.of(rows.names)) if shards is None else None

        def measure(items: np.ndarray) -> None:
            try:
                if shards is not None:
                    files = [shards.contents(item) for item in items.tolist()]
                    measured = [header_of(file, rows.origin(item))[:2] for file, item in zip(files, items, strict=True)]
                    sizes[items] = np.array(measured, np.float32)
                elif storage is not None:
                    sizes[items] = storage.sizes([rows.names[item] for item in items.tolist()])
            except (OSError, ValueError, TfpipeError) as error:
                if len(items) > 1:
                    for item in items:
                        measure(items[items == item])
                raise ConfigError(
                    f"{rows.origin(int(items[0]))} has boxes in pixels but no width and height, and its size cannot "
                    f"be read from the image: {error}"
                ) from error

        parts = [rows.unsized[start : start + SIZES_TOGETHER] for start in range(0, rows.unsized.size, SIZES_TOGETHER)]
        with ThreadPoolExecutor(SIZE_CALLS) as pool:
            for _ in progress(pool.map(measure, parts), len(parts), "reading sizes", "part", world.rank == 0):
                pass
        return sizes

    def rows(self, split: str, stored: bool) -> Rows:
        """Reads the rows of a split, with complete paths; raises ConfigError if they cannot be read."""
        tables = self.tables(split)
        rows = read_rows(tables, self.about.columns, stored, self.config.label_source == "object")
        return self.with_paths(rows, split, tables[0], stored)

    def with_paths(self, rows: Rows, split: str, table: Path, stored: bool) -> Rows:
        """Makes the paths complete: relative ones are relative to `images`, or to the table's folder."""
        source = self.about
        images = source.test_images if split == "test" and source.test_images is not None else source.images
        base = str(images or table.parent)
        if stored:
            return rows
        return rows._replace(names=[name if is_url(name) else os.path.join(base, name) for name in rows.names])
