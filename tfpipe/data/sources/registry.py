"""Finds the source that a config names; adding a kind is a class and a line here."""

import json
from dataclasses import replace
from importlib import import_module

from tfpipe.config import DataConfig
from tfpipe.config.by_epoch import by_epoch
from tfpipe.data.catalog.weights import weighted
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Split, check_order
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.import_function import load_function

# Imported when they are first used: pyarrow takes as long to import as a filelist takes to read.
KINDS = {
    "coco": ("tfpipe.data.sources.tables.coco", "Coco"),
    "files": ("tfpipe.data.sources.files", "Files"),
    "folders": ("tfpipe.data.sources.folders", "Folders"),
    "packed": ("tfpipe.data.sources.packed.source", "Packed"),
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


def load_split(config: DataConfig, split: str, world: World) -> Split:
    """Loads `split`, "train" or "test", from the config's source; every rank must call.

    Raises ConfigError as Source.open does, and if weights cannot be used, lists cannot be mixed so, the training
    samples are too few for the ranks, or crops of one size are stored and several are asked for.
    """
    config = config.for_split(split)
    loaded = open_source(config).open(split, world)
    if loaded.stores != "images" and len(sizes := by_epoch(config.crop_image_size)) > 1:
        raise ConfigError(
            f"data.crop_image_size {json.dumps(sizes)} changes with the epochs, and {loaded.catalog.display_name} "
            "holds crops of one size: pack the original files (tfpipe pack --kind original), or set one size"
        )
    loaded = replace(loaded, catalog=weighted(loaded.catalog, config))
    if loaded.training:
        check_order(loaded)
    return loaded
