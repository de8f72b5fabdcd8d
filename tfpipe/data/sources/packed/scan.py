"""Scans shards that other tools wrote: once, by all ranks together; the result is a stored table (catalog/table.py)."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, catalog_folders
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.data.sources.remote.ranges import RemoteFiles
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, stamps_of
from tfpipe.data.sources.rows import Rows, Texts
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

COPY_AGAIN = "copy it again, or write it again"
# Scanning alternates between waiting for storage and running Python.
THREADS = 8


class Scanned(NamedTuple):
    """An image of a shard, as a scan finds it."""

    name: str
    label: str | None  # name or number of its class
    number: int  # its class as a number of its own beside the label; 0 if there is none
    size: tuple[float, float]  # height and width that the boxes are divided by
    boxes: list[list[float]]  # ymin, xmin, ymax, xmax of each
    box_labels: Sequence[str | None]  # name or number of each box's class; None for its image's
    offset: int  # start of its bytes within the shard
    length: int  # in bytes


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
    name: str  # of the stored table
    read: Callable[[Any, int, LeftOut], list[Scanned]]
    """Path (or UrlPath) and size in bytes of a shard -> its images, in their order; counts what is not used. Raises
    OSError, or a ValueError that names the shard."""
    settings: dict[str, Any]  # config keys that the result depends on, and their values


class Shard(NamedTuple):
    """The images of a shard, or of several, one shard after the other."""

    rows: Rows
    left_out: LeftOut
    number: np.ndarray  # int64 [n]: see Scanned
    offset: np.ndarray  # int64 [n]
    length: np.ndarray  # int64 [n]

    @classmethod
    def of(cls, images: list[Scanned], path: AnyPath, left_out: LeftOut) -> "Shard":
        """Makes columns of the images of a single shard."""
        columns: Iterable[Any] = zip(*images, strict=True) if images else [()] * len(Scanned._fields)
        names, labels, numbers, sizes, boxes, own, *places = columns
        rows = Rows(
            FileList.of(names),
            Texts.of(labels),
            np.repeat(np.arange(len(images)), list(map(len, boxes))),
            np.array(list(chain.from_iterable(boxes)), np.float32).reshape(-1, 4),
            Texts.of(chain.from_iterable(own)),
            np.array(sizes, np.float32).reshape(-1, 2),
            [str(path)],
            np.zeros(len(images), np.int32),
        )
        return cls(rows, left_out, *(np.array(column, np.int64) for column in (numbers, *places)))

    @classmethod
    def joined(cls, parts: "Sequence[Shard]") -> "Shard":
        """Concatenates the images of shards."""
        left_out = LeftOut()
        for part in parts:
            left_out.update(part.left_out)
        columns = (np.concatenate(column) for column in zip(*(part[2:] for part in parts), strict=True))
        return cls(Rows.joined([part.rows for part in parts]), left_out, *columns)

    def table(self) -> StoredTable:
        """Returns the table to be stored."""
        rows, places = self.rows.table(), {name: getattr(self, name) for name in PLACES}
        return StoredTable({**rows.values, "left_out": self.left_out.counts}, {**rows.columns, **places})

    @classmethod
    def of_table(cls, table: StoredTable, files: list[str]) -> "Shard":
        """Returns the images of a stored table, which are in `files`."""
        left_out = LeftOut({kind: tuple(about) for kind, about in table.values["left_out"].items()})
        return cls(Rows.of_table(table, files), left_out, *(table.columns[name] for name in PLACES))

    def shards(self, labels: np.ndarray, remote: RemoteFiles | None = None) -> Shards:
        """Returns where the images' bytes are; `labels` (int32 [n]) are their class numbers."""
        images = np.arange(len(labels), dtype=np.int32)
        records = Records(images, labels, self.rows.file, self.offset, self.length)
        return Shards("original", self.rows.files, records, remote=remote)


PLACES = ("number", "offset", "length")
Stamped = list[tuple[AnyPath, Stamp]]


def scanned(
    scan: Scan, shards: Callable[[], Sequence[AnyPath]], prefix: str, config: DataConfig, folder: AnyPath, world: World
) -> tuple[Shard, Stamped]:
    """Returns the images of shards, and the shards: maps the stored scan, or makes it with all ranks together.

    `shards` lists them, on rank 0 alone; `prefix`, e.g. "train", begins the name of the catalog, which lies in `folder`
    or in `data.index`. Raises ConfigError if shards cannot be read; the message names up to 20 of them.
    """
    if isinstance(folder, UrlPath) and config.index is None:
        raise ConfigError(
            f"data.index must name a local folder, to store what the {scan.kind} in {folder} hold: set it"
        )
    found = world.from_rank0(lambda: _stamped(shards()))
    folders = catalog_folders(config, [folder / prefix])[:1]
    store = TableStore(folders, [(path.name, stamp) for path, stamp in found], world, must_store=True)

    def make(ranks: World) -> StoredTable:
        return _scan(scan, found, f"scanning {prefix} data", folder, ranks).table()

    table = store.table(scan.name, scan.settings, make, shared=True)
    assert table is not None, "shards are always scanned"
    return Shard.of_table(table, [str(path) for path, _ in found]), found


def _stamped(shards: Sequence[AnyPath]) -> Stamped:
    """Returns the shards with their stamps; raises ConfigError if one cannot be reached."""
    found: Stamped = []
    for path, stamp in zip(shards, stamps_of(shards), strict=True):
        if isinstance(stamp, OSError):
            raise ConfigError(f"cannot read {path}: {stamp.strerror}")
        found.append((path, stamp))
    return found


def _scan(scan: Scan, shards: Stamped, label: str, folder: AnyPath, world: World) -> Shard:
    """Scans the shards, shared by the ranks; raises ConfigError if some cannot be read."""

    def scan_all(mine: Sequence[tuple[AnyPath, Stamp]]) -> list[Shard | str]:
        with ThreadPoolExecutor(THREADS) as pool:
            results = pool.map(lambda shard: _scan_one(scan, *shard), mine)
            return list(progress(results, len(mine), label, "shard", world.rank == 0))

    parts = world.share(shards, scan_all)
    errors = [part for part in parts if isinstance(part, str)]
    if errors:
        raise ConfigError("\n  ".join([f"cannot read the {scan.kind} in {folder}:", *errors[:20]]))
    return Shard.joined([part for part in parts if isinstance(part, Shard)])


def _scan_one(scan: Scan, path: AnyPath, stamp: Stamp) -> Shard | str:
    """Scans a shard; returns an error message instead of raising it on one rank alone."""

    def read() -> Shard:
        left_out = LeftOut()
        return Shard.of(scan.read(path, stamp.size or 0, left_out), path, left_out)

    try:
        # Requests have retries of their own.
        return (read if isinstance(path, UrlPath) else retried(read))()
    except OSError as error:
        return f"cannot read {path}: {error.strerror or error}"
    except (ValueError, ConfigError) as error:
        return str(error)
