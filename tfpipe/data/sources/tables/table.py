"""Tables as a source: files of columns with a path or the bytes, the label and perhaps boxes of each image."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tfpipe.data.catalog.filelist import check_paths
from tfpipe.data.catalog.labels import in_test_share
from tfpipe.data.catalog.paths import FileList, is_url
from tfpipe.data.catalog.types import TextColumn
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.catalogs import apply_settings, catalog_of, classes_of
from tfpipe.data.sources.data_files import DataFiles, FilesOf, check_split
from tfpipe.data.sources.files import kind_of, storage_of
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.packed.stored import ShardSplit
from tfpipe.data.sources.records import OwnSplit
from tfpipe.data.sources.remote.copies import CopiedFiles, local_files
from tfpipe.data.sources.remote.url_path import AnyPath
from tfpipe.data.sources.rows import Rows
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.sources.tables.columns import read_rows, text_columns
from tfpipe.data.sources.tables.contents import locate
from tfpipe.data.sources.tables.formats import FORMATS, FURTHER, PARQUET, holds_bytes, read_table
from tfpipe.data.sources.tables.row_groups import RowGroups, without_bytes
from tfpipe.data.sources.tables.where import Selection
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

logger = logging.getLogger(__name__)


class Table(DataFiles):
    """Images that a table names, or holds."""

    refused: ClassVar[dict[str, str]] = {
        **BaseSource.refused,
        "index": "data.source names a table, which has the boxes: it needs no index",
    }
    noun = "table"
    within = ", data.source.test_share makes some of these, and data.source.where tells the splits' rows apart"
    suffixes: ClassVar[tuple[str, ...]] = tuple(FORMATS)

    @property
    def display_name(self) -> str:
        return str(self.about.path)

    def expected_names(self, split: str) -> str:
        return f"a file, or a folder of them, that ends with {' or '.join(self.suffixes)}"

    def sorted_files(self, split: str) -> FilesOf:
        """Returns the files of training and of test data; with `test_share` none is test data alone."""
        files = super().sorted_files(split)
        if self.about.test_share is None or not files.test:
            return files
        return FilesOf(files.train, [], {**files.left_out, "test data, for which test_share stands": files.test})

    def split_files(self, split: str) -> Sequence[AnyPath]:
        """Returns the files of a split, by their names; without test data, those that have rows of both splits."""
        files = super().split_files(split)
        return super().split_files("train") if not files and self.about.divides_rows else files

    def files(self, split: str) -> Sequence[AnyPath]:
        """Returns the files of a split, which may be behind URLs.

        Raises ConfigError if they have several formats, as copies of the same rows do.
        """
        paths = self.split_files(split)
        tables = [path for path in paths if not path.name.lower().endswith(FURTHER)] or paths
        forms = {os.path.splitext(path.name.lower())[1]: str(path) for path in reversed(tables)}
        if len(tables) > 1 and len(forms) > 1:
            raise ConfigError(
                f"data.source: {' and '.join(sorted(forms.values()))} are tables of the {split} data in several "
                "formats, and each of their images would be used: name one of them in data.source."
                f"{'test_path' if split == 'test' else 'path'}, or write all in one format"
            )
        return tables

    def unused_files(self, split: str) -> Ledger:
        """Returns a ledger with the tables of no split, and files of further endings."""
        ledger, notes = super().unused_files(split), list[AnyPath]()
        for each in ("train", "test") if split == "train" else ("test",):
            if each == split or self.about.test_path is None:
                notes += [path for path in self.split_files(each) if path not in (*self.files(each), *notes)]
        ledger.add_all(f"files that end in {' or '.join(FURTHER)} next to tables of another end", notes)
        return ledger

    def open(self, split: str, world: World) -> Split:
        check_split(split)
        world.from_rank0(lambda: self.require_files("train"))
        paths = world.from_rank0(lambda: self.require_files(split))
        files = self._local(paths, world)
        with files.naming_urls():
            return self._open(split, paths, files, world)

    def _local(self, paths: Sequence[AnyPath], world: World) -> CopiedFiles:
        """Returns the files, or copies of those behind URLs: of Parquet files without images if these are cached."""
        parquet = all(path.name.lower().endswith(PARQUET) for path in paths)
        by_groups = parquet and self.config.remote.cache is not None
        columns = self.about.columns
        parts = without_bytes(text_columns(columns, self.config), columns.bytes) if by_groups else None
        return local_files(paths, self.config, world, parts)

    def _open(self, split: str, paths: Sequence[AnyPath], files: CopiedFiles, world: World) -> Split:
        tables, name = files.paths, str(paths[0].parent if len(paths) > 1 else paths[0])
        stored = world.from_rank0(lambda: self.has_contents(tables))
        rows = train = world.from_rank0(
            lambda: self.with_paths(self.rows(tables, stored, split), split, paths[0], stored)
        )
        if split == "test" and self.config.classes is None:
            train = self._training_rows(world)
        rows = rows._replace(names=FileList.of(rows.names))
        if not stored:
            check_paths(FileList.of(rows.names), self.name_of(split), "image")
        images = self.images(tables, rows, world) if stored and not files.urls else None
        if stored and files.urls:
            images = RowGroups(files, self.about.columns.bytes, rows, self.config, world)
        if len(rows.boxes):
            unit = "relative to the images' sizes" if rows.sizes is None else "in pixels"
            logger.info("%s: the boxes of the %s data are %s", paths[0], split, unit)
        read = partial(self._sizes, rows, images, show=world.rank == 0)
        rows = rows.with_sizes(lambda items: world.from_rank0(lambda: read(items)))
        classes = classes_of(self.config, train, self.display_name)
        catalog = catalog_of(self.config, split, rows, classes, name)
        if split == "train" or self.about.test_path is not None:
            catalog.ledger.update(world.from_rank0(lambda: self.unused_files(split)))
        masks = FileList.of(rows.more["mask"].tolist()) if "mask" in rows.more and not stored else None
        values = {
            name: TextColumn.of(column.tolist()) if column.dtype == object else column
            for name, column in rows.more.items()
            if name != "mask"
        }
        catalog = replace(catalog, masks=masks, values=values, version=files.version, display_name=self.name_of(split))
        catalog = apply_settings(self.config, catalog, show=world.rank == 0)
        if isinstance(images, Shards):
            return ShardSplit(self.config, catalog, world, images)
        if images is not None:
            return OwnSplit(self.config, catalog, world, images.contents, getattr(images, "origin", None))
        return kind_of(catalog.paths)(self.config, catalog, world)

    def _training_rows(self, world: World) -> Rows:
        """Returns those of the training data, whose class table test data has, whatever numbers it has itself."""
        files = self._local(world.from_rank0(lambda: self.require_files("train")), world)
        with files.naming_urls():
            return world.from_rank0(lambda: self.rows(files.paths, self.has_contents(files.paths), "train"))

    def images(self, tables: Sequence[Path], rows: Rows, world: World) -> Any:
        """Locates the images of `rows` that tables hold; the result reads them. Every rank must call."""
        return locate(tables, self.about.columns.bytes, self.config, world, rows)

    def has_contents(self, tables: Sequence[Path]) -> bool:
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

    def _sizes(self, rows: Rows, images: Any, items: list[int], *, show: bool) -> list[Sequence[float]]:
        """Returns heights and widths that the table lacks, from the images' headers; raises ConfigError."""
        storage = storage_of(self.config, FileList.of(rows.names)) if images is None else None

        def sizes_of(items: list[int]) -> Sequence[Sequence[float]]:
            if storage is not None:
                return storage.sizes([rows.names[item] for item in items]).tolist()
            headers = (header_of(images.contents(item), rows.origin(item)) for item in items)
            return [header.turned(self.config.turn)[:2] for header in headers]

        return rows.read_sizes(items, sizes_of, show=show)

    def read(self, path: Path, texts: Sequence[str], images: str) -> pa.Table:
        """Reads the columns of a table as formats.read_table does."""
        return read_table(path, texts, images)

    def rows(self, tables: Sequence[Path], stored: bool, split: str) -> Rows:
        """Reads the rows of a split; raises ConfigError if the tables cannot be read, or it has none."""
        shared = self.about.divides_rows and self.files("test") == self.files("train")
        selection = Selection.of(self.about, split, shared=shared)
        return self.share(read_rows(tables, self.about.columns, stored, self.config, selection, self.read), split)

    def share(self, rows: Rows, split: str) -> Rows:
        """Returns a split's share of rows: with `test_share`, one of each class is test data, and else all are."""
        share = self.about.test_share
        if share is None:
            return rows
        is_test = in_test_share(rows.names, rows.labels.numbers.tolist(), share, self.about.test_seed)
        items = np.flatnonzero(is_test == (split == "test"))
        if not items.size:
            raise ConfigError(f"test_share: {share:g} of each class of {self.display_name} is less than one image")
        # What is left out of both is counted with the training data alone.
        return rows.select(items)._replace(left_out=rows.left_out if split == "train" else {})

    def with_paths(self, rows: Rows, split: str, table: AnyPath, stored: bool) -> Rows:
        """Makes the paths complete: relative ones are relative to `images`, or to the table's folder."""
        source = self.about
        images = source.test_images if split == "test" and source.test_images is not None else source.images
        base = str(images or table.parent)

        def complete(names: Iterable[str]) -> list[str]:
            return [name if is_url(name) else os.path.join(base, name) for name in names]

        form = source.columns.path_format
        if stored and form is not None:
            raise ConfigError(
                f'{table}: data.source.columns.path_format "{form}" is for paths, and the column '
                f'"{source.columns.bytes}" holds the images: leave it out'
            )
        if "mask" in rows.more:
            rows = rows._replace(more={**rows.more, "mask": np.array(complete(rows.more["mask"]), object)})
        names = rows.names if form is None else [form.replace("{}", name) for name in rows.names]
        return rows if stored else rows._replace(names=complete(names))
