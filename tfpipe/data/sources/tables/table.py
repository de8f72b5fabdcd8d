"""Tables as a source: CSV, Parquet or Arrow with a path or the bytes, the label and perhaps boxes of each image."""

import os
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tfpipe.config import SourceConfig
from tfpipe.data.catalog.filelist import check_urls
from tfpipe.data.catalog.paths import FileList, is_url
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.files import Files
from tfpipe.data.sources.known import check_split, files_of, known_catalog
from tfpipe.data.sources.packed.stored import Stored
from tfpipe.data.sources.rows import Rows, classes_of, targets_of
from tfpipe.data.sources.source import REPAIR, Source
from tfpipe.data.sources.tables.columns import SUFFIXES, read_rows
from tfpipe.data.sources.tables.contents import COPY, holds_bytes, locate
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


class Table(Files):
    """Images that a table names, or holds."""

    remedy = REPAIR
    listed = False
    refused: ClassVar[dict[str, str]] = {
        **Source.refused,
        "index": "data.source names a table, which has the boxes: it needs no index",
    }
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    @property
    def about(self) -> SourceConfig:
        """Settings of the source."""
        assert self.config.source is not None and self.config.source.path is not None, "the config is checked"
        return self.config.source

    @property
    def place(self) -> str:
        return str(self.about.path)

    def has_test(self) -> bool:
        return bool(self.tables("test"))

    def check(self, test: bool = False) -> None:
        for split in ("train", "test") if test and self.about.test_path is not None else ("train",):
            self._check_split(split)

    def _check_split(self, split: str) -> None:
        if not self.tables(split):
            place = self.about.test_path if split == "test" and self.about.test_path is not None else self.place
            raise ConfigError(
                f"data.source: there is no {split} table in {place}; expected a file, or a folder of them, that "
                f"ends with {' or '.join(self.suffixes)}"
            )

    def tables(self, split: str) -> list[Path]:
        """Returns the files of a split."""
        return files_of(self.about, split, self.suffixes, COPY)

    def catalog(self, split: str, world: World) -> Catalog:
        check_split(split)
        self._check_split("train")
        self._check_split(split)
        tables, columns = self.tables(split), self.about.columns
        stored = world.from_rank0(lambda: self.stored(tables))
        rows = world.from_rank0(lambda: self.rows(split, stored))
        train = rows
        if split == "test" and self.config.classes is None and rows.classes is None:
            train = world.from_rank0(lambda: self.rows("train", stored))
        classes = classes_of(self.config, train, self.place)
        labels, boxes = targets_of(self.config, rows, classes, self.place)
        paths = FileList.of(rows.names)
        if not stored:
            check_urls(paths, self.place, "image")
        source: Source = self.of(paths)
        if stored:
            source = StoredRows(self.config).of_shards(locate(tables, columns.bytes, self.config, world))
        return known_catalog(source, split, world, paths, classes, labels, boxes, rows.annotated, rows.weights)

    def stored(self, tables: list[Path]) -> bool:
        """Returns whether the tables hold the images' bytes; raises ConfigError if they cannot be read."""
        try:
            return holds_bytes(tables[0], self.about.columns.bytes)
        except (OSError, pa.ArrowInvalid) as error:
            raise ConfigError(f"data.source: cannot read {tables[0]}: {error}") from error

    def rows(self, split: str, stored: bool) -> Rows:
        """Reads the rows of a split, with complete paths; raises ConfigError if they cannot be read."""
        tables = self.tables(split)
        return self.located(read_rows(tables, self.about.columns, stored), split, tables[0], stored)

    def located(self, rows: Rows, split: str, table: Path, stored: bool) -> Rows:
        """Makes the paths complete: relative ones are relative to `images`, or to the table's folder."""
        about = self.about
        images = about.test_images if split == "test" and about.test_images is not None else about.images
        base = str(images or table.parent)
        if stored:
            return rows
        return rows._replace(names=[name if is_url(name) else os.path.join(base, name) for name in rows.names])


class StoredRows(Stored):
    """Images whose bytes are in a column of tables."""

    def load(self, split: str, world: World) -> Catalog:
        return Table(self.config).catalog(split, world)
