"""Scans shards that other tools wrote: once, by all ranks together; the result is a stored table (catalog/table.py)."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, catalog_folders
from tfpipe.data.sources.data_files import DataFiles
from tfpipe.data.sources.packed.members import Member
from tfpipe.data.sources.packed.shards import DeflatedRecords, Records, Shards
from tfpipe.data.sources.packed.stored import StoredSource
from tfpipe.data.sources.remote.ranges import RemoteFiles
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, stamped_files
from tfpipe.data.sources.rows import Rows, Texts
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.ledger import Ledger
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

SCAN_AGAIN = "what was stored of it was damaged: delete the folder *.catalog next to it or in data.index"
# Version of the columns of a scan and of their values.
FORM = 6
# Scanning alternates between waiting for storage and running Python.
THREADS = 8


class ScannedRows(NamedTuple):
    """The images of all shards of a split, one shard after the other."""

    rows: Rows
    shards: "Stamped"

    def as_shards(self, labels: np.ndarray, remote: RemoteFiles | None = None) -> Shards:
        """Returns the shards as packed data, without the images' bytes; `labels` (int32 [n]) are class numbers."""
        images, columns = np.arange(len(labels), dtype=np.int32), self.rows.more
        records = Records(images, labels, self.rows.file, columns["offset"], columns["length"])
        is_deflated = columns["inflated"].any()
        deflated = DeflatedRecords(columns["inflated"], columns["checksum"]) if is_deflated else None
        return self.check_extents(Shards("original", self.rows.files, records, remote=remote, deflated=deflated))

    def check_extents(self, shards: Shards) -> Shards:
        """Returns `shards`, whose records are of these images; raises ConfigError if one is not within its shard."""
        shards.check_places([stamp.size or 0 for _, stamp in self.shards], FileList.of(self.rows.names), SCAN_AGAIN)
        return shards


Stamped = list[tuple[AnyPath, Stamp]]


class ScannedSource(DataFiles, StoredSource):
    """Images in shards that other tools wrote; a kind has to define `scan` and `load`."""

    kind: ClassVar[str]
    """Name of the shards for messages, e.g. "TFRecords"."""
    stored_as: ClassVar[str]
    """Kind of the stored table."""

    @abstractmethod
    def scan(self, path: Any, size: int, ledger: Ledger) -> Rows:
        """Returns the images of a shard (a Path or UrlPath) of `size` bytes, in their order; counts what is not used.

        Raises OSError or ValueError.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """Config keys that a scan depends on, and their values."""
        return {"the form of a scan": FORM, **self.config.stored_exif}

    def with_types(self, rows: Rows) -> Rows:
        """Gives further columns their types, once all shards are scanned; raises ConfigError if one has none."""
        return rows

    def scan_split(self, split: str, world: World) -> ScannedRows:
        """Returns the images of a split: maps the stored scan, or makes it with all ranks together.

        Its catalog, train.catalog, or a.catalog if the config names a.tar, lies next to the shards or in `data.index`.
        Raises ConfigError if shards cannot be read; the message names up to 20 of them.
        """
        shards = world.from_rank0(lambda: stamped_files(self.require_files(split)))
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
            rows = self._scan(shards, f"scanning {split} data", ranks)
            table = self.with_types(rows).table()
            return table._replace(values={**table.values, "left_out": rows.left_out})

        table = store.table(self.stored_as, self.settings, make, shared=True)
        assert table is not None, "shards are always scanned"
        rows = Rows.of_table(table, [str(path) for path, _ in shards])
        return ScannedRows(rows._replace(left_out=table.values["left_out"]), shards)

    def _scan(self, shards: Stamped, label: str, world: World) -> Rows:
        """Scans the shards, shared by the ranks; raises ConfigError if some cannot be read."""

        def scan_all(share: Sequence[tuple[AnyPath, Stamp]]) -> list[Rows | str]:
            with ThreadPoolExecutor(THREADS) as pool:
                results = pool.map(lambda shard: self._scan_one(*shard), share)
                return list(progress(results, len(share), label, "shard", world.rank == 0))

        results = world.share(shards, scan_all)
        errors = [result for result in results if isinstance(result, str)]
        if errors:
            folder = shards[0][0].parent
            raise ConfigError("\n  ".join([f"cannot read the {self.kind} in {folder}:", *errors[:20]]))
        return Rows.concat([result for result in results if not isinstance(result, str)])

    def _scan_one(self, path: AnyPath, stamp: Stamp) -> Rows | str:
        """Scans a shard; returns an error message instead of raising it on one rank alone."""

        def read() -> Rows:
            ledger, size = Ledger(), stamp.size or 0
            rows = self.scan(path, size, ledger)
            if not rows.names:
                ledger.add("shards that hold no image", f"{path.name}, {size:,} bytes")
            return rows._replace(left_out=ledger.counts)

        try:
            # Requests have retries of their own.
            return (read if isinstance(path, UrlPath) else retried(read))()
        except OSError as error:
            return f"cannot read {path}: {error.strerror or error}"
        except (ValueError, ConfigError) as error:
            return f"{path}: {error}"


def rows_of(
    path: AnyPath,
    images: Sequence[Sequence[Any]],
    labels: Iterable[str | None],
    objects: Sequence[tuple[int, np.ndarray, Sequence[str | int | None]]],
    sizes: np.ndarray | None = None,
    more: Mapping[str, np.ndarray] = {},
) -> Rows:
    """Returns the images of a shard.

    Args:
        path: the shard.
        images: the fields of the Member of each image.
        labels: name or number of each image's class.
        objects: the numbers of images that have boxes, ascending; the boxes of each, float32 [k, 4]; and their labels,
            None for its image's.
        sizes: heights and widths that the boxes are divided by, float32 [n, 2]; None if they are relative.
        more: more columns.
    """
    names, *places = zip(*images, strict=True) if images else [()] * len(Member._fields)
    owners, boxes, box_labels = zip(*objects, strict=True) if objects else [()] * 3
    columns = {name: np.array(column, np.int64) for name, column in zip(Member._fields[1:], places, strict=True)}
    return Rows(
        FileList.of(names),
        Texts.of(labels),
        np.repeat(np.array(owners, np.int64), list(map(len, boxes))),
        np.concatenate([np.zeros((0, 4), np.float32), *boxes]),
        Texts.of(None if label is None else str(label) for label in chain.from_iterable(box_labels)),
        np.ones((len(images), 2), np.float32) if sizes is None else sizes,
        [str(path)],
        np.zeros(len(images), np.int32),
        more={**columns, **more},
    )
