"""The filelists of a config: one, or several that are mixed, and the path of their index."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig, WeightedList
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, paths_table, store_of, stored_stems, table_paths
from tfpipe.data.catalog.types import MixedList
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.made_from import stamped


def read_lists(filelist: Path | list[WeightedList], show: bool = False) -> tuple[FileList, tuple[MixedList, ...]]:
    """Reads one or several filelists; returns all images and, for several lists, which images are in which list.

    `show` shows the progress.
    """
    if isinstance(filelist, Path):
        return read_filelist(filelist, show), ()
    lists = [read_filelist(entry.path, show) for entry in filelist]
    if len({paths.remote for paths in lists}) > 1:
        raise ConfigError(
            "data.train_filelist mixes lists of URLs with lists of paths: copy the remote files first, with "
            "`tfpipe stage`"
        )
    ends = np.cumsum([len(paths) for paths in lists]).tolist()
    return FileList.joined(lists), mixed(filelist, ends)


def mixed(filelist: Path | list[WeightedList], ends: list[int]) -> tuple[MixedList, ...]:
    """Returns which images are in which of several lists, whose images end at `ends` in the joined one."""
    spans = map(range, [0, *ends], ends)
    return () if isinstance(filelist, Path) else tuple(map(MixedList, spans, (entry.weight for entry in filelist)))


class LoadedList(NamedTuple):
    """The images of one or several filelists."""

    paths: FileList
    lists: tuple[MixedList, ...]  # which images are in which list; empty for a single one
    store: TableStore  # of the list's tables


def load_list(config: DataConfig, filelist: Path | list[WeightedList], world: World) -> LoadedList:
    """Reads filelists, or maps what another process has read of them; every rank must call.

    Raises ConfigError if a list cannot be used.
    """
    # All ranks have the same images, even if some are added to a folder meanwhile.
    folder = isinstance(filelist, Path) and filelist.is_dir()
    files = world.from_rank0(lambda: stamped(paths_of(filelist)))
    store = TableStore([], files, world) if folder else store_of(config, paths_of(filelist), files, world)
    if not store.folders:
        return LoadedList(*(world.from_rank0(lambda: read_lists(filelist)) if folder else read_lists(filelist)), store)

    def read(_: World) -> StoredTable:
        paths, lists = read_lists(filelist, show=world.rank == 0)
        if stamped(paths_of(filelist)) != store.files:  # no collective: only the ranks that make a table come here
            raise ConfigError(f"{store.files[0][0]} changed while it was read: start again")
        table = paths_table(paths)
        return table._replace(values={**table.values, "ends": [part.images.stop for part in lists]})

    table = store.table("list", {}, read)
    assert table is not None, "a list is always read"
    return LoadedList(table_paths(table), mixed(filelist, table.values["ends"]), store)


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Returns the path of the index of `filelist`: next to it, train.index.parquet for train.txt; see stored_stems."""
    return Path(f"{stored_stems(config, paths_of(filelist))[0]}.index.parquet")


def paths_of(filelist: Path | list[WeightedList]) -> list[Path]:
    """Returns the paths of one or several filelists."""
    return [filelist] if isinstance(filelist, Path) else [entry.path for entry in filelist]
