"""Tables in memory as a source: a DataFrame, a list of (path, label), a dataset of Hugging Face."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tfpipe.config import DataConfig
from tfpipe.data.catalog.splits import sorted_files
from tfpipe.data.sources.data_files import FilesOf
from tfpipe.data.sources.remote.url_path import AnyPath
from tfpipe.data.sources.rows import Rows
from tfpipe.data.sources.tables.contents import byte_ranges
from tfpipe.data.sources.tables.formats import any_bytes, arrow_values, without_bytes
from tfpipe.data.sources.tables.table import Table
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger

KIND = f"{__name__}:InMemory"
ACCEPTED = (
    "accepted: a path (class folders, a filelist, a table, COCO's JSON, tar shards, packed data, TFRecords), a pandas "
    "DataFrame or another table of Arrow, a list of (path, label), a list of paths with labels=, or a datasets.Dataset "
    "of Hugging Face"
)
PATHS = str | bytes | os.PathLike
# What other libraries' objects are turned into first, by their packages.
INSTEAD = {
    "tensorflow": "a tf.data.Dataset has batches of its own: give what it was made from",
    "torchvision": "give the folder of an ImageFolder, tfpipe.load(dataset.root, classes=dataset.classes)",
    "torch": "give the paths and labels that it reads, as a list",
    "numpy": "of arrays of pixels tf.data.Dataset.from_tensor_slices makes batches; give paths as a list, with labels=",
    "PIL": "give the paths of the images",
}


class MemoryTable(NamedTuple):
    """The images of a split as a table in memory."""

    name: str  # for messages: "the DataFrame"
    table: pa.Table
    order: np.ndarray | None = None  # int64 [n]: rows of the table that count, in their order; None for all
    left_out: Mapping[str, tuple[int, str]] = {}
    """Counts of a Ledger: rows next to it that are neither training nor test data."""


class ArrowImages:
    """The files of images in a column of bytes, which may be mapped from a disk."""

    def __init__(self, table: MemoryTable, column: str) -> None:
        """Locates the bytes; raises ConfigError if an image has none."""
        self._order = table.order
        self._parts = list(byte_ranges(arrow_values(table.table, column), column))
        self._ends = np.cumsum([len(starts) - 1 for starts, _ in self._parts])

    def contents(self, item: int) -> bytes:
        """Returns the file of image `item`."""
        row = item if self._order is None else int(self._order[item])
        part = int(np.searchsorted(self._ends, row, side="right"))
        starts, data = self._parts[part]
        number = row - (int(self._ends[part - 1]) if part else 0)
        # The copy, which may have to wait for a disk, holds no GIL; tobytes does.
        return data[starts[number] : starts[number + 1]].copy().tobytes()


class InMemory(Table):
    """Images that a table in memory names, or holds."""

    def __init__(self, config: DataConfig, by_split: Mapping[str, MemoryTable] | None = None) -> None:
        """Takes the table of each split; raises ConfigError if there is none, as in another process."""
        super().__init__(config)
        if by_split is None:
            raise ConfigError(
                "data.source: the data of this config were in memory, as given to tfpipe.load: give them to it again, "
                "or store them as a table"
            )
        self.by_split = by_split

    @property
    def display_name(self) -> str:
        return self.by_split["train"].name

    def require_files(self, split: str) -> Sequence[AnyPath]:
        if not self.files(split):
            raise ConfigError(f"there is no {split} data in {self.display_name}")
        return self.files(split)

    def sorted_files(self, split: str) -> FilesOf:
        train, test = ([Path(self.by_split[each].name)] if each in self.by_split else [] for each in ("train", "test"))
        return FilesOf(train, test)

    def unused_files(self, split: str) -> Ledger:
        return Ledger(self.by_split["train"].left_out if split == "train" else None)

    def has_contents(self, tables: Sequence[Path]) -> bool:
        return any_bytes(self._table_at(tables[0]).table, self.about.columns.bytes)

    def images(self, tables: Sequence[Path], rows: Rows, world: World) -> ArrowImages:
        table = self._table_at(tables[0])
        order = rows.row if table.order is None else table.order[rows.row]
        return ArrowImages(table._replace(order=order), self.about.columns.bytes)

    def read(self, path: Path, texts: Sequence[str], images: str) -> pa.Table:
        table = self._table_at(path)
        rows = without_bytes(table.table, texts, images)
        return rows if table.order is None else rows.take(pa.array(table.order))

    def with_paths(self, rows: Rows, split: str, table: AnyPath, stored: bool) -> Rows:
        return super().with_paths(rows, split, Path.cwd() / str(table), stored)

    def _table_at(self, path: Path) -> MemoryTable:
        return next(table for table in self.by_split.values() if table.name == str(path))


def in_memory(
    data: Any, labels: Any, columns: Mapping[str, str], *, labelled: bool = True
) -> tuple[dict[str, MemoryTable], dict[str, str]]:
    """Returns the table of each split that is in `data`, and names of columns that it tells besides `columns`.

    `labels` are those of a list of paths, else None; a list needs none unless it has to be `labelled`. Raises
    ConfigError if `data` is nothing that can be loaded.
    """
    package = type(data).__module__.partition(".")[0]
    try:
        if labels is not None:
            return {"train": _list(data, labels)}, {}
        if package == "datasets":
            return _hugging_face(data, columns)
        if package == "pandas" and hasattr(data, "columns"):
            return {"train": MemoryTable("the DataFrame", _frame(data))}, {}
        if hasattr(data, "__arrow_c_stream__"):
            return {"train": MemoryTable("the table", pa.table(data))}, {}
        if isinstance(data, list | tuple):
            are_paths = not labelled and all(isinstance(item, PATHS) for item in data)
            return {"train": _list(data, [None] * len(data) if are_paths else None)}, {}
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"cannot make a table of the {type(data).__name__}: {error}") from error
    hint = f"; {INSTEAD[package]}" if package in INSTEAD else ""
    raise ConfigError(f"received a {type(data).__module__}.{type(data).__qualname__}; {ACCEPTED}{hint}")


def _frame(frame: Any) -> pa.Table:
    """Returns a DataFrame's columns; those of paths as texts."""
    paths = {
        name: [os.fspath(value) if isinstance(value, os.PathLike) else value for value in frame[name]]
        for name in frame.columns[frame.dtypes == np.dtype(object)]
        if any(isinstance(value, os.PathLike) for value in frame[name])
    }
    return pa.Table.from_pandas(frame.assign(**paths), preserve_index=False)


def _list(data: Iterable[Any], labels: Iterable[Any] | None) -> MemoryTable:
    """Returns the table of pairs of a path, or the bytes of an image, and a label; or of paths and `labels`."""
    for name, values in (("the paths", data), ("labels", labels)):
        if isinstance(values, set | frozenset):
            raise ConfigError(f"{name}: received a {type(values).__name__}, which has no order; accepted: a list")
    if isinstance(data, str | os.PathLike):
        raise ConfigError(f"labels: are those of a list of paths, and {os.fspath(data)!r} is one path: give a list")
    items = list(data)
    if labels is None:
        for number, item in enumerate(items):
            if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], PATHS):
                continue
            received = f"item {number} of the list is {str(item)[:80]!r}"
            if isinstance(item, PATHS):
                raise ConfigError(f"{received}, without a label; accepted: (path, label), or paths with labels=[...]")
            raise ConfigError(f"{received}; accepted: a pair (path, label), e.g. ('cat/1.jpg', 'cat')")
        labels, items = [label for _, label in items], [path for path, _ in items]
    labels = [_plain(label) for label in _plain(labels)]
    if len(labels) != len(items):
        raise ConfigError(f"labels: received {len(labels)} for {counted(len(items), 'image')}; accepted: one for each")
    # Arrow itself makes a 1.0 of a True after a float.
    kinds = [type(label) if isinstance(label, str | bool) else float for label in labels]  # float for every number
    firsts = {kinds[number]: number for number in reversed(range(len(labels))) if labels[number] is not None}
    if len(firsts) > 1 and not any(isinstance(label, list) for label in labels):
        one, other = sorted(firsts.values())[:2]
        raise ConfigError(
            f"labels: that of image {one} is {labels[one]!r}, and that of image {other} is {labels[other]!r}; "
            "accepted: all texts, all numbers, or all truth values"
        )
    stored = sum(isinstance(item, bytes) for item in items)
    if 0 < stored < len(items):
        raise ConfigError(f"received bytes of {stored} of {len(items)} images in a list; accepted: of all, or paths")
    images = pa.array(items, pa.binary()) if stored else pa.array([os.fspath(path) for path in items], pa.string())
    return MemoryTable("the list", pa.table({"image" if stored else "path": images, "label": pa.array(labels)}))


def _plain(value: Any) -> Any:
    """Returns an array or a tensor, of NumPy, PyTorch, JAX or TensorFlow, as Python's values; others as they are."""
    value = value.numpy() if hasattr(value, "numpy") and not hasattr(value, "tolist") else value
    return value.tolist() if hasattr(value, "tolist") else value


def _hugging_face(data: Any, columns: Mapping[str, str]) -> tuple[dict[str, MemoryTable], dict[str, str]]:
    """Returns the tables of a Dataset, or of a DatasetDict's splits, and its columns of images and labels.

    The images' bytes are those that the dataset has stored: it decodes none.
    """
    if isinstance(data, dict):
        names = sorted_files(data, "both", "give one of them")
        has = f"the DatasetDict has the splits {', '.join(data)}"
        for split, members in (("training", names.train), ("test", names.test)):
            if len(members) > 1:
                raise ConfigError(
                    f"{has}, and {', '.join(members)} may be the {split} data: give one, or join them by "
                    "datasets.concatenate_datasets"
                )
        if not names.train:
            raise ConfigError(f"{has}, and none is train: give one of them")
        chosen = {"train": names.train[0], **({"test": names.test[0]} if names.test else {})}
        tables = {split: _stored_table(data[name], f'the dataset "{name}"') for split, name in chosen.items()}
        rest = [name for members in names.left_out.values() for name in members]
        left_out = {f'rows of the split "{name}"': (len(data[name]), f"row 0 of {name}") for name in rest}
        tables["train"] = tables["train"]._replace(left_out=left_out)
        return tables, _columns(data[chosen["train"]].features, columns)
    return {"train": _stored_table(data, "the dataset")}, _columns(data.features, columns)


def _stored_table(dataset: Any, name: str) -> MemoryTable:
    """Returns the table that a Dataset has stored, and the order that select, shuffle or filter gave it.

    Raises ConfigError for a dataset that streams, or has a transform or a format, which would change or hide what is
    stored.
    """
    if not hasattr(dataset, "data"):
        raise ConfigError(
            f"received a datasets.{type(dataset).__name__}, which has no length and no order of its own: load the "
            "dataset without streaming=True"
        )
    form = dataset.format
    if form["type"] is not None or set(form["columns"]) < set(dataset.column_names):
        columns = "" if form["type"] is not None else f" with the columns {', '.join(form['columns'])} alone"
        raise ConfigError(
            f'{name} has the format "{form["type"]}"{columns}, by set_format, with_format or with_transform, and the '
            "images are read as they are stored: give dataset.with_format(None), choose columns by "
            "select_columns, and transform batches by data.augment or data.transform"
        )
    indices = getattr(dataset, "_indices", None)
    order = None if indices is None else np.asarray(indices.column(0).to_numpy(), np.int64)
    return MemoryTable(name, dataset.data.table, order)


def _columns(features: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, str]:
    """Returns the names of the only column of images, and of labels, that a dataset's features have."""
    result: dict[str, str] = {}
    for key, default, kind in (("bytes", "image", "Image"), ("label", "label", "ClassLabel")):
        names = [name for name, feature in features.items() if type(feature).__name__ == kind]
        if key in columns or default in features:
            continue
        if len(names) > 1:
            raise ConfigError(
                f'the dataset has the {kind} columns {", ".join(names)}: choose, e.g. columns={{"{key}": "{names[0]}"}}'
            )
        if names:
            result[key] = names[0]
    return result
