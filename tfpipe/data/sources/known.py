"""Catalogs of sources that know the labels and the boxes of their images before any is read."""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig, Remote, SourceConfig
from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes
from tfpipe.data.catalog.class_folders import BySplit
from tfpipe.data.catalog.labels import check_count
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog, TextColumn
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

# End of the names of indexes, which are not data.
INDEX = "index.parquet"
# Name of the files next to those of training and test data.
NEITHER = "neither"
# Suffixes of TFRecord files, which need none if their names end in NUMBER-of-NUMBER.
RECORDS = (".tfrecord", ".tfrecords", ".tfrec", ".tfr", ".record")


def check_split(split: str) -> None:
    """Raises ConfigError if there is no such split."""
    if split not in ("train", "test"):
        raise ConfigError(f'no data for split "{split}": it must be "train" or "test"')


def files_of(source: SourceConfig, split: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Returns the files of a split that end with `suffixes`.

    `path` is a file of training data, or a folder, whose files are split by their names; see names_of. `test_path` may
    name the test data.
    """
    path = source.test_path if split == "test" and source.test_path is not None else source.path
    assert isinstance(path, Path), "the config is checked"
    if not path.is_dir():
        used = split == "train" or (split == "test" and source.test_path is not None)
        return [path] if used and path.is_file() else []
    names = (name for name in os.listdir(path) if name.lower().endswith(suffixes) and not name.endswith(INDEX))
    return [path / name for name in names_of(names, source, split)]


def data_files(source: SourceConfig, split: str, suffixes: tuple[str, ...], remote: Remote) -> Sequence[AnyPath]:
    """Returns the files of a split as files_of does; they may be behind URLs.

    A URL is one of a file, a pattern of files or, in an object store, a folder. `remote` says how to reach them. Raises
    ConfigError as names_of does, and FetchError.
    """
    path = source.test_path if split == "test" and source.test_path is not None else source.path
    if not isinstance(path, str):
        return files_of(source, split, suffixes)
    if path.lower().endswith(suffixes):
        used = split == "train" or (split == "test" and source.test_path is not None)
        return [UrlPath(url, remote) for url in expanded(path)] if used else []
    folder = UrlPath(path, remote)
    names = (name for name in folder.names() if name.lower().endswith(suffixes) and not name.endswith(INDEX))
    return [folder / name for name in names_of(names, source, split)]


def expanded(url: str) -> list[str]:
    """Returns the URLs of a pattern such as https://host/train-{0000..0099}.tar; of any other URL itself."""
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", url)
    if numbers is None:
        return [url]
    first, last = numbers[1], numbers[2]
    return [
        f"{url[: numbers.start()]}{number:0{len(first)}}{url[numbers.end() :]}"
        for number in range(int(first), int(last) + 1)
    ]


def names_of(names: Iterable[str], source: SourceConfig, split: str) -> list[str]:
    """Returns those data files of a folder that are of a split by their names (catalog/class_folders.py), sorted.

    Those of the split NEITHER lie next to the others, and are not used. Raises ConfigError if a split is not clear, and
    `test_path` does not say where the test data is.
    """
    by_split = BySplit.of(name for name in names if name[0] != ".")
    apart = source.test_path is not None
    if split == NEITHER:
        return [] if apart else by_split.unused()
    return by_split.training(apart) if split == "train" else by_split.testing(apart)


def not_used(files: Sequence[AnyPath], others: Ledger | None = None) -> Ledger:
    """Returns a ledger with the files of the split NEITHER, and with what `others` counts."""
    ledger = Ledger(others.counts if others else None)
    ledger.add_all("files of no split", files)
    return ledger


def check_files(files: Sequence[object], source: SourceConfig, split: str, kind: str, expected: str) -> None:
    """Raises ConfigError if there are no `files` of a split, `kind` being the name of one: "table"."""
    if not files:
        path = source.test_path if split == "test" and source.test_path is not None else source.path
        raise ConfigError(
            f"data.source: there is no {split} {kind} in {path}; expected {expected}. Names with the word train, or "
            "with the name of no split if there are none of these, are training data; those with val, valid or "
            "validation, else those with test, are test data; data.source.test_path names test data of another place"
        )


class Known(NamedTuple):
    """The images of a split, with the labels and boxes that a source knows before any is read."""

    paths: FileList
    labels: np.ndarray  # int32 [n]: class numbers, or BY_OBJECT
    classes: tuple[str, ...]
    boxes: Boxes | None = None  # those to crop; None if every image is used whole
    annotated: np.ndarray | None = None  # bool [n]: the images that have boxes; None: none has
    weights: np.ndarray | None = None  # float64 [n]: weights of training images
    ledger: Ledger | None = None  # as in Catalog; None: nothing is left out
    masks: FileList | None = None
    values: Mapping[str, np.ndarray | TextColumn] = {}
    version: str = ""  # as in Catalog
    stated: np.ndarray | None = None  # as in Catalog


def known_catalog(config: DataConfig, split: str, display_name: str, known: Known, *, show: bool) -> Catalog:
    """Makes the catalog of a split; `show`: logs what is left out.

    Raises ConfigError if there are more classes than `data.num_classes`.
    """
    if known.ledger and show:
        logger.warning("%s data: %s holds what is not used:%s", split, display_name, known.ledger.lines())
    check_count(len(known.classes), config, f"in {display_name}")
    count, boxes, annotated = len(known.paths), known.boxes, known.annotated
    needs_boxes = config.uses_boxes(split)
    if boxes is None or config.annotations == "none":
        full = np.repeat(WHOLE_IMAGE, count, axis=0)
        boxes, annotated = Boxes(np.arange(count, dtype=np.int32), full, known.labels), None
    if annotated is None or not needs_boxes:
        annotated = np.zeros(count, bool)
    return Catalog(
        split,
        known.paths,
        [""] * len(known.paths.folders),
        annotated,
        known.labels,
        known.classes,
        boxes if needs_boxes or known.masks is not None else None,
        by_box=split == "train" and config.unit == "box" and needs_boxes,
        weights=known.weights if split == "train" else None,
        masks=known.masks,
        values=known.values,
        version=known.version,
        stated=known.stated if needs_boxes and annotated.any() else None,
        display_name=display_name,
        ledger=known.ledger or Ledger(),
    )
