"""Reads the columns of a table: names, labels and boxes of its images, but not the images' bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from tfpipe.config import Columns
from tfpipe.data.sources.rows import Rows, as_edges, in_unit
from tfpipe.data.sources.tables.contents import ARROW, open_arrow
from tfpipe.errors import ConfigError

SUFFIXES = (".csv", ".parquet", *ARROW)
EDGES = ("ymin", "xmin", "ymax", "xmax")


def read_rows(files: list[Path], columns: Columns, stored: bool) -> Rows:
    """Reads the columns of tables with the same columns; `stored` if they hold the images' bytes.

    Raises ConfigError if a table cannot be read, a column is missing, or boxes are malformed; the message names it.
    """
    try:
        return in_unit(_rows(files, columns, stored), files[0])
    except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's errors are of these
        raise ConfigError(f"data.source: cannot use the columns of {files[0]}: {error}") from error


def _rows(files: list[Path], columns: Columns, stored: bool) -> Rows:
    table = pa.concat_tables([_read(path, columns) for path in files], promote_options="default")
    if not len(table):
        raise ConfigError(f"data.source: {files[0]} has no row")
    names, classes = _names(table, columns, files, stored), _class_names(table.schema, columns)
    labels = _texts(table, columns.label)
    if labels is None and columns.label != Columns.model_fields["label"].default:
        raise _missing(table, files, "label", columns.label)
    labels = labels or [None] * len(names)
    sizes, weights = _sizes(table), _weights(table, columns, files)
    edges = {name.lower(): name for name in table.column_names}
    if find(table, columns.boxes) is None and all(edge in edges for edge in EDGES) and not stored:
        sides = np.stack([table[edges[edge]].to_numpy().astype(np.float32) for edge in EDGES], axis=1)
        return _joined(Rows(names, labels, np.arange(len(names)), sides, labels, sizes, classes, weights))
    return Rows(names, labels, *_boxes(table, columns, files), sizes, classes, weights)


def find(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Returns a column, or with a name such as "image.path" a field of one; None if there is none."""
    first, *fields = name.split(".")
    values = table[first] if first in table.column_names else None
    for field in fields:
        if values is None or not pa.types.is_struct(values.type) or values.type.get_field_index(field) < 0:
            return None
        values = pc.struct_field(values, field)
    return values


def _read(path: Path, columns: Columns) -> pa.Table:
    try:
        if path.suffix == ".csv":
            # As texts, since a label 007 is a name.
            texts = {name: pa.string() for name in (columns.path, columns.bytes, columns.label)}
            return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=texts))
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                return file.read(_without_bytes(file.schema_arrow))
        return open_arrow(path).table
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"data.source: cannot read {path}: {error}") from error


def _is_bytes(kind: pa.DataType) -> bool:
    """Returns whether a column of this type holds bytes, as images' files are."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _without_bytes(schema: pa.Schema) -> list[str]:
    names = []
    for field in schema:
        if pa.types.is_struct(field.type):
            names += [f"{field.name}.{inner.name}" for inner in field.type if not _is_bytes(inner.type)]
        elif not _is_bytes(field.type):
            names.append(field.name)
    return names


def _texts(table: pa.Table, name: str) -> list[str | None] | None:
    values = find(table, name)
    return None if values is None else values.cast(pa.string()).to_pylist()


def _names(table: pa.Table, columns: Columns, files: list[Path], stored: bool) -> list[str]:
    for name in (columns.path, f"{columns.bytes}.path", columns.bytes):
        values = find(table, name)
        if values is not None and not values.null_count and _is_text(values.type):
            return values.to_pylist()
    if stored:
        return [f"{files[0].stem}:{row}" for row in range(len(table))]
    raise _missing(table, files, "path", columns.path)


def _missing(table: pa.Table, files: list[Path], key: str, name: str) -> ConfigError:
    return ConfigError(
        f'{files[0]} has no column "{name}", but {", ".join(table.column_names)}: set data.source.columns.{key}'
    )


def _class_names(schema: pa.Schema, columns: Columns) -> list[str] | None:
    """Returns the names of ClassLabel's features, as Hugging Face's datasets stores them in the schema."""
    try:
        features: Any = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return None
    for name in (columns.label, columns.box_labels):
        node = features
        for key in [*name.split("."), "feature"]:
            node = node.get(key, node if key == "feature" else {}) if isinstance(node, dict) else {}
        if isinstance(node, dict) and isinstance(node.get("names"), list):
            return node["names"]
    return None


def _sizes(table: pa.Table) -> np.ndarray | None:
    height, width = find(table, "height"), find(table, "width")
    if height is None or width is None:
        return None
    return np.stack([side.to_numpy().astype(np.float32) for side in (height, width)], axis=1)


def _weights(table: pa.Table, columns: Columns, files: list[Path]) -> np.ndarray | None:
    if columns.weight is None:
        return None
    values = find(table, columns.weight)
    if values is None:
        raise _missing(table, files, "weight", columns.weight)
    if values.null_count:
        raise ConfigError(f'{files[0]}: {values.null_count} rows have no number in the column "{columns.weight}"')
    return values.cast(pa.float64()).to_numpy()


def _boxes(table: pa.Table, columns: Columns, files: list[Path]) -> tuple[np.ndarray, np.ndarray, list[str | None]]:
    """Returns the boxes of a column of lists, as Rows has them: their images, edges and labels."""
    values = find(table, columns.boxes)
    if values is None:
        if columns.boxes != Columns.model_fields["boxes"].default:
            raise _missing(table, files, "boxes", columns.boxes)
        return np.zeros(0, np.int64), np.zeros((0, 4), np.float32), []
    lists = values.combine_chunks()
    if not isinstance(lists, pa.ListArray | pa.LargeListArray):
        raise ConfigError(f'{files[0]}: column "{columns.boxes}" must hold lists of boxes; received {lists.type}')
    counts = lists.value_lengths().fill_null(0).to_numpy()
    edges = lists.flatten().flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    if len(edges) != 4 * counts.sum():
        raise ConfigError(f'{files[0]}: column "{columns.boxes}" must hold lists of boxes of 4 numbers each')
    labels = find(table, columns.box_labels)
    texts: list[str | None] = [None] * int(counts.sum())
    if labels is not None:
        texts = labels.combine_chunks().flatten().cast(pa.string()).to_pylist()
        if len(texts) != counts.sum():
            raise ConfigError(f'{files[0]}: "{columns.box_labels}" has {len(texts)} values for {counts.sum()} boxes')
    return np.repeat(np.arange(len(table)), counts), as_edges(edges.reshape(-1, 4), columns.box_format), texts


def _joined(rows: Rows) -> Rows:
    """Joins the rows of each image of a table with one row a box; a row without edges is an image without a box."""
    numbers: dict[str, int] = {}
    images = np.array([numbers.setdefault(name, len(numbers)) for name in rows.names], np.int64)
    _, first = np.unique(images, return_index=True)
    labels = [rows.labels[row] for row in first.tolist()]
    for image, label in zip(images.tolist(), rows.labels, strict=True):
        if label != labels[image]:
            labels[image] = None
    order = np.argsort(images, kind="stable")
    order = order[np.isfinite(rows.boxes[order]).all(axis=1)]
    texts = [rows.box_labels[row] for row in order.tolist()]
    sizes = None if rows.sizes is None else rows.sizes[first]
    weights = None if rows.weights is None else rows.weights[first]
    return Rows(list(numbers), labels, images[order], rows.boxes[order], texts, sizes, rows.classes, weights)
