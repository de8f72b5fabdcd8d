"""The filelists of a config: one, or several that are mixed, and the path of their index."""

import hashlib
import os
from pathlib import Path

import numpy as np

from tfpipe.config import DataConfig, WeightedList
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import MixedList
from tfpipe.errors import ConfigError


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


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Returns the path of the index of `filelist`: beside it, train.index.parquet for train.txt.

    Two mixed lists have train+more.index.parquet. In the folder `data.index`, where lists of equal names may meet, a
    hash is added, train-1a2b3c4d.index.parquet: the sha256 of the lists' resolved paths.
    """
    if config.index is not None:
        return config.index / hashed_name(filelist)
    lists = paths_of(filelist)
    return lists[0].parent / f"{_stem(lists)}.index.parquet"


def hashed_name(filelist: Path | list[WeightedList]) -> str:
    """Returns the name of an index in a folder where lists of equal names may meet."""
    lists = paths_of(filelist)
    digest = hashlib.sha256(b"\n".join(os.fsencode(path.resolve()) for path in lists)).hexdigest()
    return f"{_stem(lists)}-{digest[:8]}.index.parquet"


def paths_of(filelist: Path | list[WeightedList]) -> list[Path]:
    """Returns the paths of one or several filelists."""
    return [filelist] if isinstance(filelist, Path) else [entry.path for entry in filelist]


def _stem(lists: list[Path]) -> str:
    return "+".join(path.stem for path in lists)
