"""Catalogs of sources that know the labels and the boxes of their images before any is read."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tfpipe.config import SourceConfig
from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes
from tfpipe.data.catalog.class_folders import TESTS
from tfpipe.data.catalog.labels import check_count
from tfpipe.data.catalog.load import check_order
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.source import Source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

# End of the names of indexes, which are not data.
INDEX = "index.parquet"


def check_split(split: str) -> None:
    """Raises ConfigError if there is no such split."""
    if split not in ("train", "test"):
        raise ConfigError(f'no data for split "{split}": it must be "train" or "test"')


def files_of(about: SourceConfig, split: str, suffixes: tuple[str, ...], but: str = "\0") -> list[Path]:
    """Returns the files of a split that end with `suffixes`, without those that end with `but`.

    `path` is a file of training data, or a folder: the files whose names begin with train, or all if none does, and
    those whose names begin with the first of TESTS that any begins with. `test_path` may name the test data.
    """
    path = about.test_path if split == "test" and about.test_path is not None else about.path
    assert isinstance(path, Path), "the config is checked"
    if not path.is_dir():
        return [path] if path.is_file() and (split == "train" or about.test_path is not None) else []
    return [path / name for name in names_of(os.listdir(path), about, split, suffixes, but)]


def names_of(
    names: Iterable[str], about: SourceConfig, split: str, suffixes: tuple[str, ...], but: str = "\0"
) -> list[str]:
    """Returns the names of the files of a split among all of a folder, sorted; see files_of."""
    found = [name for name in sorted(names) if name.lower().endswith(suffixes) and name[0] != "."]
    found = [name for name in found if not name.endswith((but, INDEX))]
    if split == "train":
        return [name for name in found if name.startswith("train")] or found
    if about.test_path is not None:
        return found
    by_prefix = ([name for name in found if name.startswith(prefix)] for prefix in TESTS)
    return next((chosen for chosen in by_prefix if chosen), [])


def known_catalog(
    source: Source,
    split: str,
    world: World,
    paths: FileList,
    classes: tuple[str, ...],
    labels: np.ndarray,
    boxes: Boxes | None = None,
    annotated: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Catalog:
    """Makes the catalog of a split, read by `source`.

    `paths` name the images; `labels` (int32 [len(paths)]) are class numbers or BY_OBJECT; `boxes` are those to crop, of
    the images that are `annotated` (bool [len(paths)]), and None if every image is used whole; `weights` (float64
    [len(paths)]) are those of training images. Raises ConfigError if there are more classes than `data.num_classes`, or
    too few samples for the ranks in scope "shard".
    """
    config = source.config
    check_count(classes, config, f"in {source.place}")
    needs_boxes = config.crop_for(split) in ("boxes", "random_resized")
    if boxes is None or config.annotations == "none":
        full = np.repeat(WHOLE_IMAGE, len(paths), axis=0)
        boxes, annotated = Boxes(np.arange(len(paths), dtype=np.int32), full, labels), None
    if annotated is None or not needs_boxes:
        annotated = np.zeros(len(paths), bool)
    catalog = Catalog(
        split,
        source,
        paths,
        [""] * len(paths.folders),
        annotated,
        labels,
        classes,
        boxes if needs_boxes else None,
        by_box=split == "train" and config.unit == "box" and needs_boxes,
        weights=weights if split == "train" else None,
    )
    if split == "train":
        check_order(catalog, config, world)
    return catalog
