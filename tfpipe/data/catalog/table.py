"""Stored tables: columns of a data set's images in files that all processes of a host map into memory.

All ranks call `TableStore.table`, which maps a table, or has it made and stored. It is a folder with an .npy file for
each column, which TensorFlow takes without a copy, and about.json: plain values, what the table was made from
(util/made_from.py; files count by size and time of change), and checksums, by which a damaged table is found and made
again. Arrow's buffers would need a copy, and importing pyarrow costs each start an eighth of a second.

Tables of `train.txt` are in the folder `train.catalog` next to it or, a hash added to its name, in `data.index`, or,
if that cannot be written, in the folder for temporary files (TMPDIR) of each host. A table's name ends with a hash of
everything that it is made from, so that none is replaced while it is mapped.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import Boxes, LocatedBoxes
from tfpipe.data.catalog.paths import FileList
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import PARTIAL, partial_path, remove_leftovers
from tfpipe.util.files import Stamp
from tfpipe.util.json_text import to_json
from tfpipe.util.locks import waiting_lock
from tfpipe.util.made_from import MadeFrom, stamp_files
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

FORMAT = 3
# Bytes of a stream up to which it has a checksum, and columns whose checksums are computed at once.
SUMMED_BYTES, CHECKSUM_THREADS = 2**30, 4
ABOUT, LOCK = "about.json", ".lock"
# Files of fewer bytes, a list of some 100,000 images, are read by every process in a tenth of a second: not stored.
SMALL_BYTES = 8_000_000
# Bytes that stay free on the disk, as a share of a table's own.
FREE_SHARE = 0.1
ADVICE = "set data.index to a folder that can be written"


class StoredTable(NamedTuple):
    """Columns about the images of a data set, and plain values."""

    values: dict[str, Any]
    columns: dict[str, np.ndarray]
    streams: Mapping[str, Iterable[np.ndarray]] = {}
    """Columns that may be too large for memory, in parts, at least one each; written first, and read as columns. Those
    of more than SUMMED_BYTES have no checksums: reading them takes too long for a start."""

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(array.nbytes for array in self.columns.values())


@retried
def map_table(folder: Path) -> StoredTable | None:
    """Maps the table in `folder`, read-only; None if there is no complete one. Raises OSError if it cannot be read."""
    try:
        header = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in header["columns"]}
        table = StoredTable(header["values"], {name: np.asarray(array) for name, array in mapped.items()})
        return table if _is_whole(table, header["checksums"]) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        raise
    except Exception:  # damaged or cut off: NumPy evaluates a column's header as Python, so that any error may come
        return None


def _is_whole(table: StoredTable, checksums: dict[str, int]) -> bool:
    """Returns whether the columns and the values are those that were stored."""
    of_columns = {name: checksum for name, checksum in checksums.items() if name != ABOUT}
    if checksums[ABOUT] != _text_checksum(table.values, list(table.columns), of_columns):
        return False
    with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
        sums = pool.map(_checksum, [table.columns[name] for name in of_columns])
        return all(checksum == stored for checksum, stored in zip(sums, of_columns.values(), strict=True))


def _checksum(column: np.ndarray) -> int:
    """Returns the CRC-32 of a column's bytes, type and shape, at some GB a second."""
    data = zlib.crc32(column.reshape(-1).view(np.uint8).data)
    return zlib.crc32(_form(column.dtype.str, column.shape), data)


def _form(descr: str, shape: tuple[int, ...]) -> bytes:
    return f"{descr} {shape}".encode()


def _text_checksum(values: dict[str, Any], columns: list[str], checksums: dict[str, int]) -> int:
    """Returns the CRC-32 of the values, the columns' names and their `checksums`."""
    return zlib.crc32(to_json([values, columns, checksums], sort_keys=True).encode())


def find_table(folders: Sequence[Path], name: str) -> StoredTable | None:
    """Maps the table `name` in the first of `folders` that has it and may be used (_is_trusted); None if none has."""
    for folder in filter(_is_trusted, folders):
        try:
            if (table := map_table(folder / name)) is not None:
                return table
        except OSError as error:
            logger.info("cannot read the catalog in %s: %s", folder, error)
    return None


def write_table(folder: Path, table: StoredTable, made_from: MadeFrom, *, replace: bool = False) -> None:
    """Writes a table, which gets its name when it is complete and on the disk.

    Leaves a complete one as it is or, with `replace`, takes its place; processes that have mapped that one keep it.
    Raises OSError if it cannot be written, or the disk has no room.
    """
    free_bytes = shutil.disk_usage(folder.parent).free
    if free_bytes < (1 + FREE_SHARE) * table.nbytes:
        raise OSError(errno.ENOSPC, f"{table.nbytes / 1e6:.0f} MB are needed, {free_bytes / 1e6:.0f} MB are free")
    unfinished = partial_path(folder)
    parts = {**table.streams, **{name: [array] for name, array in table.columns.items()}}
    try:
        unfinished.mkdir()
        sums = {name: _write_column(unfinished / f"{name}.npy", arrays) for name, arrays in parts.items()}
        header = {"columns": list(parts), "values": table.values, "made from": json.loads(made_from.text())}
        checksums = {name: crc for name, (size, crc) in sums.items() if name in table.columns or size <= SUMMED_BYTES}
        header["checksums"] = {**checksums, ABOUT: _text_checksum(table.values, list(parts), checksums)}
        with (unfinished / ABOUT).open("w", encoding="utf-8") as text:
            text.write(to_json(header))
            text.flush()
            os.fsync(text.fileno())
        try:
            unfinished.rename(folder)
        except OSError:
            # A complete one is of a process that no lock reaches, and may be mapped.
            if replace or map_table(folder) is None:
                before = folder.rename(partial_path(folder.with_name(f"{folder.name}.before")))
                unfinished.rename(folder)
                shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_column(path: Path, parts: Iterable[np.ndarray]) -> tuple[int, int]:
    """Writes arrays of one type, joined, as an .npy file; returns its bytes and its `_checksum`."""
    rows, size, checksum, header = 0, 0, 0, dict[str, Any]()
    with path.open("wb") as file:
        for part in map(np.ascontiguousarray, parts):
            if not header:
                header = np.lib.format.header_data_from_array_1_0(part)
                np.lib.format.write_array_header_1_0(file, header)
            contents = part.reshape(-1).view(np.uint8).data
            rows, size, checksum = rows + len(part), size + len(contents), zlib.crc32(contents, checksum)
            file.write(contents)
        file.seek(0)
        # NumPy leaves room for any number of rows, so this header is as long as the first.
        shape = (rows, *header["shape"][1:])
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
        file.flush()
        os.fsync(file.fileno())
    return size, zlib.crc32(_form(header["descr"], shape), checksum)


class TableStore:
    """The stored tables of some files' data, which the ranks of a host share."""

    def __init__(
        self, folders: Sequence[Path], files: Sequence[tuple[str, Stamp]], world: World, *, must_store: bool = False
    ) -> None:
        """Stores in the first of `folders` that can be written, or nothing if there is none.

        `files`, names and stamps, are what all tables are made from; the same on every rank. With `must_store` a table
        costs as much as reading the data: it is an error if no folder can be written, and tables that were made of the
        files before they changed are removed.
        """
        self.folders, self.files, self.world, self.must_store = folders, files, world, must_store

    def stamps(self, paths: Iterable[Path | None]) -> list[tuple[str, Stamp]]:
        """Returns the paths and stamps of files as rank 0 sees them, on every rank; [] if nothing is stored."""
        return self.world.from_rank0(lambda: stamp_files(paths)) if self.folders else []

    def table(
        self, kind: str, settings: dict[str, Any], make: Callable[[World], StoredTable | None], *, shared: bool = False
    ) -> StoredTable | None:
        """Returns the table that `make` makes of the files with `settings`, mapped if it could be stored.

        Every rank must call. Rank 0 makes the table, alone or, if the work is `shared`, with all ranks; then the first
        rank of each host that does not see rank 0's; then, if no file can be written, every rank. An error of `make`
        is raised on every rank. If it returns None, so do all.
        """
        world, alone = self.world, World(threads=self.world.threads)
        if not self.folders:
            return make(world if shared else alone)
        made_from = MadeFrom(FORMAT, self.files, settings)
        name = f"{kind}-{made_from.digest()[:16]}"
        stored: StoredTable | None = None

        def find() -> bool:
            nonlocal stored
            stored = self._find(kind, name, made_from)
            return stored is not None

        if not world.from_rank0(find) and shared:
            made = make(world)
            make = lambda _: made  # noqa: E731

        def look(turn: int, may_make: bool) -> tuple[bool, bool]:
            """Returns whether `make` makes nothing, and whether this rank has the table."""
            nonlocal stored
            # A host that looks for a file before it is there may not see it for a minute over NFS.
            if stored is None and (may_make or turn > 0):
                stored = find_table(self.folders, name)
            if stored is None and may_make:
                stored = self._make(name, made_from, lambda: make(alone))
                return stored is None, stored is not None
            return False, stored is not None

        for turn, may_make in enumerate((world.rank == 0 or world.backend == "none", world.local_rank == 0, True)):
            nothing, has = zip(*world.on_all(partial(look, turn, may_make)), strict=True)
            if any(nothing):
                return None
            if all(has):
                break
        return stored

    def _find(self, kind: str, name: str, made_from: MadeFrom) -> StoredTable | None:
        """Maps a table if it is stored; if not, logs what has changed since the last one of its kind was."""
        if (table := find_table(self.folders, name)) is not None:
            return table
        for folder in filter(_is_trusted, self.folders):
            with suppress(OSError):  # another process may remove one meanwhile
                for path in sorted(folder.glob(f"{kind}-*"), key=os.path.getmtime)[-1:]:
                    change = made_from.change(json.dumps(_made_from(path), sort_keys=True)) or "it is damaged"
                    logger.warning("%s is out of date: %s; it is made again", path, change)
        return None

    def _make(self, name: str, made_from: MadeFrom, make: Callable[[], StoredTable | None]) -> StoredTable | None:
        """Makes a table once; returns it mapped, or as made if it cannot be stored."""
        table, problems = None, list[str]()
        for folder in self.folders:
            with ExitStack() as locks:
                try:
                    create_folder(folder)
                    locks.enter_context(waiting_lock(folder / LOCK))
                    if (mapped := map_table(folder / name)) is not None:  # another process may have made it meanwhile
                        return mapped
                    self._tidy(folder, name.partition("-")[0])
                except OSError as error:
                    problems.append(f"cannot write {folder}: {error}")
                    continue
                table = table or make()
                if table is None:
                    return None
                try:
                    write_table(folder / name, table, made_from)
                    if (mapped := map_table(folder / name)) is None:
                        raise OSError("it cannot be read again")
                    logger.info("%s: %.0f MB, which all processes of a host map", folder / name, mapped.nbytes / 1e6)
                    return mapped
                except OSError as error:
                    problems.append(f"cannot write {folder / name}: {error}")
        if self.must_store:
            raise ConfigError(f"{problems[0]}; {ADVICE}")
        table = table or make()
        if table is not None:
            reasons = "; ".join(problems)
            logger.warning("every rank holds %.0f MB of its own: %s; %s", table.nbytes / 1e6, reasons, ADVICE)
        return table

    def _tidy(self, folder: Path, kind: str) -> None:
        """Removes what killed processes left and, with `must_store`, tables of a file before it changed."""
        remove_leftovers(folder.glob(f".*{PARTIAL}"))
        current = dict(self.files)
        for path in folder.glob(f"{kind}-*") if self.must_store else ():
            try:
                before = [(name, Stamp(*fields)) for name, fields in _made_from(path)[1]]
                stale = any(current.get(name, stamp) != stamp for name, stamp in before)
            except (ValueError, LookupError, TypeError):  # damaged
                stale = True
            if stale:
                shutil.rmtree(path, ignore_errors=True)


def store_of(
    config: DataConfig, paths: Sequence[Path | Any], files: Sequence[tuple[str, Stamp]], world: World
) -> TableStore:
    """Returns the store of what is read from `files`, of the data at `paths`; it stores nothing if they are small."""
    sizes = [stamp.size for _, stamp in files if stamp.size is not None]
    small = len(sizes) < len(files) or sum(sizes) < SMALL_BYTES
    return TableStore([] if small else catalog_folders(config, paths), files, world)


def catalog_folders(config: DataConfig, paths: Sequence[Path | Any]) -> list[Path]:
    """Returns the folders in which tables of the data at `paths` may be stored, the best first."""
    return [Path(f"{stem}.catalog") for stem in stored_stems(config, paths)]


def stored_stems(config: DataConfig, paths: Sequence[Path | Any]) -> list[Path]:
    """Returns the paths, without endings, at which something about data may be stored, the best first.

    It lies next to the data, if that is not behind a URL (a UrlPath): train for train.txt, and train+more for two mixed
    lists. In the folder `data.index`, or else in the folder for temporary files, where data of equal names may meet, a
    hash is added, train-1a2b3c4d: the sha256 of the resolved paths.
    """
    stem, folder = "+".join(Path(path.name).stem for path in paths), paths[0].parent
    names = [os.fsencode(path.resolve() if isinstance(path, Path) else str(path)) for path in paths]
    digest = hashlib.sha256(b"\n".join(names)).hexdigest()
    hashed = f"{stem}-{digest[:8]}"
    if config.index is not None:
        return [config.index / hashed, _temporary_folder() / hashed]
    return [*([folder / stem] if isinstance(folder, Path) else []), _temporary_folder() / hashed]


def _made_from(folder: Path) -> Any:
    """Returns what a stored table was made from, as JSON has MadeFrom; None if it is damaged."""
    try:
        return json.loads((folder / ABOUT).read_text(encoding="utf-8"))["made from"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def create_folder(folder: Path) -> None:
    """Creates a folder for tables; raises OSError if it cannot be created, or another user may write to it."""
    if folder.parent == _temporary_folder():
        folder.parent.mkdir(mode=0o700, exist_ok=True)
    if not _is_trusted(folder):
        raise PermissionError(f"{folder.parent} belongs to another user, or others may write to it")
    folder.mkdir(parents=True, exist_ok=True)


def _temporary_folder() -> Path:
    """Returns this user's folder for tables of data whose own folder cannot be written."""
    return Path(tempfile.gettempdir()) / f"tfpipe-{os.getuid()}"


def _is_trusted(folder: Path) -> bool:
    """Returns whether tables in `folder` may be used: in a folder that all users share, only those of this user."""
    if folder.parent != _temporary_folder():
        return True
    try:
        status = folder.parent.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def paths_table(paths: FileList) -> StoredTable:
    """Returns a list's paths as a table."""
    columns = {"names": paths.text, "name_starts": paths.offsets, "folder": paths.folder}
    return StoredTable({"folders": paths.folders, "digest": paths.digest}, columns)


def table_paths(table: StoredTable) -> FileList:
    """Returns the paths in a table."""
    folder, names, starts = (table.columns[name] for name in ("folder", "names", "name_starts"))
    return FileList(table.values["folders"], folder, names, starts, table.values["digest"])


def boxes_columns(boxes: Boxes, images: int) -> dict[str, np.ndarray]:
    """Returns the columns of a table that hold the boxes of a number of images."""
    names = ("box_starts", "box_images", "boxes", "box_labels")
    return dict(zip(names, (boxes.offsets(images), *boxes), strict=True))


def table_boxes(table: StoredTable) -> Boxes:
    """Returns the boxes in a table."""
    starts, *boxes = (table.columns[name] for name in ("box_starts", "box_images", "boxes", "box_labels"))
    return LocatedBoxes.of(Boxes(*boxes), starts)
