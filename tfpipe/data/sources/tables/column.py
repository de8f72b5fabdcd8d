"""A column of a table by its name, with errors that name the row of a value."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfpipe.errors import ConfigError


class Part(NamedTuple):
    """The rows of a table that are used."""

    table: pa.Table  # these rows, as formats.read_table returns them
    path: Path
    rows: np.ndarray  # int64 [n]: number of each row in the file

    def column(self, name: str) -> "Column | None":
        """Returns a column as `find` does."""
        values = find(self.table, name)
        return None if values is None else Column(values, np.arange(len(self.rows)), name, self)

    def require(self, key: str, name: str) -> "Column":
        """Returns a column that a key of columns, or where, names; raises ConfigError if there is none."""
        column = self.column(name)
        if column is None:
            raise missing(self, key, name)
        return column

    def origin(self, place: int) -> str:
        """Returns the row and the file of a place among these rows, for a message."""
        return f"row {self.rows[place]} of {self.path}"


class Column(NamedTuple):
    """A column of a table, or the values within its lists."""

    values: pa.Array | pa.ChunkedArray
    rows: np.ndarray  # int64 [values]: the place of each value's row among those of the part
    name: str
    part: Part

    def refuse(self, number: int, accepted: str) -> ConfigError:
        """Makes the error about a value, which names its row."""
        row, text = self.part.origin(self.rows[number]), cell_text(self.values[number].as_py())
        return ConfigError(f'{row}: received {text} in the column "{self.name}"; accepted: {accepted}')

    def refuse_type(self, accepted: str) -> ConfigError:
        """Makes the error about a column of values of another type."""
        return ConfigError(f'{self.part.path}: column "{self.name}" must hold {accepted}; received {self.values.type}')

    def lists(self) -> tuple[np.ndarray, "Column"]:
        """Returns the lengths of lists, int64 [values], 0 for null, and the values within them."""
        counts = pc.list_value_length(self.values).fill_null(0).to_numpy().astype(np.int64)
        return counts, self._replace(values=plain(pc.list_flatten(self.values)), rows=np.repeat(self.rows, counts))

    def numbers(self, accepted: str = "a number, or an empty cell") -> np.ndarray:
        """Returns float64 [values], NaN for null; raises ConfigError for a value that is no number."""
        try:
            return self.values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            for number, value in enumerate(self.values):
                try:
                    value.cast(pa.float64(), safe=False)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    raise self.refuse(number, accepted) from None
            raise


def cell_text(value: Any) -> str:
    """Returns a value of a column for a message."""
    return "an empty cell" if value in (None, "") else json.dumps(value, default=str)[:80]


def find(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Returns a column of a flattened table, or of one of lists of structs the field "objects.bbox"; else None."""
    if name in table.column_names:
        return plain(table[name])
    head, _, field = name.rpartition(".")
    values = find(table, head) if head else None
    if values is None or not is_list(values.type):
        return None
    kind = values.type.value_type
    if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
        return None
    counts = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
    inner = pc.struct_field(pc.list_flatten(values), field)
    inner = inner.combine_chunks() if isinstance(inner, pa.ChunkedArray) else inner
    return plain(pa.chunked_array([pa.LargeListArray.from_arrays(np.append(0, np.cumsum(counts)), inner)]))


def plain(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns values of dictionaries, and views as Polars writes them, as the texts, bytes or numbers that they are."""
    if pa.types.is_dictionary(values.type):
        kind = _without_views(values.type.value_type)
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        parts = [pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind)) for chunk in chunks]
        return pa.chunked_array([part.cast(kind) for part in parts], kind)
    kind = _without_views(values.type)
    return values if kind == values.type else values.cast(kind)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a column holds lists."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a column holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether a column holds bytes, which are no views."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def texts_of(column: Column) -> list[str | None] | None:
    """Returns the texts of a column, also of one that has them as bytes in UTF-8; None if it holds neither.

    Raises ConfigError for bytes that are not UTF-8, e.g. images'.
    """
    if is_binary(column.values.type):
        texts = column.values.to_pylist()
        for number, text in enumerate(texts):
            try:
                texts[number] = text if text is None else text.decode()
            except UnicodeDecodeError:
                raise column.refuse(number, "texts, or bytes that are texts in UTF-8") from None
        return texts
    return column.values.to_pylist() if is_text(column.values.type) else None


def paths_of(part: Part, name: str) -> list[str] | None:
    """Returns the path in each row of a column, "" for none; None if there is no such column of texts."""
    column = part.column(name)
    texts = None if column is None else texts_of(column)
    return None if texts is None else [path_form(text or "") for text in texts]


def path_form(text: str) -> str:
    """Returns a path as lists have it: without blanks around it, and without a dot for the folder that it is in."""
    text = text.strip()
    return re.sub(r"^(\./+)+", "", text) if text.startswith("./") else text


def missing(part: Part, key: str, name: str) -> ConfigError:
    """Makes the error for a table without the column `name`, or of no texts, that a key of columns, or where, names."""
    table, path = part.table, part.path
    kind = find(table, name)
    if kind is not None:
        return ConfigError(f'{path}: the column "{name}" must hold texts; received {kind.type}')
    head = "".join(table.column_names) if len(table.column_names) == 1 else ""
    separator = next((each for each in ";\t|" if each in head), None)
    if separator is not None:
        return ConfigError(
            f"{path} has one column, {head!r}, whose values {separator!r} separates; accepted: "
            "commas in a .csv and tabs in a .tsv: write it again, or name it .tsv if they are tabs"
        )
    remedy = f'set data.source.columns.{key}, in tfpipe.load columns={{"{key}": NAME}}'
    remedy = "correct data.source.where" if key == "where" else remedy
    return ConfigError(f'{path} has no column "{name}", but {", ".join(table.column_names)}: {remedy}')
