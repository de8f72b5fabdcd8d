"""Scans shards that other tools wrote: once, by all ranks together; the result is stored as a Parquet file.

It has one row per image. The key of the stored file is the shards' names and sizes; if these change, the shards are
scanned again.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, sizes_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.progress import progress

logger = logging.getLogger(__name__)

KEY = b"tfpipe.shards"
# Scanning alternates between waiting for storage and running Python.
THREADS = 8


class Scan(NamedTuple):
    """A way to scan shards of a kind."""

    kind: str  # name of the shards for messages, e.g. "TFRecords"
    name: str  # end of the stored file's name, e.g. "tfrecord-index"
    format: int  # version of the stored file
    schema: pa.Schema  # columns of the stored file, `shard` (int32), the shard's number, the last
    read: Callable[[Any, int], Sequence[tuple[Any, ...]]]
    """Path (or UrlPath) and size in bytes of a shard -> the values of the other columns for each image. Raises OSError,
    or a ValueError that names the shard."""


Shard = tuple[int, AnyPath, int]
"""Number, path and size in bytes of a shard."""


def scanned(
    scan: Scan, shards: Callable[[], Sequence[AnyPath]], prefix: str, config: DataConfig, folder: AnyPath, world: World
) -> pa.Table:
    """Returns the scan of shards: reads the stored one, or makes it with all ranks together and stores it.

    `shards` lists them, on rank 0 alone; `prefix`, e.g. "train", begins the stored file's name, which lies in `folder`
    or in `data.index`. Raises ConfigError if shards cannot be read; the message names up to 20 of them.
    """
    sized = world.from_rank0(lambda: sized_shards(shards()))
    key = json.dumps([scan.format, [[path.name, size] for path, size in sized]]).encode()
    path = _stored_path(scan, prefix, config, folder)
    if world.from_rank0(lambda: _is_kept(scan, path, key)):
        return pq.read_table(path)
    mine = range(len(sized)) if world.backend == "none" else range(world.rank, len(sized), world.size)
    outcome = world.gather(_scan_all(scan, [(number, *sized[number]) for number in mine], prefix, world))
    errors = [error for _, messages in outcome for error in messages]
    if errors:
        raise ConfigError("\n  ".join([f"cannot read the {scan.kind} in {folder}:", *errors[:20]]))
    parts = {number: part for tables, _ in outcome for number, part in tables.items()}
    table = pa.concat_tables(parts[number] for number in range(len(sized))).combine_chunks()

    def keep() -> None:
        with writing(path, "set data.index to a folder that can be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as partial:
                pq.write_table(table.replace_schema_metadata({KEY: key}), partial, compression="zstd")

    world.from_rank0(keep)
    return table


def sized_shards(shards: Sequence[AnyPath]) -> list[tuple[AnyPath, int]]:
    """Returns the shards with their sizes in bytes; raises ConfigError if one cannot be reached."""
    sized: list[tuple[AnyPath, int]] = []
    for path, size in zip(shards, sizes_of(shards), strict=True):
        if isinstance(size, OSError):
            raise ConfigError(f"cannot read {path}: {size.strerror}")
        sized.append((path, size))
    return sized


def _stored_path(scan: Scan, prefix: str, config: DataConfig, folder: AnyPath) -> Path:
    if config.index is None:
        if isinstance(folder, UrlPath):
            raise ConfigError(
                f"data.index must name a local folder, to store what the {scan.kind} in {folder} hold: set it"
            )
        return folder / f"{prefix}.{scan.name}.parquet"
    where = hashlib.sha256(os.fsencode(str(folder))).hexdigest()
    return config.index / f"{prefix}-{where[:8]}.{scan.name}.parquet"


def _is_kept(scan: Scan, path: Path, key: bytes) -> bool:
    try:
        stored = (pq.read_schema(path).metadata or {}).get(KEY)
    except FileNotFoundError:
        return False
    except (OSError, pa.ArrowInvalid) as error:
        logger.warning("cannot read %s (%s); the %s are scanned again", path, error, scan.kind)
        return False
    if stored != key:
        logger.warning("%s is of other shards; the %s are scanned again", path, scan.kind)
    return stored == key


def _scan_all(scan: Scan, shards: list[Shard], prefix: str, world: World) -> tuple[dict[int, pa.Table], list[str]]:
    """Scans shards; returns tables by shard number, and error messages, which must not be raised on one rank alone."""
    parts, errors = {}, []
    with ThreadPoolExecutor(THREADS) as pool:
        results = pool.map(lambda shard: _scan_one(scan, shard), shards)
        for result in progress(results, len(shards), f"scanning {prefix} data", "shard", world.rank == 0):
            if isinstance(result, str):
                errors.append(result)
            else:
                parts[result[0]] = result[1]
    return parts, errors


def _scan_one(scan: Scan, shard: Shard) -> tuple[int, pa.Table] | str:
    number, path, size = shard
    try:
        rows = scan.read(path, size)
    except OSError as error:
        return f"cannot read {path}: {error.strerror or error}"
    except ValueError as error:
        return str(error)
    columns = list(zip(*rows, strict=True)) or [()] * (len(scan.schema) - 1)
    values = [*map(list, columns), [number] * len(rows)]
    return number, pa.table(dict(zip(scan.schema.names, values, strict=True)), scan.schema)
