"""Locates the bytes of images in tables, so that each is read at once by its file, offset and length.

In an uncompressed Arrow file a value's bytes lie as they are. The images of a Parquet file, whose pages are encoded,
are copied once, some at a time, to a stored table (catalog/table.py) next to it, or in `data.index`.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfpipe.config import DataConfig
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import ADVICE, StoredTable, TableStore, catalog_folders
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.data.sources.rows import Rows
from tfpipe.data.sources.tables.column import is_binary
from tfpipe.data.sources.tables.formats import arrow_values, bytes_of, open_arrow, opening, table_format
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.files import stamp
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

ALL_OR_NONE = "a table holds the bytes of all its images, or of none and their paths; make two tables of it"
WRITE_AGAIN = "write the table again, and delete the copy of its images, images-* in its folder *.catalog"


class ImageBytes(NamedTuple):
    """A file that holds the bytes of a table's images as they are."""

    path: str
    offsets: np.ndarray  # int64 [n]: start of each image's bytes within the file
    lengths: np.ndarray  # int64 [n]

    def of(self, table: Path, rows: Rows | None) -> "ImageBytes":
        """Returns the images of `rows` of a table, which this file has all images of; None stands for all."""
        places = slice(None) if rows is None else rows.rows_in(table)
        return self._replace(offsets=self.offsets[places], lengths=self.lengths[places])


def locate(files: Sequence[Path], column: str, config: DataConfig, world: World, rows: Rows | None = None) -> Shards:
    """Locates the images of tables, or of `rows` of them, after copying those that are encoded; the ranks share this.

    Raises ConfigError if a copy cannot be written or the disk is too small, or an image has no bytes.
    """

    def copy_all(share: Sequence[Path]) -> list[str]:
        shown = progress(share, len(share), "copying images of tables", "file", world.rank == 0)
        return [_problem(path, column, config) for path in shown]

    def find() -> Shards:
        return _shards([_locate_images(path, column, config).of(path, rows) for path in files])

    _check(world.share(files, copy_all))
    shards, of_rank = world.from_rank0(find), list[Shards]()
    if all(world.on_all(lambda: all(map(os.path.exists, shards.paths)))):
        return shards
    # Each host has copies on a disk of its own: its ranks copy what only others have.
    of_host = files[world.local_rank :: world.local_size]
    _check(chain.from_iterable(world.on_all(lambda: copy_all(of_host))))
    world.on_all(lambda: of_rank.append(find()))
    (shards,) = of_rank
    return shards


def _check(problems: Iterable[str]) -> None:
    if texts := list(filter(None, problems)):
        raise ConfigError("\n  ".join(["data.source: the images of tables cannot be used:", *texts[:20]]))


def _problem(path: Path, column: str, config: DataConfig) -> str:
    """Returns why the images of a table cannot be located, or copied before; "" if they can."""
    try:
        _locate_images(path, column, config)
    except (OSError, TfpipeError, pa.ArrowInvalid) as error:
        return f"{path}: {error}"
    return ""


def _shards(files: list[ImageBytes]) -> Shards:
    offsets, lengths = (np.concatenate(columns) for columns in zip(*(file[1:] for file in files), strict=True))
    images = np.arange(len(offsets), dtype=np.int32)
    shards = np.repeat(np.arange(len(files), dtype=np.int32), [len(file.lengths) for file in files])
    located = Shards("original", [file.path for file in files], Records(images, images, shards, offsets, lengths))
    located.check_places([stamp(path).size or 0 for path in located.paths], FileList.of([]), WRITE_AGAIN)
    return located


@retried
def _locate_images(path: Path, column: str, config: DataConfig) -> ImageBytes:
    """Locates the images of a table, in a copy if they are encoded, which is made unless it is there."""
    plain = _plain(path, column)
    if plain is not None:
        return plain
    catalog = catalog_folders(config, [path])[0]
    store = TableStore([catalog], [(path.name, stamp(str(path)))], World(), must_store=True)

    def copy(_: World) -> StoredTable:
        size, free = path.stat().st_size, shutil.disk_usage(catalog).free
        if size > free:
            raise ConfigError(f"{catalog} needs {size / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free; {ADVICE}")
        lengths = [np.zeros(1, np.int64)]

        def contents() -> Iterator[np.ndarray]:
            yield np.zeros(0, np.uint8)
            with opening(path):
                for starts, data in byte_ranges(bytes_of(path, column), column):
                    lengths.append(np.diff(starts))
                    yield data[starts[0] : starts[-1]]

        # Known when the contents are written, which are the first.
        ends = (np.cumsum(np.concatenate(lengths)) for _ in range(1))
        return StoredTable({}, {}, {"contents": contents(), "starts": ends})

    table = store.table("images", {"data.source.columns.bytes": column}, copy)
    assert table is not None, "images are always copied"
    contents, starts = table.columns["contents"].base, table.columns["starts"]
    assert isinstance(contents, np.memmap), "the copy is mapped"
    return ImageBytes(str(contents.filename), starts[:-1] + contents.offset, np.diff(starts))


def _plain(path: Path, column: str) -> ImageBytes | None:
    """Locates the images of an Arrow file that is not compressed, so that they lie in it as they are; else None."""
    if table_format(path) != "arrow":
        return None
    table, start, size = open_arrow(path)
    offsets, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for starts, data in byte_ranges(arrow_values(table, column), column):
        if data.size and not start <= data.ctypes.data < start + size:
            return None
        offsets.append(starts[:-1] + (data.ctypes.data - start if data.size else 0))
        lengths.append(np.diff(starts))
    return ImageBytes(str(path), np.concatenate(offsets), np.concatenate(lengths))


def byte_ranges(parts: Iterable[pa.Array], column: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields where images start in the bytes of some, and the last ends, int64 [n + 1], and the bytes, uint8.

    Raises ConfigError if an image has no bytes.
    """
    row = 0
    for values in parts:
        if values.null_count:
            row += values.is_null().index(True).as_py()
            raise ConfigError(f'row {row} has no bytes in the column "{column}": {ALL_OR_NONE}')
        row += len(values)
        if pa.types.is_binary_view(values.type):
            values = values.cast(pa.large_binary())
        elif not is_binary(values.type):
            yield _lists(values, column)
            continue
        _, ends, data = values.buffers()
        width: type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        starts = np.frombuffer(ends, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        yield starts, np.frombuffer(data or b"", np.uint8)


def _lists(values: pa.Array, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns what byte_ranges yields, of lists of uint8; raises ConfigError if a number in them is missing."""
    lists = values.cast(pa.large_list(pa.uint8())) if pa.types.is_fixed_size_list(values.type) else values
    if lists.flatten().null_count:
        raise ConfigError(f'the lists of bytes in the column "{column}" have empty elements: write the files as bytes')
    numbers = lists.values.fill_null(0) if lists.values.null_count else lists.values
    return lists.offsets.to_numpy().astype(np.int64), numbers.to_numpy()
