"""Columns that come with each crop: numbers for regression, paths of masks, and a user's own."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tfpipe.config import Columns
from tfpipe.data.catalog.types import ROUNDED, first_rounded
from tfpipe.data.sources.rows import Rows
from tfpipe.data.sources.tables.column import Column, Part, is_list, is_text, texts_of
from tfpipe.errors import ConfigError, counted


def values_of(part: Part, columns: Columns, kind: str) -> dict[str, np.ndarray]:
    """Returns the columns that come with each crop, by name: numbers, [n] or [n, length], or texts, object [n].

    Raises ConfigError if one is missing, or a value is neither.
    """
    wanted = {name: ("extra", column) for name, column in columns.extra.items()}
    if kind == "number":
        wanted["number"] = ("label", columns.label)
    if kind == "mask":
        wanted["mask"] = ("mask", columns.mask)
    return {name: _values(part.require(key, source), name) for name, (key, source) in wanted.items()}


def _values(column: Column, name: str) -> np.ndarray:
    """Returns a column as `values_of` does; that of the name "number" as float32, of "mask" as paths."""
    kind, rows = column.values.type, len(column.rows)
    if name == "mask" or (is_text(kind) and name != "number"):
        texts = texts_of(column)
        if texts is None:
            raise column.refuse_type("paths of masks")
        texts = [text or "" for text in texts]
        if name == "mask" and "" in texts:
            raise column.refuse(texts.index(""), "the path of a mask")
        return np.array(texts, object)
    length: tuple[int, ...] = ()
    if is_list(kind):
        counts, column = column.lists()
        length = (int(counts[0]) if rows else 0,)
        wrong = np.flatnonzero(counts != counts[:1])
        if wrong.size:
            raise ConfigError(
                f"{column.part.origin(wrong[0])}: received a list of {counted(counts[wrong[0]], 'number')} in the "
                f'column "{column.name}"; accepted: {counts[0]}, as in the first row'
            )
    numbers = column.numbers("a number" + ("" if pa.types.is_floating(kind) else ", the same in every row"))
    whole = pa.types.is_integer(column.values.type) or pa.types.is_boolean(column.values.type)
    if whole and name != "number" and not column.values.null_count:
        try:
            return column.values.cast(pa.int64()).to_numpy().reshape(rows, *length)
        except pa.ArrowInvalid:
            raise column.refuse(int(np.argmax(numbers)), "whole numbers below 2^63") from None
    if name != "number" and (rounded := first_rounded(numbers)) is not None:
        raise column.refuse(rounded, ROUNDED)
    return numbers.astype(np.float32).reshape(rows, *length)


def one_kind(parts: Sequence[Rows]) -> list[Rows]:
    """Returns the rows of files with further columns that can be joined: whole numbers are floats if others are.

    Raises ConfigError if a column has texts in one file and numbers in another, or lists of another length.
    """
    parts = list(parts)
    for name, first in parts[0].more.items():
        columns = [part.more[name] for part in parts]
        for part, column in zip(parts, columns, strict=True):
            if (column.dtype == object) != (first.dtype == object) or column.shape[1:] != first.shape[1:]:
                raise ConfigError(
                    f'the column of "{name}" has {_kind(first)} in {parts[0].files[0]}, and {_kind(column)} in '
                    f"{part.files[0]}: write the same in all files"
                )
        if len({column.dtype for column in columns}) > 1:
            for number, part in enumerate(parts):
                if (rounded := first_rounded(part.more[name].astype(np.float64).reshape(-1))) is not None:
                    row = rounded // max(1, int(np.prod(first.shape[1:])))
                    raise ConfigError(f'{part.origin(row)} has {part.more[name][row]} as "{name}"; accepted: {ROUNDED}')
                floats = part.more[name].astype(np.float32)
                parts[number] = part._replace(more={**part.more, name: floats})
    return parts


def _kind(column: np.ndarray) -> str:
    if column.dtype == object:
        return "texts"
    return "numbers" if column.ndim == 1 else f"lists of {counted(column.shape[1], 'number')}"
