"""Reads the columns of a table: names, labels and boxes of its images, but not the images' bytes."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfpipe.config import Columns, DataConfig
from tfpipe.config.targets import OF_OBJECTS, UNCLASSED
from tfpipe.data.annotations.cleaning import WHOLE_IMAGE
from tfpipe.data.catalog.labels import label_text, name_form
from tfpipe.data.sources.rows import NUMBER, Rows, Texts, as_edges, in_pixels
from tfpipe.data.sources.tables.column import Column, Part, is_binary, is_list, is_text, missing, path_form, paths_of
from tfpipe.data.sources.tables.formats import read_table
from tfpipe.data.sources.tables.further import one_kind, values_of
from tfpipe.data.sources.tables.where import ALL_ROWS, Selection, names_of_texts, select_rows
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger

ReadTable = Callable[[Path, Sequence[str], str], pa.Table]
"""A table's path, the columns that are texts, and that of images' bytes -> its columns as read_table returns them."""
EDGES = ("ymin", "xmin", "ymax", "xmax")
# Types of labels whose values label_text takes; others, such as decimals, are turned into texts first.
AS_THEY_ARE = (pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_float64, is_text, is_binary)


def read_rows(
    files: Sequence[Path],
    columns: Columns,
    stored: bool,
    config: DataConfig,
    selection: Selection = ALL_ROWS,
    read: ReadTable = read_table,
) -> Rows:
    """Reads the columns of tables by `read`, of a selection of rows; `stored` if they hold the images' bytes.

    Raises ConfigError if a table cannot be read, a column is missing, or a value cannot be used; the message names the
    row.
    """
    parts, forms, ledger = [], [], Ledger()
    for path in files:
        try:
            table = read(path, text_columns(columns, config), columns.bytes)
            # Rows of bytes are images of their own, whatever their paths.
            which = selection._replace(paths=()) if stored else selection
            part = select_rows(Part(table, path, np.arange(len(table))), which, ledger)
            if not len(part.rows):
                continue
            _check_names(part, columns)
            forms.append(_has_edges(table) and part.column(columns.boxes) is None)
            if forms[-1] != forms[0]:
                raise ConfigError(
                    f"{files[0]} and {path}: one has a row a box ({', '.join(EDGES)}), the other does not"
                )
            parts.append(_rows(part, columns, stored, config, forms[0]))
        except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's errors are of these
            raise ConfigError(f"data.source: cannot use the columns of {path}: {error}") from error
    if not parts:
        to_split = "" if selection.others is None else f" to the {selection.split} data"
        leaves = f" that data.source.where leaves{to_split}" if selection.wanted else ""
        left_out = f": not used are {', '.join(ledger.texts)}" if ledger else ""
        raise ConfigError(f"data.source: {files[0]} has no row{leaves}{left_out}")
    if config.classes is None:
        _check_classes(parts, config.label_source == "object")
    rows = Rows.concat(one_kind(parts))._replace(left_out=ledger.counts if selection.counts else {})
    if forms[0]:
        rows = _merge_rows(rows, np.arange(len(rows.names)) if stored else _first_rows(rows.names))
    elif not stored and (config.targets.kind == "labels" or (config.source and config.source.test_share)):
        _check_one_row(rows)
    try:
        pixels = in_pixels(rows.boxes, columns.box_unit, lambda box: rows.origin(int(rows.box_images[box])))
    except ValueError as error:
        raise ConfigError(f"{rows.files[0]}: {error}") from None
    return rows if pixels else rows._replace(sizes=None)


def _has_edges(table: pa.Table) -> bool:
    return set(EDGES) <= set(map(str.lower, table.column_names))


def _check_names(part: Part, columns: Columns) -> None:
    """Raises ConfigError if a column is named but for blanks as one that is read, or two columns may be the boxes."""
    for key in ("path", "bytes", "label", "boxes", "box_labels"):
        wanted = getattr(columns, key)
        near = [name for name in part.table.column_names if name != wanted and name_form(name) == name_form(wanted)]
        if near:
            raise ConfigError(
                f'{part.path}: the column {near[0]!a} is not "{wanted}", but for blanks or the form of its letters: '
                f"rename it, or set data.source.columns.{key} to it"
            )
    default = Columns.model_fields["boxes"].default
    if _has_edges(part.table) and columns.boxes == default and part.column(default) is not None:
        raise ConfigError(
            f'{part.path} has boxes in the column "{default}" and in the columns {", ".join(EDGES)}: leave one of them '
            "out of the table, or rename the column, and set data.source.columns.boxes to it"
        )


def text_columns(columns: Columns, config: DataConfig) -> tuple[str, ...]:
    """Returns the columns that are texts: 007 is a name, and in some tables they are bytes."""
    masks = (columns.mask,) if config.targets.kind == "mask" else ()
    return columns.path, columns.bytes, columns.label, *masks, *names_of_texts(config.source)


def _check_classes(parts: Sequence[Rows], by_object: bool) -> None:
    """Raises ConfigError if a file names the classes of its numbers, and the numbers of another may be of others."""
    for named in [part for part in parts if part.classes is not None][:1]:
        for part in [part for part in parts if part.classes is None]:
            labels, classes = (part.box_labels if by_object else part.labels).distinct(), named.classes or []
            numbers = dict(zip(classes, map(str, range(len(classes))), strict=True))
            if labels and all(map(NUMBER.fullmatch, labels)) and any(numbers.get(label) != label for label in labels):
                raise ConfigError(
                    f"{named.files[0]} names the classes of its numbers (ClassLabel: {', '.join(classes[:3])} ...), "
                    f'and {part.files[0]} has numbers alone, e.g. "{labels[0]}": set data.classes to the names in the '
                    "order of the numbers, or write both files in the same way"
                )


def _rows(part: Part, columns: Columns, stored: bool, config: DataConfig, row_a_box: bool) -> Rows:
    kind, by_object, table = config.targets.kind, config.label_source == "object", part.table
    names = _names(part, columns, stored)
    label = part.column(columns.label)
    if label is None and (columns.label != Columns.model_fields["label"].default or kind == "number"):
        raise missing(part, "label", columns.label)
    tagged = kind == "labels" and (part.column(columns.boxes) is None or (label and is_list(label.values.type)))
    tags = label if tagged else None
    unused = tags or kind in UNCLASSED or (kind in OF_OBJECTS and by_object and not row_a_box)
    labels, box_labels = (None, None) if unused or label is None else _labels(label, table.schema)
    labels = labels or Texts.of([None] * len(names))
    if tags:
        images, edges, texts, classes = _tags(tags, table.schema)
    elif row_a_box:
        images, edges, texts, classes = np.arange(len(names)), _edges(part), labels, box_labels
    else:
        images, edges, texts, classes = _boxes(part, columns)
        classes = classes if by_object else box_labels
    return Rows(
        names,
        labels,
        images,
        edges,
        texts,
        _sizes(part.column("height"), part.column("width"), len(names)),
        [str(part.path)],
        np.zeros(len(names), np.int32),
        part.rows,
        classes,
        _weights(part, columns),
        "box_labels" if by_object and not row_a_box and not tags else "label",
        values_of(part, columns, kind),
    )


def _names(part: Part, columns: Columns, stored: bool) -> list[str]:
    """Returns the path of each image, or a name if the table holds its bytes."""
    numbered = [f"{part.path.stem}:{row}" if stored else "" for row in part.rows.tolist()]
    for name in columns.of_paths:
        column, paths = part.column(name), paths_of(part, name)
        if column is None or paths is None:
            continue
        _check_struct(part, columns, paths if name == columns.path else [])
        names = [path or number for path, number in zip(paths, numbered, strict=True)]
        for place, text in enumerate(names):
            if not text or "\n" in text:
                raise column.refuse(place, "the path of an image, on one line")
        return names
    if stored:
        return numbered
    raise missing(part, "path", columns.path)


def _check_struct(part: Part, columns: Columns, texts: Sequence[str | None]) -> None:
    """Raises ConfigError if the default column of paths names another file than the struct of images does."""
    others = part.column(f"{columns.bytes}.path")
    if others is None or columns.path != Columns.model_fields["path"].default:
        return
    for row, text, other in zip(part.rows, texts, others.values.to_pylist(), strict=False):
        if text and other and not f"/{text}".endswith(f"/{path_form(other).rpartition('/')[2]}"):
            raise ConfigError(
                f'row {row} of {part.path}: the column "{columns.path}" has {text}, and "{columns.bytes}.path" '
                f"{other}: set data.source.columns.path to the one that counts"
            )


def _labels(column: Column, schema: pa.Schema) -> tuple[Texts, list[str] | None]:
    """Returns the label of each value, none for an empty one, and the names of all classes if the schema has them.

    Integers are indices into these names.
    """
    names, values = _class_names(schema, column.name), column.values
    if pa.types.is_nested(values.type):
        raise column.refuse_type("names or numbers")
    if pa.types.is_floating(values.type) and not pa.types.is_float64(values.type):
        values = values.cast(pa.string()).cast(pa.float64())  # 0.1 as it is written, not as float32 has it
    elif not any(test(values.type) for test in AS_THEY_ARE):
        values = values.cast(pa.string())
    distinct = values.unique()
    numbers = pc.index_in(values, value_set=distinct).to_numpy().astype(np.int32)
    texts: list[str | None] = []
    accepted = "a text in UTF-8, a whole number, or a float below 2^53, from where on it stands for several of these"
    indices: dict[Any, str | None] = {}
    if names is not None and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        accepted = f"0 to {len(names) - 1}, the indices of its {len(names)} ClassLabel names"
        indices = {None: None, **dict(enumerate(names))}
    for place, value in enumerate(distinct.to_pylist()):
        try:
            texts.append(indices[None if value != value else value] if indices else label_text(value))
        except (KeyError, ValueError):
            raise column.refuse(int(np.argmax(numbers == place)), accepted) from None
    return Texts.of(texts).at(numbers), names


def _class_names(schema: pa.Schema, name: str) -> list[str] | None:
    """Returns the names of ClassLabel's feature of a column, as Hugging Face's datasets stores them in the schema."""
    try:
        node: Any = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return None
    for key in name.split("."):
        if not (isinstance(node, dict) and key in node):
            node = _of_list(node)
        node = node.get(key) if isinstance(node, dict) else None
    names = _of_list(node)
    names = names.get("names") if isinstance(names, dict) else None
    return [label_text(name) or "" for name in names] if isinstance(names, list) else None


def _of_list(node: Any) -> Any:
    """Returns the feature of a list's elements: of {"feature": ..., "_type": "List"}, or of [...] in older files."""
    while True:
        if isinstance(node, list) and len(node) == 1:
            node = node[0]
        elif isinstance(node, dict) and isinstance(node.get("feature"), dict | list):
            node = node["feature"]
        else:
            return node


def _sizes(height: Column | None, width: Column | None, count: int) -> np.ndarray:
    """Returns heights and widths, float32 [count, 2]; NaN for those that the table does not state."""
    if height is None or width is None:
        return np.full((count, 2), np.nan, np.float32)
    return np.stack([side.numbers().astype(np.float32) for side in (height, width)], axis=1)


def _weights(part: Part, columns: Columns) -> np.ndarray | None:
    if columns.weight is None:
        return None
    column = part.require("weight", columns.weight)
    if nulls := column.values.null_count:
        raise ConfigError(f'{part.path}: no number in the column "{columns.weight}" of {counted(nulls, "row")}')
    return column.numbers("a number")


def _equal(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns which of n values, [n, ...], are equal, bool [n]; NaN equals NaN."""
    equal = (values == others) | ((values != values) & (others != others))
    return equal.reshape(len(values), -1).all(axis=1)


def _edges(part: Part) -> np.ndarray:
    """Returns the box of each row, float32 [n, 4], from the columns EDGES; NaN if the row has none."""
    names, places = {name.lower(): name for name in part.table.column_names}, np.arange(len(part.rows))
    columns = [Column(part.table[names[edge]], places, names[edge], part) for edge in EDGES]
    edges = np.stack([column.numbers() for column in columns], axis=1)
    wrong = np.argwhere(~np.isfinite(edges) & ~np.isnan(edges).all(axis=1, keepdims=True))
    for row, side in wrong.tolist():
        raise columns[side].refuse(row, f"a number; only a row without a box has none of {', '.join(EDGES)}")
    return edges.astype(np.float32)


def _boxes(part: Part, columns: Columns) -> tuple[np.ndarray, np.ndarray, Texts, list[str] | None]:
    """Returns the boxes of a column of lists, as Rows has them: their images, edges and labels; and the class names."""
    column, accepted = part.column(columns.boxes), "a list of boxes of 4 numbers each"
    if column is None and columns.boxes != Columns.model_fields["boxes"].default:
        raise missing(part, "boxes", columns.boxes)
    if column is None or pa.types.is_null(column.values.type):
        return np.zeros(0, np.int64), np.zeros((0, 4), np.float32), Texts.of([]), None
    if not is_list(column.values.type):
        raise column.refuse_type("lists of boxes")
    rows, (counts, inner) = column.rows, column.lists()
    if is_list(inner.values.type):
        sides, inner = inner.lists()
        wrong = np.repeat(rows, counts)[sides != 4]
    else:  # a list of four numbers is a single box
        wrong, counts = rows[(counts != 4) & (counts != 0)], counts // 4
    if wrong.size:
        raise column.refuse(int(wrong[0]), accepted)
    edges = inner.numbers("a number")
    if not np.isfinite(edges).all():
        raise column.refuse(int(inner.rows[np.argmin(np.isfinite(edges))]), accepted)
    images, boxes = np.repeat(rows, counts), as_edges(edges.astype(np.float32).reshape(-1, 4), columns.box_format)
    labels = part.column(columns.box_labels)
    if labels is None or pa.types.is_null(labels.values.type):
        return images, boxes, Texts.of([None] * len(boxes)), None
    if not is_list(labels.values.type):
        raise labels.refuse_type("lists of labels")
    label_counts, inner = labels.lists()
    for row in np.flatnonzero(label_counts != counts).tolist():
        raise labels.refuse(row, f'one label for each box, of {counted(int(counts[row]), "box")} in "{columns.boxes}"')
    return images, boxes, *_labels(inner, part.table.schema)


def _tags(column: Column, schema: pa.Schema) -> tuple[np.ndarray, np.ndarray, Texts, list[str] | None]:
    """Returns labels, one or a list of them for each image, as those of boxes of the whole image.

    An image without a label has none; raises ConfigError for a list with an empty one.
    """
    inner = column.lists()[1] if is_list(column.values.type) else column
    labels, classes = _labels(inner, schema)
    named = np.flatnonzero(labels.numbers >= 0)
    if inner is column:
        _check_no_lists(labels, column)
    elif len(named) < len(labels.numbers):
        raise column.refuse(int(inner.rows[np.argmin(labels.numbers)]), "a list of labels, none of which is empty")
    images = inner.rows[named]
    return images, np.repeat(WHOLE_IMAGE, len(images), 0), labels.at(named), classes


def _check_no_lists(labels: Texts, column: Column) -> None:
    """Raises ConfigError if texts look like several labels each: "cat|dog", or "haze primary" next to "clear haze"."""
    names = labels.names
    for separator in (",", None):
        parts = [{*name.split(separator)} for name in names]
        counts = Counter(part for some in parts for part in some)
        for number, (name, some) in enumerate(zip(names, parts, strict=True)):
            has_several = len(counts) < len(names) and len(some) > 1 and all(counts[part] > 1 for part in some)
            if has_several or name.startswith("[") or "|" in name or ";" in name:
                raise column.refuse(
                    int(np.argmax(labels.numbers == number)),
                    "a list of labels; a text is one label, and this one looks like several: write lists, in JSON "
                    "lines, Parquet or Arrow",
                )


def _first_rows(names: Sequence[str]) -> np.ndarray:
    """Returns the first row of the name of each of n rows, int64 [n]."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(name, row) for row, name in enumerate(names)], np.int64)


def _check_one_row(rows: Rows) -> None:
    """Raises ConfigError if rows of one image have other labels: none says that these are all, or which counts."""
    firsts, starts = _first_rows(rows.names), np.searchsorted(rows.box_images, np.arange(len(rows.names) + 1))
    for row in np.flatnonzero(firsts != np.arange(len(firsts))).tolist():
        first = int(firsts[row])
        one, other = (
            (rows.labels.text(item), sorted(rows.box_labels.numbers[starts[item] : starts[item + 1]].tolist()))
            for item in (row, first)
        )
        if one != other:
            raise ConfigError(
                f"{rows.origin(row)} has other labels than {rows.origin(first)}: write one row an image, with a list "
                "of its labels if it has several"
            )


def _merge_rows(rows: Rows, firsts: np.ndarray) -> Rows:
    """Merges the rows of each image of a table with one row a box, int64 [n]: the first one of each row's image.

    A row without edges is an image without a box.
    """
    first, images = np.unique(firsts, return_inverse=True)
    stated = {"width or height": rows.sizes, "weight": rows.weights, **rows.more}
    for name, values in stated.items():
        same = None if values is None else _equal(values, values[firsts])
        if same is not None and not same.all():
            row = int(np.argmin(same))
            other = rows.origin(int(firsts[row]))
            raise ConfigError(
                f"{rows.origin(row)} has another {name} than {other}: the rows of an image state the same"
            )
    labels = rows.labels.numbers[first]
    labels[images[rows.labels.numbers != labels[images]]] = -1
    texts, owners = Texts(labels, rows.labels.names), np.where(np.isfinite(rows.boxes).all(axis=1), images, -1)
    return rows.select(first)._replace(labels=texts, boxes=rows.boxes, box_labels=rows.box_labels).with_owners(owners)
