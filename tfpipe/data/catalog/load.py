"""Loads the catalog of the images that filelists name: labels, and the index's boxes or which images have an XML."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfpipe.config import DataConfig, Layout
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.catalog.filelist import ReadList, index_path, load_list
from tfpipe.data.catalog.labels import class_table, image_labels, warn_of_numbers
from tfpipe.data.catalog.layout import (
    LAYOUTS,
    Storage,
    annotation_folders,
    existing,
    find_layout,
    is_optional,
    mask_paths,
)
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, TableStore, boxes_columns, table_boxes
from tfpipe.data.catalog.types import Catalog, Index
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger

logger = logging.getLogger(__name__)


def load_listed(config: DataConfig, split: str, world: World, storage_of: Callable[[FileList], Storage]) -> Catalog:
    """Loads the catalog of `split`, "train" or "test", from its filelist; only rank 0 reads the index or lists folders.

    Every rank must call. `storage_of` opens what holds the images. Raises ConfigError if a filelist, a label,
    the class table or a required index cannot be used.
    """
    if split not in ("train", "test") or (split == "test" and config.test_filelist is None):
        raise ConfigError(f'no data for split "{split}": it must be "train", or "test" with data.test_filelist set')
    filelist = config.filelist_for(split)
    entries = load_list(config, split, world)
    paths, lists, store = entries.paths, entries.lists, entries.store
    storage, name = storage_of(paths), " + ".join(map(str, config.train_lists if split == "train" else [filelist]))
    classes = classes_of(config, split, entries, world)
    labels, settings = load_labels(entries, classes, config, split)
    folders, annotated = [""] * len(paths.folders), np.zeros(len(paths), bool)
    class_names = config.targets.of_objects(classes)
    about: dict[str, Any] = {"lists": lists, "display_name": name, "ledger": entries.ledger}
    catalog = Catalog(split, paths, folders, annotated, labels, class_names, **about)
    needs_boxes = config.uses_boxes(split)
    if reads_boxes(config, split, paths):
        catalog = _with_annotations(catalog, storage, config, store, settings)
    elif needs_boxes and config.annotations == "auto":
        logger.info("%s: no XML is looked for, in no known layout: images are used whole", filelist)
    exact = catalog.boxes is not None or not any(is_optional(f"{path}.xml") for path in catalog.annotation_folders)
    annotated_too = f", {'' if exact else 'at most '}{catalog.annotated.sum()} of them annotated" if needs_boxes else ""
    logger.info("%s: %s%s", split, counted(len(catalog), "image"), annotated_too)
    by_box = split == "train" and config.unit == "box" and needs_boxes
    # Workers run no Python, and so find no boxes, even without any XML; URLs they refuse themselves.
    in_workers = config.service is not None and not paths.remote
    if catalog.boxes is None and (by_box or in_workers or config.targets.needs_boxes):
        catalog = with_boxes(catalog, storage, world)
    if world.rank == 0:
        catalog.ledger.warn(f"{split} data, {name}")
        warn_of_numbers(class_names if split == "train" else (), config)
    masks = mask_paths(paths, config.targets.masks) if config.targets.kind == "mask" else None
    return replace(catalog, classes=classes, by_box=by_box, masks=masks)


def classes_of(config: DataConfig, split: str, entries: ReadList, world: World = World()) -> tuple[str, ...]:
    """Returns the class names, given the images of `split`; every rank of `world` must call."""
    # Test data has the class numbers of training data, so it may need the training list's folders.
    numbered = split == "train" or config.classes is not None
    train = entries if numbered else load_list(config, "train", world)
    return class_table(config, train.paths, train.folder_classes)


def load_labels(
    entries: ReadList, classes: Sequence[str], config: DataConfig, split: str
) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the images' labels, int32 [n], and what they depend on besides the list; every rank must call.

    Raises ConfigError as image_labels does.
    """
    paths, file, store = entries.paths, config.label_file_for(split), entries.store
    settings: dict[str, Any] = {"the classes": list(classes), "data.label_source": config.label_source}
    settings |= {"labels": store.stamps([file]), "images have a class": config.targets.kind not in UNCLASSED}
    settings |= {} if config.class_level is None else {"data.class_level": config.class_level}

    def make(_: World) -> StoredTable:
        return StoredTable({}, {"labels": image_labels(paths, classes, config, file, entries.folder_classes)})

    table = store.table("labels", settings, make)
    assert table is not None, "labels are always found"
    return table.columns["labels"], settings


def reads_boxes(config: DataConfig, split: str, paths: FileList) -> bool:
    """Returns whether training with `config` uses boxes of the images `paths` of `split`.

    It uses none if the config says so, or if the images are listed from a folder whose layout is not known.
    """
    if config.annotations == "none" or not config.uses_boxes(split):
        return False
    filelist = config.filelist_for(split)
    folder = isinstance(filelist, Path) and filelist.is_dir()
    return not folder or config.annotations != "auto" or may_have_annotations(config, split, paths)


def may_have_annotations(config: DataConfig, split: str, paths: FileList) -> bool:
    """Returns whether the config, or the images' paths, say where boxes are."""
    has_layout = config.layout != "auto" or any(f"/{rule.images}/" in paths[0] for rule in LAYOUTS.values())
    return has_layout or config.label_source == "object" or config.box_file_for(split) is not None


def _with_annotations(
    catalog: Catalog, storage: Storage, config: DataConfig, store: TableStore, settings: dict[str, Any]
) -> Catalog:
    """Adds the index's boxes to the catalog or, without an index, which images have an XML.

    `settings` are what the labels depend on.
    """
    paths, world = catalog.paths, store.world
    source = config.box_file_for(catalog.split) or find_layout(config.layout, paths)
    if isinstance(source, Layout):
        folders = annotation_folders(paths, source)
        catalog = replace(catalog, annotation_folders=folders, annotation_format=source.format)
    path = index_path(config, config.filelist_for(catalog.split))

    def find() -> Index | None:
        auto = isinstance(source, Layout) and config.annotations == "auto"
        if auto and not path.exists():
            return None
        # Imported late: pyarrow takes as long to import as a filelist takes to read.
        from tfpipe.data.catalog.index import find_index, index_fingerprint

        key = index_fingerprint(paths, catalog.classes, catalog.labels, source, config.turn)
        return find_index(config, catalog.split, key)

    about = source.model_dump() if isinstance(source, Layout) else store.stamps([source])
    settings = settings | {"boxes": about} | config.stored_exif
    index = None if config.annotations == "xml" else _index(store, path, settings, find)
    if index is not None:
        ledger = Ledger(index.left_out)
        return replace(catalog, annotated=index.annotated, boxes=index.boxes, uneven=index.uneven, ledger=ledger)
    assert isinstance(source, Layout), "a table's boxes come from the index only, and find_index raises without one"
    packed = world.from_rank0(lambda: np.packbits(existing(paths, source, storage, show=world.rank == 0)))
    return replace(catalog, annotated=np.unpackbits(packed, count=len(paths)).astype(bool))


def _index(store: TableStore, path: Path, settings: dict[str, Any], find: Callable[[], Index | None]) -> Index | None:
    """Returns the index that `find` reads from `path`, mapped if it is stored; None if there is none to be used."""
    stamps, made = store.stamps([path]), False
    if not store.folders or stamps[0][1].size is None:
        return store.world.from_rank0(find)

    def make(_: World) -> StoredTable | None:
        nonlocal made
        made, index = True, find()
        if index is None:
            return None
        columns = {"annotated": index.annotated, **boxes_columns(index.boxes, len(index.annotated))}
        return StoredTable({"left_out": index.left_out, "uneven": index.uneven}, columns)

    table = store.table("boxes", {**settings, "the index": stamps, "columns": 4}, make)
    if table is None:
        return None
    if not made and store.world.rank == 0:
        logger.info("boxes are those of the index %s", path)
    return Index(table.columns["annotated"], table_boxes(table), table.values["uneven"], table.values["left_out"])
