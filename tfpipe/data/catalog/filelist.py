"""Filelists, or folders of class folders, that a config names: one, or several that are mixed; their index."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig, WeightedList
from tfpipe.config.section import NETRC
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.catalog.class_folders import LABELLED, NO_IMAGE, SUFFIXES, has_image, read_folder
from tfpipe.data.catalog.labels import classes_in_list, folder_of, level_in_list
from tfpipe.data.catalog.paths import FileList, is_url, pack_lines
from tfpipe.data.catalog.splits import FolderRule
from tfpipe.data.catalog.table import StoredTable, TableStore, paths_table, store_of, stored_stems, table_paths
from tfpipe.data.catalog.types import Catalog, MixedList
from tfpipe.distributed import World
from tfpipe.errors import LOGIN, ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import open_text, unreadable
from tfpipe.util.ledger import Ledger
from tfpipe.util.made_from import stamp_files
from tfpipe.util.progress import progress

# Characters of lines read at a time.
CHUNK_CHARS = 2**18
# A line of a list that has a label after the path, a word without a dot; the first lines tell whether all have one.
PATH_AND_LABEL = re.compile(rf"(?:{'|'.join(map(re.escape, SUFFIXES))})[ \t,]+[^\s,/.]+$", re.IGNORECASE)
FIRST = 100
# Python reads a byte of a file's name that is not UTF-8 as a surrogate.
BREAKS_A_LINE = re.compile("[\r\n\ud800-\udfff]")
LIST = "the filelist "
HOW_TO_MAKE = "make one with: tfpipe filelist ROOT --out DIR"


def read_filelist(path: str | Path, show: bool = False) -> FileList:
    """Reads the list at `path`, one path a line; blank lines are skipped. Lists the images of a folder.

    A relative line is relative to the list's folder; a URL is left as it is. `show` shows the progress. Raises
    ConfigError if the list cannot be read, holds no line, holds both URLs and paths, or a URL with a user or a
    password; or a folder holds no image.
    """
    path = Path(path)
    if path.is_dir():
        return read_folder(path).paths
    try:
        paths = pack_lines(read_lines(path, show), str(path.parent.absolute()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{unreadable(path, error, LIST)}; {HOW_TO_MAKE}") from error
    if not paths:
        raise ConfigError(f"the filelist {path} holds no line; {HOW_TO_MAKE}")
    check_paths(paths, f"the filelist {path}", "line")
    return paths


def check_paths(paths: FileList, place: str, entry: str) -> None:
    """Raises ConfigError if a path is a URL with a user or a password, URLs and paths are mixed, or paths are Windows'.

    `place` and `entry` name the list or table, and an entry of it, in the message, e.g. "the filelist a.txt", "line".
    """
    remote = np.array([is_url(folder) for folder in paths.folders], bool)
    if not remote.any():
        name = paths[0] if paths else ""
        if "\\" in name and not os.path.lexists(name) and os.path.isfile(name.replace("\\", "/")):
            raise ConfigError(f"{place} has Windows' separators, e.g. {name} ({entry} 1): write / in the place of \\")
        return
    login = next((path for path in paths.folders if is_url(path) and LOGIN.search(path)), None)
    if login is not None:
        raise ConfigError(
            f"{place} has a URL with a user or a password, {login}..., which logs and copies of it would repeat: "
            f"{NETRC}"
        )
    if not remote.all():
        of_image = remote[paths.folder]
        first, second = (int(np.argmax(which)) for which in (of_image, ~of_image))
        raise ConfigError(
            f"{place} holds both URLs and paths, e.g. {paths[first]} ({entry} {first + 1}) and {paths[second]} "
            f"({entry} {second + 1}): use one kind, e.g. copy the remote files with `tfpipe stage`"
        )


def read_lines(path: Path, show: bool = False) -> Iterator[list[str]]:
    """Yields a filelist's lines, stripped, without blank ones: thousands at a time, to save memory.

    Millions at once would take ten times the memory of a FileList. `show` shows the progress. Raises OSError or
    UnicodeDecodeError.
    """
    with open_text(path) as file:
        blocks = iter(lambda: file.readlines(CHUNK_CHARS), [])
        count = path.stat().st_size // CHUNK_CHARS + 1
        for lines in progress(blocks, count, f"reading {path.name}", "block", show):
            yield [line for line in map(str.strip, lines) if line]


def check_filelists(paths: Iterable[Path | None]) -> None:
    """Checks, without reading them completely, that the lists can be read and hold a line, and folders an image.

    Raises ConfigError if a list cannot be read or holds no line; the message names all such lists.
    """
    errors = []
    for path in filter(None, paths):
        if path.is_dir():
            errors += [] if has_image(path) else [NO_IMAGE.format(path)]
            continue
        try:
            with open_text(path) as lines:
                if not any(line.strip() for line in lines):
                    errors.append(f"the filelist {path} holds no line")
        except (OSError, UnicodeDecodeError) as error:
            errors.append(unreadable(path, error, LIST))
    if errors:
        raise ConfigError("; ".join([*errors, HOW_TO_MAKE]))


def write_filelist(path: Path, images: Iterable[str]) -> None:
    """Writes one image a line; the file appears complete, by renaming.

    Raises ConfigError if the file cannot be written, or a path could not be read from it again: one that is not UTF-8,
    holds a line break, or has white space around it.
    """
    images = list(images)
    odd = [image for image in images if image != image.strip() or BREAKS_A_LINE.search(image)]
    if odd:
        raise ConfigError(
            f"{path} is not written: {len(odd)} of {len(images)} paths are not UTF-8, hold a line break or have white "
            f"space around them, e.g. {odd[0]!a}: rename or remove these files"
        )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_text("".join(f"{image}\n" for image in images), encoding="utf-8")


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
    paths, ends = FileList.concat(lists), np.cumsum([len(paths) for paths in lists]).tolist()
    classes = None
    if named:
        of_lists = [folder for folder in paths.folders if folder not in named]
        named |= zip(of_lists, classes_in_list(of_lists, rule.level) if of_lists else [], strict=True)
        classes = [named[folder] or folder_of(folder) for folder in paths.folders]
    return ReadList(paths, mixed_lists(filelist, ends), classes, ledger)


def class_level_of_copy(config: DataConfig, catalogs: Mapping[str, Catalog]) -> list[str]:
    """Returns the override of `data.class_level` with which lists of splits' images name their classes; [] for none.

    `catalogs` are those that lists take the place of, by split; the other split stays as it is. Raises ConfigError if
    no level is right for all: a config has one.
    """
    if config.targets.kind in UNCLASSED or config.label_source == "object":
        return []
    levels, now = set[int](), config.class_level or -1
    for split, filelist in (("train", config.train_filelist), ("test", config.test_filelist)):
        if filelist is None or config.label_file_for(split):
            continue
        if not (isinstance(filelist, Path) and filelist.is_dir()):
            levels.add(now)
        elif (catalog := catalogs.get(split)) is not None and not (catalog.labels < 0).any():
            folders, items = np.unique(catalog.paths.folder, return_index=True)
            names = [catalog.classes[number] for number in catalog.labels[items]]
            levels.add(level_in_list([catalog.paths.folders[folder] for folder in folders], names))
    if len(levels) > 1:
        raise ConfigError(
            "the classes are folders of other depths in the training data than in the test data, and a list names "
            "those of one: train from the folders themselves, or pack them (tfpipe pack --kind original)"
        )
    return [f"data.class_level={level}" for level in levels if level != now]


def _read_list(path: Path, show: bool) -> FileList:
    """Reads a filelist as read_filelist does; raises ConfigError, too, if it is a list of VOC's or Caffe's."""
    paths = read_filelist(path, show)
    if path.absolute().parts[-3:-1] == ("ImageSets", "Main") and not Path(paths[0]).suffix:
        make = f"tfpipe filelist {path.absolute().parents[2]} --out lists/ makes lists of paths"
        raise ConfigError(f"the list {path} has names, not paths of images: {make}; then give lists/train.txt")
    if all(PATH_AND_LABEL.search(paths[number]) for number in range(min(len(paths), FIRST))):
        raise ConfigError(
            f"the filelist {path} has a label after each path, as Caffe's lists and CSVs have, e.g. {paths[0]!r}: make "
            f"""a table of it, sed -E -e 's/(.*[^[:blank:],])[[:blank:],]+([^[:blank:],]+)$/"\\1",\\2/' """
            f"-e '1i path,label' {path} > {path.with_suffix('.csv')}, and set data.source to "
            f'{{"kind": "table", "path": that table}}'
        )
    return paths


def mixed_lists(filelist: Path | list[WeightedList], ends: list[int]) -> tuple[MixedList, ...]:
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
    rule = FolderRule.of(config, "train" if split == "train" else "test")
    files = world.from_rank0(lambda: stamp_files(paths_of(filelist)))
    store = TableStore([], files, world) if folder else store_of(config, paths_of(filelist), files, world)
    if not store.folders:
        contents = world.from_rank0(lambda: read_lists(filelist, rule)) if folder else read_lists(filelist, rule)
        return contents._replace(store=store)

    def make(_: World) -> StoredTable:
        paths, lists = read_lists(filelist, show=world.rank == 0)[:2]
        if stamp_files(paths_of(filelist)) != store.files:  # no collective: only the ranks that make a table come here
            raise ConfigError(f"{store.files[0][0]} changed while it was read: start again")
        table = paths_table(paths)
        return table._replace(values={**table.values, "ends": [part.images.stop for part in lists]})

    table = store.table("list", {}, make)
    assert table is not None, "a list is always read"
    return ReadList(table_paths(table), mixed_lists(filelist, table.values["ends"]), None, Ledger(), store)


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Returns the path of the index of `filelist`: next to it, train.index.parquet for train.txt; see stored_stems."""
    return Path(f"{stored_stems(config, paths_of(filelist))[0]}.index.parquet")


def paths_of(filelist: Path | list[WeightedList]) -> list[Path]:
    """Returns the paths of one or several filelists."""
    return [filelist] if isinstance(filelist, Path) else [entry.path for entry in filelist]
