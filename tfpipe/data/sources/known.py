"""Catalogs of sources that know the labels and the boxes of their images before any is read."""

import numpy as np

from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes
from tfpipe.data.catalog.labels import check_count
from tfpipe.data.catalog.load import check_order
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.source import Source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def check_split(split: str) -> None:
    """Raises ConfigError if there is no such split."""
    if split not in ("train", "test"):
        raise ConfigError(f'no data for split "{split}": it must be "train" or "test"')


def known_catalog(
    source: Source,
    split: str,
    world: World,
    paths: FileList,
    classes: tuple[str, ...],
    labels: np.ndarray,
    boxes: Boxes | None = None,
    annotated: np.ndarray | None = None,
) -> Catalog:
    """Makes the catalog of a split, read by `source`.

    `paths` name the images; `labels` (int32 [len(paths)]) are class numbers or BY_OBJECT; `boxes` are those to crop, of
    the images that are `annotated` (bool [len(paths)]), and None if every image is used whole. Raises ConfigError if
    there are more classes than `data.num_classes`, or too few samples for the ranks in scope "shard".
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
    )
    if split == "train":
        check_order(catalog, config, world)
    return catalog
