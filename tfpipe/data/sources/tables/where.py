"""The rows of a table that `data.source.where` names: those whose columns have one of the values."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfpipe.data.sources.tables.column import Column, Part, is_text, missing
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

# Values that a message lists.
SHOWN = 5


def select_rows(part: Part, where: Mapping[str, Any], ledger: Ledger) -> Part:
    """Returns the rows that have the values of `where`, each column one of its values; counts the others in `ledger`.

    Raises ConfigError if a column is missing, or has values of another type than those that are named.
    """
    for name, wanted in where.items():
        column, values = part.column(name), wanted if isinstance(wanted, list) else [wanted]
        if column is None:
            raise missing(part, "where", name)
        kept = _has(column, values)
        for place in np.flatnonzero(~kept)[:1].tolist():
            example = f"row {part.rows[place]} of {part.path}, {_text(column.values[place].as_py())}"
            ledger.add(f'rows whose "{name}" is not {" or ".join(map(_text, values))}', example, int((~kept).sum()))
        part = part._replace(table=part.table.filter(pa.array(kept)), rows=part.rows[kept])
    return part


def is_of_texts(wanted: Any) -> bool:
    """Returns whether the values that `where` names of a column are texts."""
    return all(isinstance(value, str) for value in (wanted if isinstance(wanted, list) else [wanted]))


def _has(column: Column, wanted: list[Any]) -> np.ndarray:
    """Returns which values of a column are among `wanted`, bool [n]."""
    values, kind = column.values, column.values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), bool)
    if pa.types.is_decimal(kind) or (pa.types.is_floating(kind) and not pa.types.is_float64(kind)):
        values = values.cast(pa.string()).cast(pa.float64())  # 0.1 as it is written
    types = _types_of(values.type)
    distinct = values.unique() if types else values[:SHOWN]
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in distinct.to_pylist()]
    for value in wanted:
        if type(value) not in types:
            some = ", ".join(map(_text, texts[:SHOWN]))
            raise ConfigError(
                f'{column.path}: data.source.where names {_text(value)} of the column "{column.name}", which has other '
                f"values, of the type {kind}: {some}{' ...' if len(texts) > SHOWN else ''}; name some of these"
            )
    return np.array([text in wanted for text in texts], bool)[pc.index_in(values, value_set=distinct).to_numpy()]


def _types_of(kind: pa.DataType) -> tuple[type, ...]:
    """Returns the types of Python's values that the values of a column can equal; () of lists, times and others."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return int, float
    if pa.types.is_boolean(kind):
        return (bool,)
    return (str,) if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else ()


def _text(value: Any) -> str:
    return "an empty cell" if value in (None, "") else json.dumps(value, default=str)[:80]
