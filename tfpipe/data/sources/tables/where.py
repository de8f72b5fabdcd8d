"""The rows of a table that `data.source.where` names for a split: those whose columns have one of the values."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfpipe.config.data_source import SourceConfig
from tfpipe.data.sources.tables.column import Column, Part, cell_text, is_binary, is_text, paths_of
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

# Values that a message lists.
SHOWN = 5


class Selection(NamedTuple):
    """The rows of a split, by the values that its columns have."""

    wanted: Mapping[str, Any] = {}  # by column: a value, or a list of those of which it has one; {}: all rows
    others: Mapping[str, Any] | None = None  # those of the other split, if both have rows of the same tables
    split: str = "train"
    paths: Sequence[str] = ()  # columns that may have the paths of images: the first one of texts does

    @classmethod
    def of(cls, source: SourceConfig, split: str, *, shared: bool) -> "Selection":
        """Returns the selection of a split; `shared`: the other one has rows of the same tables."""
        other = source.where_for("test" if split == "train" else "train")
        return cls(source.where_for(split), other if shared else None, split, source.columns.of_paths)

    @property
    def counts(self) -> bool:
        """Whether rows of no split are counted here; those next to training data are counted with these alone."""
        return self.others is None or self.split == "train"


ALL_ROWS = Selection()


def select_rows(part: Part, selection: Selection, ledger: Ledger) -> Part:
    """Returns the rows of a selection, whose columns have one of its values each; counts those of no split in `ledger`.

    Raises ConfigError if a column is missing or has values of another type than those that are named, or a row or the
    rows of an image are of both splits.
    """
    wanted, others = selection.wanted, selection.others
    for name in wanted:
        column = part.require("where", name)
        values = _either(wanted[name], [] if others is None else others[name])
        kept = _has(column, values)
        for place in np.flatnonzero(~kept)[:1].tolist():
            reason = f'rows whose "{name}" is not {" or ".join(map(cell_text, values))}'
            ledger.add(reason, f"{part.origin(place)}, {cell_text(column.values[place].as_py())}", int((~kept).sum()))
        part = _keep(part, kept)
    if others in (None, wanted):
        return part
    in_split, in_other = _have(part, wanted), _have(part, others)
    for place in np.flatnonzero(in_split & in_other)[:1].tolist():
        raise ConfigError(
            f"{part.origin(place)}: data.source.where {json.dumps(wanted)} of the {selection.split} data leaves it, "
            f"and so does {json.dumps(others)} of the others; accepted: values that no row of both splits has"
        )
    images = next((paths for name in selection.paths if (paths := paths_of(part, name)) is not None), [])
    of_others = {name for name, is_other in zip(images, in_other, strict=False) if is_other and name}
    for place in [place for place, name in enumerate(images) if in_split[place] and name in of_others][:1]:
        raise ConfigError(
            f"{part.origin(place)}: the image {cell_text(images[place])} has rows of both splits, by data.source.where "
            f"{json.dumps(wanted)} and {json.dumps(others)}; accepted: all rows of an image in one split"
        )
    for place in np.flatnonzero(~in_split & ~in_other)[:1].tolist():
        ledger.add(
            "rows that data.source.where gives to no split", part.origin(place), int((~in_split & ~in_other).sum())
        )
    return _keep(part, in_split)


def names_of_texts(source: SourceConfig | None) -> list[str]:
    """Returns the columns of which `where` names texts alone."""
    train, test = ({} if source is None else source.where_for(split) for split in ("train", "test"))
    return [name for name in train if all(isinstance(value, str) for value in _either(train[name], test[name]))]


def _as_list(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _either(wanted: Any, others: Any) -> list[Any]:
    """Returns the values that one of two splits wants, each once; 1 and true are two."""
    return list({(type(value), value): value for value in (*_as_list(wanted), *_as_list(others))}.values())


def _keep(part: Part, kept: np.ndarray) -> Part:
    return part._replace(table=part.table.filter(pa.array(kept)), rows=part.rows[kept])


def _have(part: Part, wanted: Mapping[str, Any]) -> np.ndarray:
    """Returns which rows have the values of `wanted`, bool [n]; all columns are there."""
    return np.logical_and.reduce([_has(part.require("where", name), _as_list(each)) for name, each in wanted.items()])


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
            some = ", ".join(map(cell_text, texts[:SHOWN]))
            raise ConfigError(
                f'{column.part.path}: data.source.where names {cell_text(value)} of the column "{column.name}", which '
                f"has other values, of the type {kind}: {some}{' ...' if texts[SHOWN:] else ''}; name some of these"
            )
    return np.array([text in wanted for text in texts], bool)[pc.index_in(values, value_set=distinct).to_numpy()]


def _types_of(kind: pa.DataType) -> tuple[type, ...]:
    """Returns the types of Python's values that the values of a column can equal; () of lists, times and others."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return int, float
    if pa.types.is_boolean(kind):
        return (bool,)
    return (str,) if is_text(kind) or is_binary(kind) else ()
