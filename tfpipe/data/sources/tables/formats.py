"""Opens tables of each format: CSV, TSV, JSON lines, Parquet and Arrow, known by the end of their names."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json
import pyarrow.parquet as pq

from tfpipe.errors import ConfigError
from tfpipe.util.files import format_of, not_text
from tfpipe.util.retry import retried

Format = Literal["csv", "json", "parquet", "arrow"]
# In a folder these count only if no table of the split has another end.
FURTHER = (".tsv", ".jsonl", ".ndjson", ".pq")
PARQUET = (".parquet", ".pq")
FORMATS: dict[str, Format] = {
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "json"),
    **dict.fromkeys(PARQUET, "parquet"),
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
}
# Names of the formats that are not text, as files.format_of returns them.
BINARY = {"parquet": "a Parquet file", "arrow": "an Arrow file"}
FILE_START = b"ARROW1"
# End of an Arrow stream; without it, one that was cut off after a batch would seem whole.
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# Images read at a time: some 30 MB in memory.
IN_A_BATCH = 256
# Arrow's parser of JSON takes no line that is longer than its block.
MOST_JSON_BYTES = 2**31 - 1


class Arrow(NamedTuple):
    """An Arrow file that is mapped into memory."""

    table: pa.Table
    start: int  # address of its first byte
    size: int  # bytes


def table_format(path: Path) -> Format:
    """Returns the format of a table by its name; raises ConfigError if there is none of that name."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f'data.source: {path}: received a table that ends with "{path.suffix}"; accepted: {", ".join(FORMATS)}'
        )
    return FORMATS[path.suffix.lower()]


def read_table(path: Path, texts: Sequence[str], images: str = "") -> pa.Table:
    """Reads the columns that `columns_but_bytes` names; fields of structs are columns such as "image.path".

    The columns `texts` of a CSV are texts, since 007 is a name. Raises ConfigError if it cannot be read.
    """
    with opening(path):
        table = flatten(_read(path, table_format(path), texts, images))
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise ConfigError(f'data.source: {path} has several columns "{twice[0]}": rename them, or leave them out')
    return table


@retried
def _read(path: Path, kind: Format, texts: Sequence[str], images: str) -> pa.Table:
    if kind == "csv":
        convert = csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string()))
        parse = csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
        return csv.read_csv(path, parse_options=parse, convert_options=convert)
    if kind == "json":
        block = pyarrow.json.ReadOptions(block_size=min(path.stat().st_size + 1, MOST_JSON_BYTES))
        table = pyarrow.json.read_json(path, block)
        schema = pa.schema([field.with_type(_without_times(field.type)) for field in table.schema])
        if schema != table.schema:
            table = pyarrow.json.read_json(path, block, pyarrow.json.ParseOptions(explicit_schema=schema))
        table.validate(full=True)  # that texts are UTF-8, which the parser leaves open
        return table
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            return file.read(columns_but_bytes(file.schema_arrow, texts, images))
    return without_bytes(open_arrow(path).table, texts, images)


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Returns a type with texts in the place of times, which JSON does not have: 2024-01-01 may be a name."""
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    return pa.string() if pa.types.is_timestamp(kind) else kind


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Raises a ConfigError that names `path` and what it is in the place of an error of Arrow or the system."""
    try:
        actual, expected = format_of(path), BINARY.get(table_format(path))
        if actual is not None and actual != expected:
            raise ConfigError(f"data.source: cannot read {path}: it is {actual}")
        yield
    except (OSError, pa.ArrowInvalid) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        if reason is None and table_format(path) not in BINARY:
            reason = not_text(path)
        raise ConfigError(f"data.source: cannot read {path}: {reason or error}") from error


def open_arrow(path: Path) -> Arrow:
    """Maps an Arrow file or stream into memory; raises OSError or pa.ArrowInvalid, also if a stream is cut off."""
    mapped = pa.memory_map(str(path))
    whole = mapped.read_buffer()
    mapped.seek(0)
    try:
        table = pa.ipc.open_file(mapped).read_all()
    except pa.ArrowInvalid:
        if bytes(memoryview(whole)[: len(FILE_START)]) == FILE_START:
            raise pa.ArrowInvalid("the file ends without its footer: it was cut off") from None
        mapped.seek(0)
        table = pa.ipc.open_stream(mapped).read_all()
        if bytes(memoryview(whole)[-len(STREAM_END) :]) != STREAM_END:
            raise pa.ArrowInvalid("the stream ends without its end mark: it was cut off") from None
    return Arrow(table, whole.address, whole.size)


def holds_bytes(path: Path, column: str) -> bool:
    """Returns whether a table holds the images' files in a column, as bytes or as Hugging Face's {bytes, path}.

    A column of bytes that are all null holds none, and the images are where their paths say. Raises ConfigError.
    """
    kind = table_format(path)
    if kind in ("csv", "json"):
        return False
    with opening(path):
        if kind == "parquet":
            return _any_in_parquet(path, column)
        return any_bytes(retried(open_arrow)(path).table, column)


def any_bytes(table: pa.Table, column: str) -> bool:
    """Returns whether a column of bytes, or of structs with a field of bytes, has a value or no row."""
    if not is_of_bytes(table.schema, column):
        return False
    return not len(table) or sum(values.null_count for values in arrow_values(table, column)) < len(table)


@retried
def _any_in_parquet(path: Path, column: str) -> bool:
    """Returns whether a column of bytes has a value or no row, by the file's statistics, without reading it."""
    with pq.ParquetFile(path) as file:
        if not is_of_bytes(file.schema_arrow, column):
            return False
        chunks = chunks_of(file, [leaf_of(file.schema_arrow, column)])
        counted = [chunk.statistics for chunk in chunks if chunk.is_stats_set and chunk.statistics.has_null_count]
        nulls = sum(statistics.null_count for statistics in counted)
        return len(counted) < len(chunks) or nulls < file.metadata.num_rows or not file.metadata.num_rows


def leaf_of(schema: pa.Schema, column: str) -> str:
    """Returns the path within a Parquet file of the bytes in a column, or of the lists that hold them."""
    return f"{column}.bytes" if pa.types.is_struct(schema.field(column).type) else column


def chunks_of(file: pq.ParquetFile, columns: Sequence[str]) -> list[pq.ColumnChunkMetaData]:
    """Returns the parts of columns, or of the elements of their lists, by row group; columns are paths in the file."""
    groups = map(file.metadata.row_group, range(file.num_row_groups))
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(tuple(f"{name}." for name in columns))]


def bytes_of(path: Path, column: str) -> Iterator[pa.Array]:
    """Yields the bytes in a column of a Parquet or Arrow file, in parts; nothing if the column holds none.

    Raises OSError or pa.ArrowInvalid.
    """
    if table_format(path) == "parquet":
        with pq.ParquetFile(path) as file:
            if not is_of_bytes(file.schema_arrow, column):
                return
            for batch in file.iter_batches(IN_A_BATCH, columns=[leaf_of(file.schema_arrow, column)]):
                values = batch.column(0)
                yield pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
    else:
        table = open_arrow(path).table
        if is_of_bytes(table.schema, column):
            yield from arrow_values(table, column)


def arrow_values(table: pa.Table, column: str) -> Iterator[pa.Array]:
    """Yields the bytes in a column of a table, or in the field "bytes" of its structs, chunk by chunk."""
    for values in table[column].chunks:
        if len(values):
            yield pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values


def is_of_bytes(schema: pa.Schema, column: str) -> bool:
    """Returns whether a column holds bytes, also as lists of uint8, or structs with a field "bytes" that does."""
    number = schema.get_field_index(column)
    if number < 0:
        return False
    kind = schema.field(number).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return _is_bytes(kind) or (any(test(kind) for test in lists) and pa.types.is_uint8(kind.value_type))


def _is_bytes(kind: pa.DataType) -> bool:
    """Returns whether a column of this type holds bytes, as images' files are."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def without_bytes(table: pa.Table, texts: Sequence[str], images: str) -> pa.Table:
    """Returns the columns of a table, and the fields of its structs, that columns_but_bytes names."""
    return flatten(table).select(columns_but_bytes(table.schema, texts, images))


def columns_but_bytes(schema: pa.Schema, texts: Sequence[str], images: str) -> list[str]:
    """Returns the names of columns, and of structs' fields, but those of bytes: images', and others but `texts`."""
    of_images = leaf_of(schema, images) if is_of_bytes(schema, images) else None
    return [
        field.name
        for field in flatten(schema.empty_table()).schema
        if field.name != of_images and (not _is_bytes(field.type) or (field.name in texts and field.name != images))
    ]


def flatten(table: pa.Table) -> pa.Table:
    """Returns a table with the fields of structs as columns: "image.path"."""
    while any(pa.types.is_struct(kind) and kind.num_fields for kind in table.schema.types):
        table = table.flatten()
    return table
