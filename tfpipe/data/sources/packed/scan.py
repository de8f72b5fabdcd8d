"""Scans shards that other tools wrote: once, by all ranks together; the result is stored as a Parquet file.

It has one row per image, and says what it was made from: if a shard, by name, size or time of change, or a setting that
the scan depends on has changed, the shards are scanned again.
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
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, stamps_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import Stamp
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.progress import progress
from tfpipe.util.retry import may_pass, retried

logger = logging.getLogger(__name__)

KEY, LEFT_OUT = b"tfpipe.shards", b"tfpipe.left_out"
COPY_AGAIN = "copy it again, or write it again"
# Scanning alternates between waiting for storage and running Python.
THREADS = 8

Rows = Sequence[tuple[Any, ...]]


class LeftOut:
    """Counts what shards hold and training does not use, by kind, with an example of each kind."""

    def __init__(self, counts: dict[str, tuple[int, str]] | None = None) -> None:
        self.counts: dict[str, tuple[int, str]] = dict(counts or {})

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Counts `count` more of a kind, e.g. ".tiff"."""
        before, first = self.counts.get(kind, (0, example))
        self.counts[kind] = before + count, first

    def update(self, other: "LeftOut") -> None:
        """Adds what another one has counted."""
        for kind, (count, example) in other.counts.items():
            self.add(kind, example, count)

    @property
    def texts(self) -> list[str]:
        """The count and the example of each kind, the most frequent first."""
        kinds = sorted(self.counts.items(), key=lambda item: (-item[1][0], item[0]))
        return [f"{count:,} {kind} (e.g. {example})" for kind, (count, example) in kinds]


class Scan(NamedTuple):
    """A way to scan shards of a kind."""

    kind: str  # name of the shards for messages, e.g. "TFRecords"
    name: str  # end of the stored file's name, e.g. "tfrecord-index"
    version: int  # of the stored file
    schema: pa.Schema  # columns of the stored file, `shard` (int32), the shard's number, the last
    read: Callable[[Any, int, LeftOut], Rows]
    """Path (or UrlPath) and size in bytes of a shard -> the values of the other columns for each image; counts what is
    not used. Raises OSError, or a ValueError that names the shard."""
    settings: dict[str, Any]  # config keys that the result depends on, and their values


class Scanned(NamedTuple):
    """The result of a scan."""

    table: pa.Table  # one row per image, with the schema of the Scan
    shards: list[tuple[AnyPath, Stamp]]
    left_out: LeftOut


Shard = tuple[int, AnyPath, int]
"""Number, path and size in bytes of a shard."""


def scanned(
    scan: Scan, shards: Callable[[], Sequence[AnyPath]], prefix: str, config: DataConfig, folder: AnyPath, world: World
) -> Scanned:
    """Returns the scan of shards: reads the stored one, or makes it with all ranks together and stores it.

    `shards` lists them, on rank 0 alone; `prefix`, e.g. "train", begins the stored file's name, which lies in `folder`
    or in `data.index`. Raises ConfigError if shards cannot be read; the message names up to 20 of them.
    """
    found = world.from_rank0(lambda: _stamped(shards()))
    made_from = MadeFrom(scan.version, [(path.name, stamp) for path, stamp in found], scan.settings)
    path = _stored_path(scan, prefix, config, folder)
    if world.from_rank0(lambda: _is_kept(scan, path, made_from)):
        table = retried(pq.read_table)(path)
    else:
        table, counted = _scan(scan, found, prefix, folder, world)
        table = table.replace_schema_metadata({KEY: made_from.text(), LEFT_OUT: json.dumps(counted.counts)})
        world.from_rank0(lambda: _keep(path, table))
    left_out = LeftOut({kind: tuple(about) for kind, about in json.loads(table.schema.metadata[LEFT_OUT]).items()})
    return Scanned(table, found, left_out)


def _stamped(shards: Sequence[AnyPath]) -> list[tuple[AnyPath, Stamp]]:
    """Returns the shards with their stamps; raises ConfigError if one cannot be reached."""
    found: list[tuple[AnyPath, Stamp]] = []
    for path, stamp in zip(shards, stamps_of(shards), strict=True):
        if isinstance(stamp, OSError):
            raise ConfigError(f"cannot read {path}: {stamp.strerror}")
        found.append((path, stamp))
    return found


def _stored_path(scan: Scan, prefix: str, config: DataConfig, folder: AnyPath) -> Path:
    if config.index is None:
        if isinstance(folder, UrlPath):
            raise ConfigError(
                f"data.index must name a local folder, to store what the {scan.kind} in {folder} hold: set it"
            )
        return folder / f"{prefix}.{scan.name}.parquet"
    where = hashlib.sha256(os.fsencode(str(folder))).hexdigest()
    return config.index / f"{prefix}-{where[:8]}.{scan.name}.parquet"


@retried
def _is_kept(scan: Scan, path: Path, made_from: MadeFrom) -> bool:
    try:
        change = made_from.change((pq.read_schema(path).metadata or {}).get(KEY))
    except FileNotFoundError:
        return False
    except (OSError, pa.ArrowInvalid) as error:
        if may_pass(error):
            raise
        change = f"it cannot be read: {error}"
    if change is not None:
        logger.warning("%s is out of date: %s; the %s are scanned again", path, change, scan.kind)
    return change is None


def _keep(path: Path, table: pa.Table) -> None:
    with writing(path, "set data.index to a folder that can be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            pq.write_table(table, partial, compression="zstd")


def _scan(
    scan: Scan, shards: list[tuple[AnyPath, Stamp]], prefix: str, folder: AnyPath, world: World
) -> tuple[pa.Table, LeftOut]:
    """Scans the shards, shared by the ranks; raises ConfigError if some cannot be read."""
    sized = [(number, path, stamp.size or 0) for number, (path, stamp) in enumerate(shards)]

    def scan_all(mine: Sequence[Shard]) -> list[tuple[pa.Table, LeftOut] | str]:
        with ThreadPoolExecutor(THREADS) as pool:
            results = pool.map(lambda shard: _scan_one(scan, shard), mine)
            return list(progress(results, len(mine), f"scanning {prefix} data", "shard", world.rank == 0))

    results = world.share(sized, scan_all)
    parts = [result for result in results if not isinstance(result, str)]
    errors = [result for result in results if isinstance(result, str)]
    if errors:
        raise ConfigError("\n  ".join([f"cannot read the {scan.kind} in {folder}:", *errors[:20]]))
    left_out = LeftOut()
    for _, counted in parts:
        left_out.update(counted)
    return pa.concat_tables(table for table, _ in parts).combine_chunks(), left_out


def _scan_one(scan: Scan, shard: Shard) -> tuple[pa.Table, LeftOut] | str:
    number, path, size = shard

    def read() -> tuple[Rows, LeftOut]:
        left_out = LeftOut()
        return scan.read(path, size, left_out), left_out

    try:
        # Requests have retries of their own.
        rows, left_out = (read if isinstance(path, UrlPath) else retried(read))()
        columns = list(zip(*rows, strict=True)) or [()] * (len(scan.schema) - 1)
        values = [*map(list, columns), [number] * len(rows)]
        return pa.table(dict(zip(scan.schema.names, values, strict=True)), scan.schema), left_out
    except OSError as error:
        return f"cannot read {path}: {error.strerror or error}"
    except ValueError as error:
        return str(error)
