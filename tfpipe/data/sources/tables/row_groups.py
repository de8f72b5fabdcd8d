"""Reads the images of Parquet files behind URLs by row groups, each once, into the cache `data.remote.cache`.

The start fetches the footers and the columns without images, as a copy of each file with holes. The first read of an
image of a row group fetches the images of the whole row group, which are cached as one block:

    starts   int64 [n + 1]   start of each image in the block, and the end of the last one
    images   their bytes

Row groups of Hugging Face's data sets hold some 100 images.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.sources.remote.cache import BlockKey, Cache
from tfpipe.data.sources.remote.copies import CopiedFiles, Parts
from tfpipe.data.sources.remote.url_path import UrlFile, UrlPath
from tfpipe.data.sources.rows import Rows
from tfpipe.data.sources.tables.contents import ALL_OR_NONE, byte_ranges
from tfpipe.data.sources.tables.formats import arrow_values, chunks_of, columns_but_bytes, leaf_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.forks import per_process
from tfpipe.util.locks import waiting_lock
from tfpipe.util.made_from import MadeFrom

FORMAT = 1
MAGIC = b"PAR1"
# Bytes at the start, which tell the format, and at the end of a file, which mostly hold its footer.
HEAD, TAIL = 16, 2**16
# Row groups that a process decodes at once: each is in memory several times.
TOGETHER = 4
# Files by which the threads and processes of a host wait for a row group that one of them fetches.
LOCKS = 64
# Tries to read an image of a row group, which another process may evict between its caching and that.
TRIES = 3
INT = np.dtype("<i8")


def without_bytes(texts: Sequence[str], images: str) -> Parts:
    """Returns the form of copies that hold the columns of formats.read_table."""
    return Parts(f"without columns of bytes, {images} but {texts}", partial(_write, texts=texts, images=images))


def _write(file: IO[bytes], url: UrlPath, size: int, texts: Sequence[str], images: str) -> None:
    """Writes a Parquet file without its columns of bytes, which become holes; raises OSError.

    Of a file that is no Parquet file it writes the start and the end, by which reading it fails with a reason.
    """
    at = max(size - TAIL, 0)
    head, tail = url.spans([(0, HEAD), (at, size)])
    footer = size - len(MAGIC) - 4 - int.from_bytes(tail[-8:-4], "little")
    if 0 < footer < at and tail.endswith(MAGIC):
        (before,) = url.spans([(footer, at)])
        at, tail = footer, before + tail
    _write_at(file, 0, head)
    _write_at(file, at, tail)
    with suppress(pa.ArrowInvalid), pq.ParquetFile(file.name) as parquet:
        spans = [*map(_chunk_span, chunks_of(parquet, columns_but_bytes(parquet.schema_arrow, texts, images)))]
        for (start, _), data in zip(spans, url.spans(spans), strict=True):
            _write_at(file, start, data)


def _write_at(file: IO[bytes], start: int, data: bytes) -> None:
    file.seek(start)
    file.write(data)
    file.flush()


def _chunk_span(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Returns where a column's part of a row group starts and ends in the file."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


class _Groups(NamedTuple):
    """The row groups of several files."""

    starts: np.ndarray  # int64 [g + 1]: number of each group's first image, and of all images
    file: np.ndarray  # int64 [g]: number of its file
    number: np.ndarray  # int64 [g]: its number there
    size: int  # bytes of all images


class RowGroups:
    """The images of Parquet files behind URLs, in the cache as far as they were read. Thread-safe."""

    def __init__(self, files: CopiedFiles, column: str, rows: Rows, config: DataConfig, world: World) -> None:
        """Opens files, of which there are copies without images, for the images of `rows`; every rank must call.

        Raises ConfigError if an image has no bytes, or the images do not fit into the cache.
        """
        self.urls, self._column = files.urls, column
        # A second before, since the clock of a file system may be behind this one.
        self._opened_s = time.time() - 1.0
        self._metadata = [pq.read_metadata(path) for path in files.paths]
        self._groups = world.from_rank0(lambda: _groups_of(files.paths, column))
        # Of each file the place of its first row among those of all files, and of each image its row's place there.
        self._firsts = self._groups.starts[np.searchsorted(self._groups.file, np.arange(len(files.paths)))]
        places = [first + rows.rows_in(path) for first, path in zip(self._firsts, files.paths, strict=True)]
        self._places = np.concatenate(places)
        limit = config.remote.cache_gb * 1e9
        if self._groups.size > limit:
            raise ConfigError(
                f"data.remote.cache_gb: received {config.remote.cache_gb:g}, and the images of "
                f"{self.urls[0][0].parent} need {self._groups.size / 1e9:.3g} GB: raise it, or set data.remote.cache "
                "to null, by which the tables are copied to data.index"
            )
        self._cache = Cache(config.remote)
        versions = [(str(url), stamp) for url, stamp in self.urls]
        self._digest = MadeFrom(FORMAT, versions, {"column": column}).digest()
        self._cache.mark(self._digest)
        assert config.remote.cache is not None, "else the tables are copied"
        self._folder = config.remote.cache
        self._turns = per_process(partial(threading.Semaphore, TOGETHER))

    def origin(self, item: int) -> str:
        """Returns the row and the URL of an image, for a message."""
        place = int(self._places[item])
        file = int(self._groups.file[self._group(place)])
        return f"record {place - self._firsts[file]} of {self.urls[file][0]}"

    def contents(self, item: int) -> bytes:
        """Returns the file of image `item`; raises OSError or ValueError."""
        place = int(self._places[item])
        group = self._group(place)
        block = BlockKey(self._digest, int(self._groups.file[group]), int(self._groups.number[group]))
        at = INT.itemsize * (place - int(self._groups.starts[group]))
        for _ in range(TRIES):
            self._cache_group(group, block)
            bounds = self._cache.read(block, at, at + 2 * INT.itemsize)
            start, end = np.frombuffer(bounds or b"", INT).tolist() or (0, 0)
            contents = self._cache.read(block, start, end)
            if bounds is not None and contents is not None:
                return contents
        raise ValueError("other processes evict it from data.remote.cache again and again: raise data.remote.cache_gb")

    def _group(self, place: int) -> int:
        return int(np.searchsorted(self._groups.starts, place, "right")) - 1

    def _cache_group(self, group: int, block: BlockKey) -> None:
        """Fetches a row group into the cache as `block` if it is not there; raises OSError or ValueError."""
        if self._cache.has(block):
            return
        with waiting_lock(self._folder / f"row-groups-{group % LOCKS}.lock"), self._turns():
            if self._cache.has(block):  # another thread or process has fetched it since
                return
            if not self._cache.keep({block: self._fetch_group(group)}, unused_since=self._opened_s):
                raise ValueError(
                    "data.remote.cache has no room for its row group: raise data.remote.cache_gb, or free its disk"
                )

    def _fetch_group(self, group: int) -> bytes:
        """Returns the block of a row group, read in this thread: Arrow's must not free a Python file at the exit."""
        number, metadata = int(self._groups.number[group]), self._metadata[self._groups.file[group]]
        try:
            file = pa.PythonFile(UrlFile(*self.urls[self._groups.file[group]]), "r")
            with pq.ParquetFile(file, metadata=metadata) as parquet:
                table = parquet.read_row_group(number, [leaf_of(parquet.schema_arrow, self._column)], use_threads=False)
            parts = list(byte_ranges(arrow_values(table, self._column), self._column))
        except (pa.ArrowInvalid, OSError, TfpipeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"cannot read its row group {number}: {reason}") from error
        lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(starts) for starts, _ in parts)])
        starts = INT.itemsize * len(lengths) + np.cumsum(lengths)
        return b"".join([starts.astype(INT).tobytes(), *(data[first[0] : first[-1]].data for first, data in parts)])


def _groups_of(copies: Sequence[Path], column: str) -> _Groups:
    """Finds the row groups by the footers; raises ConfigError if these say that an image has no bytes."""
    rows, groups, size = [0], [], 0
    for file, path in enumerate(copies):
        with pq.ParquetFile(path) as parquet:
            for number, chunk in enumerate(chunks_of(parquet, [leaf_of(parquet.schema_arrow, column)])):
                count = parquet.metadata.row_group(number).num_rows
                if nulls := chunk.is_stats_set and chunk.statistics.null_count:
                    raise ConfigError(
                        f"data.source: {path}: {nulls} of {count} rows of row group {number} have no bytes in the "
                        f'column "{column}": {ALL_OR_NONE}'
                    )
                rows.append(rows[-1] + count)
                groups.append((file, number))
                size += chunk.total_uncompressed_size
    columns = np.array(groups, np.int64).reshape(-1, 2)
    return _Groups(np.array(rows, np.int64), columns[:, 0], columns[:, 1], size)
