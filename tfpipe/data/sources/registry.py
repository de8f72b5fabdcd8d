"""Finds the source that a config names; adding a kind is a class and a line here."""

import json
import logging
from collections.abc import Callable
from importlib import import_module

from tfpipe.config import DataConfig
from tfpipe.config.by_epoch import SizeByEpoch
from tfpipe.config.model import shared_settings
from tfpipe.config.targets import OF_OBJECTS
from tfpipe.data.contract import check_ranks
from tfpipe.data.images.by_pillow import OPTIONAL, formats
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Split, check_order
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.process import load_function

logger = logging.getLogger(__name__)

# Imported when they are first used: pyarrow takes as long to import as a filelist takes to read.
KINDS = {
    "archive": ("tfpipe.data.sources.packed.archive", "Archive"),
    "coco": ("tfpipe.data.sources.tables.coco", "Coco"),
    "files": ("tfpipe.data.sources.files", "Files"),
    "folders": ("tfpipe.data.sources.folders", "Folders"),
    "packed": ("tfpipe.data.sources.packed.source", "PackedSource"),
    "table": ("tfpipe.data.sources.tables.table", "Table"),
    "tfrecord": ("tfpipe.data.sources.packed.tfrecords", "TfRecords"),
    "webdataset": ("tfpipe.data.sources.packed.webdataset", "WebDataset"),
}


def open_source(config: DataConfig) -> BaseSource:
    """Returns the source of `data.source`, or of the filelists if that is null.

    Raises ConfigError if there is no such class.
    """
    kind = "files" if config.source is None else config.source.kind
    if kind in KINDS:
        module, name = KINDS[kind]
        return getattr(import_module(module), name)(config)
    source = load_function(kind, "data.source.kind")(config)
    if not isinstance(source, BaseSource):
        raise ConfigError(f"data.source.kind: {kind} is no subclass of tfpipe.Source")
    return source


def load_split(
    config: DataConfig, split: str, world: World, opened: Callable[[DataConfig], BaseSource] = open_source
) -> Split:
    """Loads `split`, "train" or "test", from the config's source, which `opened` opens; every rank must call.

    Raises ConfigError as Source.open does, and if weights cannot be used, lists cannot be mixed so, the training
    samples are too few for the ranks, no decoder is installed for some images, crops of one size are stored and several
    are asked for, or the ranks of `world` differ in the settings or the data.
    """
    config = config.for_split(split)
    world = World.require(world)
    # Before the collectives, which depend on the settings.
    world.agree(shared_settings(config) | {"the split": split})
    loaded = opened(config).open(split, world)
    if loaded.stores != "images" and isinstance(size := config.crop_image_size, SizeByEpoch):
        raise ConfigError(
            f"data.crop_image_size {json.dumps(size.by_epoch)} changes with the epochs, and "
            f"{loaded.catalog.display_name} holds crops of one size: pack the original files (tfpipe pack --kind "
            "original), or set one size"
        )
    if loaded.stores != "images" and config.views:
        raise ConfigError(
            f"data.views make several crops of an image, and {loaded.catalog.display_name} holds one crop of each: "
            "pack the original files (tfpipe pack --kind original), or set data.views to []"
        )
    check_formats(loaded)
    check_targets(loaded)
    loaded = loaded.with_weights()
    if loaded.training:
        check_order(loaded)
    if world.is_connected:
        check_ranks(loaded, world.gather)
    return loaded


def check_formats(split: Split) -> None:
    """Raises ConfigError if images are, by their names, of formats that this installation does not open.

    With `data.on_error` "skip" some may be, which a warning counts.
    """
    catalog, skips = split.catalog, split.config.on_error == "skip"
    for kind, (ends, package) in OPTIONAL.items() if split.stores == "images" else ():
        if kind in formats() or not (items := catalog.paths.ending(*ends)).size:
            continue
        text = f"{items.size} of {len(catalog)} images of {catalog.display_name} end in {' or '.join(ends)}, e.g. "
        text += f"{catalog.paths[int(items[0])]}, and need a decoder: pip install '{package}'"
        if not skips or items.size == len(catalog):
            raise ConfigError(text if skips else f'{text}, or set data.on_error to "skip" to leave them out')
        if split.world.rank == 0:
            logger.warning("%s; they are left out", text)


def check_targets(split: Split) -> None:
    """Raises ConfigError if the data does not hold what `data.targets` asks for."""
    kind, catalog = split.config.targets.kind, split.catalog
    name = f'data.targets "{kind}": {catalog.display_name}'
    if kind != "label" and split.stores != "images":
        raise ConfigError(
            f"{name} holds crops, each with the label that it was packed with: pack the original files (tfpipe pack "
            '--kind original), or set data.targets to "label"'
        )
    if kind == "number" and "number" not in catalog.values:
        raise ConfigError(f'{name} has no numbers: they are a column of a table, data.source {{"kind": "table"}}')
    if kind == "mask" and catalog.masks is None:
        raise ConfigError(
            f"{name} has no masks that are read: they are PNGs beside the images of a filelist or in tar shards, or a "
            "column of paths in a table of paths"
        )
    if kind in OF_OBJECTS and (catalog.boxes is None or not len(catalog.boxes.labels)):
        left_out = "".join(f"; not used: {text}" for text in catalog.ledger.texts)
        raise ConfigError(
            f"{name} has no {catalog.split} image with a box of a known class{left_out}: see data.annotations and "
            "data.layout, or the columns of a table"
        )
