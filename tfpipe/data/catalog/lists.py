"""The filelists of a config: one, or several that are mixed, and the path of their index."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig, WeightedList
from tfpipe.data.catalog.filelist import LABELLED, FolderRule, read_filelist, read_folder
from tfpipe.data.catalog.labels import folder_of
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, paths_table, store_of, stored_stems, table_paths
from tfpipe.data.catalog.types import MixedList
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger
from tfpipe.util.made_from import stamped

# A line of a list that has a label after the path; and the first lines, which tell whether all have.
PATH_AND_LABEL, FIRST = re.compile(r"\.\w{3,4}[ \t]+\d+$", re.ASCII), 100


class ReadList(NamedTuple):
    """The images of one or several filelists, or folders."""

    paths: FileList
    lists: tuple[MixedList, ...]  # which images are in which list; empty for a single one
    folder_classes: list[str] | None  # class of each of paths.folders, if they are those of a folder's tree
    ledger: Ledger  # what folders hold besides images
    store: TableStore = TableStore([], [], World())  # of the list's tables


def read_lists(filelist: Path | list[WeightedList], rule: FolderRule = LABELLED, *, show: bool = False) -> ReadList:
    """Reads one or several filelists, or lists folders by `rule`; `show` shows the progress."""
    lists, named, ledger = list[FileList](), dict[str, str](), Ledger()
    for path in paths_of(filelist):
        if path.is_dir():
            folder = read_folder(path, rule)
            lists.append(folder.paths)
            named |= zip(folder.paths.folders, folder.classes, strict=True)
            ledger.update(folder.ledger)
        else:
            lists.append(_read_list(path, show))
    if len({paths.remote for paths in lists}) > 1:
        raise ConfigError(
            "data.train_filelist mixes lists of URLs with lists of paths: copy the remote files first, with "
            "`tfpipe stage`"
        )
    paths, ends = FileList.joined(lists), np.cumsum([len(paths) for paths in lists]).tolist()
    classes = [named.get(folder) or folder_of(folder) for folder in paths.folders] if named else None
    return ReadList(paths, mixed(filelist, ends), classes, ledger)


def _read_list(path: Path, show: bool) -> FileList:
    """Reads a filelist as read_filelist does; raises ConfigError, too, if it is a list of VOC's or Caffe's."""
    paths = read_filelist(path, show)
    if path.absolute().parts[-3:-1] == ("ImageSets", "Main") and not Path(paths[0]).suffix:
        make = f"tfpipe filelist {path.absolute().parents[2]} --out lists/ makes lists of paths"
        raise ConfigError(f"the list {path} has names, not paths of images: {make}; then give lists/train.txt")
    if all(PATH_AND_LABEL.search(paths[number]) for number in range(min(len(paths), FIRST))):
        raise ConfigError(
            f"the filelist {path} has a label after each path, as Caffe's lists have, e.g. {paths[0]!r}: make a table "
            f"""of it, sed -E -e 's/(.*)[[:blank:]]+([0-9]+)$/"\\1",\\2/' -e '1i path,label' {path} > """
            f'{path.with_suffix(".csv")}, and set data.source to {{"kind": "table", "path": that table}}'
        )
    return paths


def mixed(filelist: Path | list[WeightedList], ends: list[int]) -> tuple[MixedList, ...]:
    """Returns which images are in which of several lists, whose images end at `ends` in the joined one."""
    spans = map(range, [0, *ends], ends)
    return () if isinstance(filelist, Path) else tuple(map(MixedList, spans, (entry.weight for entry in filelist)))


def load_list(config: DataConfig, split: str, world: World) -> ReadList:
    """Reads the filelists of a split, or maps what another process has read of them; every rank must call.

    Raises ConfigError if a list cannot be used.
    """
    # All ranks have the same images, even if some are added to a folder meanwhile.
    filelist = config.filelist_for(split)
    folder = any(path.is_dir() for path in paths_of(filelist))
    rule = FolderRule.of(config, split)
    files = world.from_rank0(lambda: stamped(paths_of(filelist)))
    store = TableStore([], files, world) if folder else store_of(config, paths_of(filelist), files, world)
    if not store.folders:
        contents = world.from_rank0(lambda: read_lists(filelist, rule)) if folder else read_lists(filelist, rule)
        return contents._replace(store=store)

    def make(_: World) -> StoredTable:
        paths, lists = read_lists(filelist, show=world.rank == 0)[:2]
        if stamped(paths_of(filelist)) != store.files:  # no collective: only the ranks that make a table come here
            raise ConfigError(f"{store.files[0][0]} changed while it was read: start again")
        table = paths_table(paths)
        return table._replace(values={**table.values, "ends": [part.images.stop for part in lists]})

    table = store.table("list", {}, make)
    assert table is not None, "a list is always read"
    return ReadList(table_paths(table), mixed(filelist, table.values["ends"]), None, Ledger(), store)


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Returns the path of the index of `filelist`: next to it, train.index.parquet for train.txt; see stored_stems."""
    return Path(f"{stored_stems(config, paths_of(filelist))[0]}.index.parquet")


def paths_of(filelist: Path | list[WeightedList]) -> list[Path]:
    """Returns the paths of one or several filelists."""
    return [filelist] if isinstance(filelist, Path) else [entry.path for entry in filelist]
