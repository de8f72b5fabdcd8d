"""Tables as a source: CSV, Parquet or Arrow with a path or the bytes, the label and perhaps boxes of each image."""

import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tfpipe.config import SourceConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT, Annotated, Boxes, targets
from tfpipe.data.catalog.class_folders import TESTS
from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.paths import REMOTE, FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.files import Files
from tfpipe.data.sources.known import check_split, known_catalog
from tfpipe.data.sources.packed.stored import Stored
from tfpipe.data.sources.source import REPAIR, Source
from tfpipe.data.sources.tables.columns import SUFFIXES, Rows, read_rows
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
        for split in ("train", "test") if test else ("train",):
            if not self.tables(split):
                raise ConfigError(
                    f"data.source: there is no {split} table in {self.place}; expected a file, or a folder of them, "
                    f"that ends with {' or '.join(self.suffixes)}"
                )

    def tables(self, split: str) -> list[Path]:
        """Returns the files of a split: a file, or those of a folder, by the beginning of their names."""
        about = self.about
        path = about.test_path if split == "test" and about.test_path is not None else about.path
        assert path is not None
        if not path.is_dir():
            own = split == "train" or about.test_path is not None
            return [path] if own and path.is_file() else []
        names = sorted(name for name in os.listdir(path) if name.endswith(self.suffixes) and not name.startswith("."))
        names = [name for name in names if not name.endswith((COPY, ".index.parquet"))]
        if split == "train":
            names = [name for name in names if name.startswith("train")] or names
        elif about.test_path is None:
            by_name = ([name for name in names if name.startswith(prefix)] for prefix in TESTS)
            names = next((chosen for chosen in by_name if chosen), [])
        return [path / name for name in names]

    def catalog(self, split: str, world: World) -> Catalog:
        check_split(split)
        self.check(test=split == "test")
        tables, columns = self.tables(split), self.about.columns
        stored = world.from_rank0(lambda: self.stored(tables))
        rows = world.from_rank0(lambda: self.rows(split, stored))
        train = rows
        if split == "test" and self.config.classes is None and rows.classes is None:
            train = world.from_rank0(lambda: self.rows("train", stored))
        classes = self._classes(train)
        labels, boxes = self._targets(rows, classes)
        annotated = np.bincount(rows.box_images, minlength=len(rows.names)) > 0
        paths = FileList.of(rows.names)
        source: Source = self.of(paths)
        if stored:
            source = Stored(self.config).of_shards(locate(tables, columns.image, self.config, world))
        return known_catalog(source, split, world, paths, classes, labels, boxes, annotated)

    def stored(self, tables: list[Path]) -> bool:
        """Returns whether the tables hold the images' bytes; raises ConfigError if they cannot be read."""
        try:
            return holds_bytes(tables[0], self.about.columns.image)
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
        return rows._replace(
            names=[name if name.startswith(REMOTE) else os.path.join(base, name) for name in rows.names]
        )

    def _classes(self, rows: Rows) -> tuple[str, ...]:
        if self.config.classes is not None:
            return class_table(self.config, FileList.of([]))
        if rows.classes is not None:
            return tuple(rows.classes)
        texts = set(rows.box_labels if self.config.label_source == "object" else rows.labels)
        names = sorted(text for text in texts if text is not None)
        if names and all(name.isdecimal() and str(int(name)) == name for name in names):
            names = [str(number) for number in range(max(map(int, names)) + 1)]
        if not names:
            raise ConfigError(
                f'{self.place} has no labels: set data.source.columns.label, or with data.label_source "object" '
                "data.source.columns.box_labels"
            )
        return tuple(names)

    def _targets(self, rows: Rows, classes: tuple[str, ...]) -> tuple[np.ndarray, Boxes]:
        """Returns the images' labels, int32 [n], and the boxes to crop."""
        numbers = {str(number): number for number in range(len(classes))}
        numbers |= {name: number for number, name in enumerate(classes)}
        if self.config.label_source == "object":
            labels = np.full(len(rows.names), BY_OBJECT, np.int32)
        else:
            labels = np.array([numbers.get(label or "", -1) for label in rows.labels], np.int32)
            self._check_labels(rows, labels, classes)
        own = np.array([numbers.get(label or "", -1) for label in rows.box_labels], np.int32)
        unnamed = np.array([label is None for label in rows.box_labels], bool)
        own[unnamed] = labels[rows.box_images[unnamed]]
        sizes = np.ones((len(rows.names), 2), np.float32) if rows.sizes is None else np.maximum(rows.sizes, 1)
        return labels, targets(Annotated(rows.box_images, rows.boxes, own), labels, sizes)

    def _check_labels(self, rows: Rows, labels: np.ndarray, classes: tuple[str, ...]) -> None:
        wrong = np.flatnonzero(labels < 0)
        if not wrong.size:
            return
        first = int(wrong[0])
        label = rows.labels[first]
        about = 'no label, or several by its boxes: set data.label_source to "object"'
        if label is not None:
            about = f'the label "{label}", which is none of {len(classes)} classes ({", ".join(classes[:3])} ...)'
        raise ConfigError(
            f"{self.place}: {wrong.size} of {len(labels)} images have no class, e.g. {rows.names[first]} has {about}"
        )
