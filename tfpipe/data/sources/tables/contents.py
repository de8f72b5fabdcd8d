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

import numpy as np
import pyarrow as pa

from tfpipe.config import DataConfig
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.data.sources.tables.formats import arrow_values, bytes_of, open_arrow, table_format
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.atomic_write import locked_write, remove_abandoned, writing
from tfpipe.util.files import stamp
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.progress import progress
from tfpipe.util.retry import may_pass, retried

logger = logging.getLogger(__name__)

KEY = b"tfpipe.copied"
VERSION = 1
COPY = ".images.arrow"
# The copy's column.
COPIED = "image"


def locate(files: list[Path], column: str, config: DataConfig, world: World) -> Shards:
    """Locates the images of tables, after copying those that are encoded; the ranks share the files.

    Raises ConfigError if a copy cannot be written or the disk is too small, or an image has no bytes.
    """

    def copy(path: Path) -> str | None:
        try:
            _copied(path, column, config)
        except (OSError, TfpipeError, pa.ArrowInvalid) as error:
            return f"{path}: {error}"
        return None

    show = world.rank == 0
    outcomes = world.share(
        files, lambda mine: [copy(path) for path in progress(mine, len(mine), "copying images of tables", "file", show)]
    )
    errors = list(filter(None, outcomes))
    if errors:
        raise ConfigError("\n  ".join(["data.source: the images of tables cannot be used:", *errors[:20]]))
    return world.from_rank0(lambda: _shards(files, column, config))


@retried
def _shards(files: list[Path], column: str, config: DataConfig) -> Shards:
    paths = [path if _is_plain(path, column) else _copy_path(path, config) for path in files]
    parts = [_places(path, column if path == file else COPIED) for path, file in zip(paths, files, strict=True)]
    counts = [len(lengths) for _, lengths in parts]
    offsets, lengths = map(np.concatenate, zip(*parts, strict=True))
    images = np.arange(len(offsets), dtype=np.int32)
    shards = np.repeat(np.arange(len(files), dtype=np.int32), counts)
    return Shards("original", [str(path) for path in paths], Records(images, images, shards, offsets, lengths))


def _places(path: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offset and length of each image within an Arrow file, int64 [n] each; all have bytes."""
    table, start, _ = open_arrow(path)
    offsets, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for values in arrow_values(table, column):
        _, ends, data = values.buffers()
        width: type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        places = np.frombuffer(ends, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        offsets.append(places[:-1] + (data.address - start if data else 0))
        lengths.append(np.diff(places))
    return np.concatenate(offsets), np.concatenate(lengths)


def _is_plain(path: Path, column: str) -> bool:
    """Returns whether an image's bytes lie in the file as they are: in an Arrow file that is not compressed."""
    if table_format(path) != "arrow":
        return False
    table, start, size = open_arrow(path)
    buffers = (values.buffers()[2] for values in arrow_values(table, column))
    return all(data is None or start <= data.address < start + size for data in buffers)


def _copy_path(path: Path, config: DataConfig) -> Path:
    if config.index is None:
        return path.with_name(path.stem + COPY)
    where = hashlib.sha256(os.fsencode(path)).hexdigest()
    return config.index / f"{path.stem}-{where[:8]}{COPY}"


@retried
def _copied(path: Path, column: str, config: DataConfig) -> None:
    """Copies the images of a table, some at a time, unless there is a copy of the same file or none is needed.

    Raises ConfigError if an image has no bytes, or the copy cannot be written.
    """
    if _is_plain(path, column):
        for _ in _checked(path, column):
            pass
        return
    size, copy = path.stat().st_size, _copy_path(path, config)
    made_from = MadeFrom(VERSION, [(path.name, stamp(str(path)))], {"data.source.columns.bytes": column})
    remove_abandoned(copy)
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
        schema = pa.schema({COPIED: pa.large_binary()}, {KEY: made_from.text()})
        with locked_write(copy) as file, pa.ipc.new_file(file, schema) as writer:
            for values in _checked(path, column):
                writer.write_batch(pa.record_batch([values.cast(pa.large_binary())], schema=schema))


def _change(copy: Path, made_from: MadeFrom) -> str | None:
    """Returns the reason to make a copy again; None if it is up to date."""
    try:
        return made_from.change((open_arrow(copy).table.schema.metadata or {}).get(KEY))
    except (OSError, pa.ArrowInvalid) as error:
        if may_pass(error):
            raise
        return f"it cannot be read: {error}"


def _checked(path: Path, column: str) -> Iterator[pa.Array]:
    """Yields the bytes of a table's images, in parts; raises ConfigError if an image has none."""
    row = 0
    for values in bytes_of(path, column):
        if values.null_count:
            row += values.is_null().index(True).as_py()
            raise ConfigError(
                f'row {row} has no bytes in the column "{column}": a table holds the bytes of all its images, or of '
                "none and their paths; make two tables of it"
            )
        row += len(values)
        yield values
