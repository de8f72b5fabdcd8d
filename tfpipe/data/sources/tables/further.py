"""Columns that come with each crop: numbers for regression, paths of masks, and a user's own."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tfpipe.config import Columns
from tfpipe.data.sources.tables.column import Column, find, is_list, is_text, missing
from tfpipe.errors import ConfigError


def values_of(table: pa.Table, columns: Columns, path: Path, kind: str) -> dict[str, np.ndarray]:
    """Returns the columns that come with each crop, by name: numbers, [n] or [n, length], or texts, object [n].

    Raises ConfigError if one is missing, or a value is neither.
    """
    wanted = {name: ("extra", column) for name, column in columns.extra.items()}
    if kind == "number":
        wanted["number"] = ("label", columns.label)
    if kind == "mask":
        wanted["mask"] = ("mask", columns.mask)
    found = {}
    for name, (key, source) in wanted.items():
        values = find(table, source)
        if values is None:
            raise missing(table, path, key, source)
        found[name] = _values(Column(values, np.arange(len(table)), source, path), name)
    return found


def _values(column: Column, name: str) -> np.ndarray:
    """Returns a column as `values_of` does; that of the name "number" as float32, of "mask" as paths."""
    kind, rows = column.values.type, len(column.rows)
    if pa.types.is_dictionary(kind):
        column = column._replace(values=column.values.cast(kind.value_type))
        kind = column.values.type
    if is_text(kind) and name != "number":
        texts = [text or "" for text in column.values.to_pylist()]
        if name == "mask" and "" in texts:
            raise column.refuse(texts.index(""), "the path of a mask")
        return np.array(texts, object)
    if name == "mask":
        raise ConfigError(f'{column.path}: column "{column.name}" must hold paths of masks; received {kind}')
    counts = np.ones(rows, np.int64)
    length: tuple[int, ...] = ()
    if is_list(kind):
        counts, column = column.lists()
        length = (int(counts[0]) if rows else 0,)
        wrong = np.flatnonzero(counts != counts[:1])
        if wrong.size:
            raise ConfigError(
                f"row {wrong[0]} of {column.path}: received a list of {counts[wrong[0]]} numbers in the column "
                f'"{column.name}"; accepted: {counts[0]}, as in the first row'
            )
    numbers = column.numbers("a number" + ("" if pa.types.is_floating(kind) else ", the same in every row"))
    whole = pa.types.is_integer(column.values.type) or pa.types.is_boolean(column.values.type)
    if not whole or name == "number" or column.values.null_count:
        return numbers.astype(np.float32).reshape(rows, *length)
    return column.values.to_numpy().astype(np.int64).reshape(rows, *length)
