"""Locates the bytes of images in tables, so that each is read at once by its file, offset and length.

In an uncompressed Arrow file a value's bytes lie as they are. The images of a Parquet file, whose pages are encoded,
are copied once, a row group at a time, to such an Arrow file beside it, or in `data.index`.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import stamp
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.progress import progress

logger = logging.getLogger(__name__)

ARROW = (".arrow", ".feather")
KEY = b"tfpipe.copied"
VERSION = 1
COPY = ".images.arrow"
# Images per batch of a copy: some 30 MB in memory.
IN_A_BATCH = 256


class Arrow(NamedTuple):
    """An Arrow file that is mapped into memory."""

    table: pa.Table
    start: int  # address of its first byte
    size: int  # bytes


def open_arrow(path: Path) -> Arrow:
    """Maps an Arrow file or stream into memory; raises OSError or pa.ArrowInvalid."""
    mapped = pa.memory_map(str(path))
    whole = mapped.read_buffer()
    mapped.seek(0)
    try:
        table = pa.ipc.open_file(mapped).read_all()
    except pa.ArrowInvalid:
        mapped.seek(0)
        table = pa.ipc.open_stream(mapped).read_all()
    return Arrow(table, whole.address, whole.size)


def holds_bytes(path: Path, column: str) -> bool:
    """Returns whether a table holds the images' files in a column, as bytes or as Hugging Face's {bytes, path}.

    Raises OSError or pa.ArrowInvalid.
    """
    if path.suffix == ".csv":
        return False
    schema = pq.read_schema(path) if path.suffix == ".parquet" else open_arrow(path).table.schema
    return _kind(schema, column) is not None


def _kind(schema: pa.Schema, column: str) -> pa.DataType | None:
    """Returns the type of a column's bytes; None if it holds none."""
    place = schema.get_field_index(column)
    kind = schema.field(place).type if place >= 0 else None
    if kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return kind if kind is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) else None


def locate(files: list[Path], column: str, config: DataConfig, world: World) -> Shards:
    """Locates the images of tables, after copying those that are encoded; the ranks share the files.

    Raises ConfigError if a copy cannot be written or the disk is too small, or an image has no bytes.
    """
    mine = range(len(files)) if world.backend == "none" else range(world.rank, len(files), world.size)
    errors: list[str] = []
    for number in progress(mine, len(mine), "copying images of tables", "file", world.rank == 0):
        try:
            _copied(files[number], column, config)
        except (OSError, TfpipeError, pa.ArrowInvalid) as error:  # the other ranks wait below
            errors.append(f"{files[number]}: {error}")
    errors = [error for part in world.gather(errors) for error in part]
    if errors:
        raise ConfigError("\n  ".join(["data.source: the images of tables cannot be used:", *errors[:20]]))
    return world.from_rank0(lambda: _shards(files, column, config))


def _shards(files: list[Path], column: str, config: DataConfig) -> Shards:
    paths = [path if _is_plain(path, column) else _copy_path(path, config) for path in files]
    parts = [_places(path, column if path == file else "image") for path, file in zip(paths, files, strict=True)]
    counts = [len(lengths) for _, lengths in parts]
    offsets, lengths = map(np.concatenate, zip(*parts, strict=True))
    images = np.arange(len(offsets), dtype=np.int32)
    shards = np.repeat(np.arange(len(files), dtype=np.int32), counts)
    return Shards("original", [str(path) for path in paths], Records(images, images, shards, offsets, lengths))


def _places(path: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offset and length of each image within an Arrow file, int64 [n] each.

    Raises ConfigError if one has no bytes.
    """
    table, start, _ = open_arrow(path)
    offsets, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for values in _values(table, column):
        if values.null_count:
            raise ConfigError(f'{path}: {values.null_count} images have no bytes in the column "{column}"')
        _, ends, data = values.buffers()
        width: type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        places = np.frombuffer(ends, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        offsets.append(places[:-1] + (data.address - start if data else 0))
        lengths.append(np.diff(places))
    return np.concatenate(offsets), np.concatenate(lengths)


def _values(table: pa.Table, column: str) -> Iterator[pa.Array]:
    for values in table[column].chunks:
        if len(values):
            yield values.field("bytes") if pa.types.is_struct(values.type) else values


def _is_plain(path: Path, column: str) -> bool:
    """Returns whether an image's bytes lie in the file as they are: in an Arrow file that is not compressed."""
    if path.suffix not in ARROW:
        return False
    table, start, size = open_arrow(path)
    buffers = (values.buffers()[2] for values in _values(table, column))
    return all(data is None or start <= data.address < start + size for data in buffers)


def _copy_path(path: Path, config: DataConfig) -> Path:
    if config.index is None:
        return path.with_name(path.stem + COPY)
    where = hashlib.sha256(os.fsencode(path)).hexdigest()
    return config.index / f"{path.stem}-{where[:8]}{COPY}"


def _copied(path: Path, column: str, config: DataConfig) -> None:
    """Copies the images of a table, some at a time, unless there is a copy of the same file or none is needed."""
    if _is_plain(path, column):
        return
    size, copy = path.stat().st_size, _copy_path(path, config)
    made_from = MadeFrom(VERSION, [(path.name, stamp(str(path)))], {"data.source.columns.bytes": column})
    if copy.exists():
        change = _change(copy, made_from)
        if change is None:
            return
        logger.warning("%s is out of date: %s; the images of %s are copied again", copy, change, path)
    advice = "set data.index to a folder that can be written"
    with writing(copy, advice):
        copy.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(copy.parent).free
        if size > free:
            raise ConfigError(f"{copy} needs {size / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free; {advice}")
        with atomic_write(copy) as partial:
            schema = pa.schema({"image": pa.large_binary()}, {KEY: made_from.text()})
            with pa.ipc.new_file(str(partial), schema) as writer:
                for values in _batches(path, column):
                    writer.write_batch(pa.record_batch([values.cast(pa.large_binary())], schema=schema))


def _change(copy: Path, made_from: MadeFrom) -> str | None:
    """Returns the reason to make a copy again; None if it is up to date."""
    try:
        return made_from.change((open_arrow(copy).table.schema.metadata or {}).get(KEY))
    except (OSError, pa.ArrowInvalid) as error:
        return f"it cannot be read: {error}"


def _batches(path: Path, column: str) -> Iterator[pa.Array]:
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            leaf = f"{column}.bytes" if pa.types.is_struct(file.schema_arrow.field(column).type) else column
            for batch in file.iter_batches(IN_A_BATCH, columns=[leaf]):
                values = batch.column(0)
                yield pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
    else:
        yield from _values(open_arrow(path).table, column)
