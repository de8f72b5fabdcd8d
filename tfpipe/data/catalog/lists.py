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


def read_lists(filelist: Path | list[WeightedList]) -> tuple[FileList, tuple[MixedList, ...]]:
    """Reads one or several filelists; returns all images and, for several lists, which images are in which list."""
    if isinstance(filelist, Path):
        return read_filelist(filelist), ()
    lists = [read_filelist(entry.path) for entry in filelist]
    if len({paths.remote for paths in lists}) > 1:
        raise ConfigError(
            "data.train_filelist mixes lists of URLs with lists of paths: copy the remote files first, with "
            "`tfpipe stage`"
        )
    ends = np.cumsum([len(paths) for paths in lists]).tolist()
    spans = map(range, [0, *ends], ends)
    mixed = tuple(MixedList(span, entry.weight) for span, entry in zip(spans, filelist, strict=True))
    return FileList.joined(lists), mixed


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Returns the path of the index of `filelist`: beside it, train.index.parquet for train.txt.

    Two mixed lists have train+more.index.parquet. In the folder `data.index`, where lists of equal names may meet, a
    hash is added, train-1a2b3c4d.index.parquet: the sha256 of the lists' resolved paths.
    """
    lists = [filelist] if isinstance(filelist, Path) else [entry.path for entry in filelist]
    name = "+".join(path.stem for path in lists)
    if config.index is None:
        return lists[0].parent / f"{name}.index.parquet"
    digest = hashlib.sha256(b"\n".join(os.fsencode(path.resolve()) for path in lists)).hexdigest()
    return config.index / f"{name}-{digest[:8]}.index.parquet"
