"""Scans shards that other tools wrote: once, by all ranks together; the result is a stored table (catalog/table.py)."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfpipe.config import SourceConfig
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, catalog_folders
from tfpipe.data.sources.packed.shards import Deflated, Records, Shards
from tfpipe.data.sources.packed.stored import Stored
from tfpipe.data.sources.remote.ranges import RemoteFiles
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, stamps_of
from tfpipe.data.sources.rows import Rows, Texts
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

COPY_AGAIN = "copy it again, or write it again"
SCAN_AGAIN = "what was stored of it was damaged: delete the folder *.catalog next to it or in data.index"
# Scanning alternates between waiting for storage and running Python.
THREADS = 8


class Scanned(NamedTuple):
    """An image of a shard, as a scan finds it."""

    name: str
    label: str | None  # name or number of its class
    number: int  # its class as a number of its own next to the label; 0 if there is none
    size: tuple[float, float]  # height and width that the boxes are divided by
    boxes: list[list[float]]  # ymin, xmin, ymax, xmax of each
    box_labels: Sequence[str | None]  # name or number of each box's class; None for its image's
    offset: int  # start of its bytes within the shard
    length: int  # in bytes
    inflated: int = 0  # bytes when inflated, if they are deflated; else 0
    checksum: int = 0  # CRC-32 of these
    more: Sequence[Any] = ()  # values of the columns ScannedSource.further


class ScannedRows(NamedTuple):
    """The images of all shards of a split, one shard after the other."""

    rows: Rows
    ledger: Ledger
    shards: "Stamped"

    def as_shards(self, labels: np.ndarray, remote: RemoteFiles | None = None) -> Shards:
        """Returns the shards as packed data, without the images' bytes; `labels` (int32 [n]) are class numbers."""
        images, columns = np.arange(len(labels), dtype=np.int32), self.rows.more
        records = Records(images, labels, self.rows.file, columns["offset"], columns["length"])
        deflated = Deflated(columns["inflated"], columns["checksum"]) if columns["inflated"].any() else None
        return self.checked(Shards("original", self.rows.files, records, remote=remote, deflated=deflated))

    def checked(self, shards: Shards) -> Shards:
        """Returns `shards`, whose records are of these images; raises ConfigError if one is not within its shard."""
        shards.check_places([stamp.size or 0 for _, stamp in self.shards], FileList.of(self.rows.names), SCAN_AGAIN)
        return shards


Stamped = list[tuple[AnyPath, Stamp]]


class ScannedSource(Stored):
    """Images in shards that other tools wrote; a kind has to define three methods, and `load`."""

    kind: ClassVar[str]
    """Name of the shards for messages, e.g. "TFRecords"."""
    stored_as: ClassVar[str]
    """Kind of the stored table."""

    @abstractmethod
    def shards_of(self, split: str) -> Sequence[AnyPath]:
        """Returns the shards of a split, sorted; none if there is none."""

    @abstractmethod
    def checked(self, split: str) -> Sequence[AnyPath]:
        """Returns the shards of a split; raises ConfigError if there is none, or one is missing."""

    @abstractmethod
    def scan(self, path: Any, size: int, ledger: Ledger) -> Rows:
        """Returns the images of a shard (a Path or UrlPath) of `size` bytes, in their order; counts what is not used.

        Raises OSError, or a ValueError that names the shard.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """Config keys that a scan depends on, and their values."""
        return {}

    @property
    def further(self) -> Sequence[str]:
        """Names of more columns, whose values `Scanned.more` has."""
        return ()

    def typed(self, rows: Rows) -> Rows:
        """Gives further columns their types, once all shards are scanned; raises ConfigError if one has none."""
        return rows

    @property
    def about(self) -> SourceConfig:
        """Settings of the source."""
        assert self.config.source is not None, "the config is checked"
        return self.config.source

    def has_test(self) -> bool:
        return bool(self.shards_of("test"))

    def check(self, test: bool = False) -> None:
        for split in ("train", "test") if test and self.about.test_path is not None else ("train",):
            self.checked(split)

    def scanned(self, split: str, world: World) -> ScannedRows:
        """Returns the images of a split: maps the stored scan, or makes it with all ranks together.

        Its catalog, train.catalog, or a.catalog if the config names a.tar, lies next to the shards or in `data.index`.
        Raises ConfigError if shards cannot be read; the message names up to 20 of them.
        """
        shards = world.from_rank0(lambda: _stamped(self.checked(split)))
        folder = shards[0][0].parent
        # Of several archives in a folder, each that a config names has a scan of its own.
        named = shards[0][0] if shards[0][0] in (self.about.path, self.about.test_path) else folder / split
        if isinstance(folder, UrlPath) and self.config.index is None:
            raise ConfigError(
                f"data.index must name a local folder, to store what the {self.kind} in {folder} hold: set it"
            )
        folders = catalog_folders(self.config, [named])[:1]
        store = TableStore(folders, [(path.name, stamp) for path, stamp in shards], world, must_store=True)

        def make(ranks: World) -> StoredTable:
            rows, ledger = self._scan(shards, f"scanning {split} data", ranks)
            table = self.typed(rows).table()
            return table._replace(values={**table.values, "left_out": ledger.counts})

        table = store.table(self.stored_as, self.settings, make, shared=True)
        assert table is not None, "shards are always scanned"
        ledger = Ledger(table.values["left_out"])
        return ScannedRows(Rows.of_table(table, [str(path) for path, _ in shards]), ledger, shards)

    def _scan(self, shards: Stamped, label: str, world: World) -> tuple[Rows, Ledger]:
        """Scans the shards, shared by the ranks; raises ConfigError if some cannot be read."""

        def scan_all(mine: Sequence[tuple[AnyPath, Stamp]]) -> list[tuple[Rows, Ledger] | str]:
            with ThreadPoolExecutor(THREADS) as pool:
                results = pool.map(lambda shard: self._scan_one(*shard), mine)
                return list(progress(results, len(mine), label, "shard", world.rank == 0))

        results = world.share(shards, scan_all)
        errors = [result for result in results if isinstance(result, str)]
        if errors:
            folder = shards[0][0].parent
            raise ConfigError("\n  ".join([f"cannot read the {self.kind} in {folder}:", *errors[:20]]))
        parts, ledger = [result for result in results if not isinstance(result, str)], Ledger()
        for _, counted in parts:
            ledger.update(counted)
        return Rows.joined([rows for rows, _ in parts]), ledger

    def _scan_one(self, path: AnyPath, stamp: Stamp) -> tuple[Rows, Ledger] | str:
        """Scans a shard; returns an error message instead of raising it on one rank alone."""

        def read() -> tuple[Rows, Ledger]:
            ledger = Ledger()
            return self.scan(path, stamp.size or 0, ledger), ledger

        try:
            # Requests have retries of their own.
            return (read if isinstance(path, UrlPath) else retried(read))()
        except OSError as error:
            return f"cannot read {path}: {error.strerror or error}"
        except (ValueError, ConfigError) as error:
            return str(error)


def rows_of(images: Sequence[Scanned], path: AnyPath, further: Sequence[str] = ()) -> Rows:
    """Returns the images of a shard as Rows; `further` are the names of the columns in `Scanned.more`."""
    columns: Iterable[Any] = zip(*images, strict=True) if images else [()] * len(Scanned._fields)
    names, labels, numbers, sizes, boxes, box_labels, offsets, lengths, inflated, checksums, more = columns
    places = {"number": numbers, "offset": offsets, "length": lengths, "inflated": inflated, "checksum": checksums}
    return Rows(
        FileList.of(names),
        Texts.of(labels),
        np.repeat(np.arange(len(images)), list(map(len, boxes))),
        np.array(list(chain.from_iterable(boxes)), np.float32).reshape(-1, 4),
        Texts.of(chain.from_iterable(box_labels)),
        np.array(sizes, np.float32).reshape(-1, 2),
        [str(path)],
        np.zeros(len(images), np.int32),
        more={
            **{name: np.array(column, np.int64) for name, column in places.items()},
            **{name: _objects([values[number] for values in more]) for number, name in enumerate(further)},
        },
    )


def _objects(values: Sequence[Any]) -> np.ndarray:
    """Returns object [n], also of lists that are as long as each other."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _stamped(shards: Sequence[AnyPath]) -> Stamped:
    """Returns the shards with their stamps; raises ConfigError if one cannot be reached."""
    stamped: Stamped = []
    for path, stamp in zip(shards, stamps_of(shards), strict=True):
        if isinstance(stamp, OSError):
            raise ConfigError(f"cannot read {path}: {stamp.strerror}")
        stamped.append((path, stamp))
    return stamped
