"""Packed data as a source: the output of `tfpipe pack`."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.catalog.entries import COMMAND as ENTRY_POINTS
from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import table_boxes, table_paths
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.catalogs import images_catalog
from tfpipe.data.sources.packed.manifest import ADVICE, PREFIX, Manifest, manifest_name, packed_table, pixel_keys
from tfpipe.data.sources.packed.shards import WHOLE, Records, Shards
from tfpipe.data.sources.packed.stored import ShardSplit, StoredSource
from tfpipe.data.sources.remote.url_path import AnyPath
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Failure, StoredCrops
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.json_text import differences

if TYPE_CHECKING:
    import tensorflow as tf


# Kinds of records that have no entry points, and why.
WITHOUT_ENTRIES = {
    "coefficients": "coefficients, which need no entry points",
    "crops": "crops, which are decoded whole: entry points are for whole images",
    "raw": "pixels, which are not decoded: entry points are for whole images",
}


class PackedSplit(ShardSplit):
    """A split of packed images, or of crops, which are read a batch at a time."""

    @property
    def remedy(self) -> str:
        return "find all changed files with tfpipe pack --verify, then pack again"

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        if self.stores != "images":
            raise ConfigError(
                "data.source holds crops instead of images, which this command needs: use data packed with --kind "
                "original or coefficients, or the files themselves"
            )
        return super().read(samples)

    def crops(self) -> StoredCrops | None:
        from tfpipe.data.sources.packed.crops import find_crops, gather_crops

        if self.stores == "images":
            return None
        return StoredCrops(find_crops(self.shards, self.catalog), partial(gather_crops, split=self, shards=self.shards))

    def explain(self, item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        return Failure(self.name(item), reason(error))


class PackedSource(StoredSource):
    """Images or crops in shards."""

    split_type = PackedSplit

    refused: ClassVar[dict[str, str]] = {
        **{command: why for command, why in BaseSource.refused.items() if command != "stage"},
        "index": "data.source names packed data, which holds its boxes: it needs no index",
        "pack": "data.source names packed data; tfpipe pack packs files: leave it out",
    }

    def has_test(self) -> bool:
        return (self.folder / manifest_name("test")).exists()

    def check(self, test: bool = False) -> None:
        if not (self.folder / manifest_name("train")).exists():
            raise ConfigError(
                f"data.source: there is no {(self.folder / manifest_name('train'))}; this resumes an "
                f"interrupted pack: tfpipe pack -c CONFIG --out {self.folder}; of other data behind a URL, such as "
                'class folders, give the kind, e.g. "folders"'
            )

    def check_use(self, command: str) -> None:
        super().check_use(command)
        if command == ENTRY_POINTS:
            why = WITHOUT_ENTRIES.get(Manifest.read(self.folder / manifest_name("train")).about["kind"])
            if why is not None:
                raise ConfigError(f"{self.folder} holds {why}")

    def load(self, split: str, world: World) -> tuple[Catalog, Shards]:
        """Loads a split from its manifest and tables."""
        manifest = world.from_rank0(lambda: _check_folder(self.folder, split))
        if manifest.about["kind"] == "coefficients" and not self.config.native:
            raise ConfigError(
                f'{self.folder} holds coefficients, which only the decoder in C reads: set data.decoder to "native"'
            )
        _check_config(manifest.about, self.config, split, self.folder)
        table = packed_table(manifest, self.folder, self.config, world)
        files = [(self.folder / shard["name"], shard) for shard in manifest.shards]
        shards = Shards(
            manifest.about["kind"],
            [str(path) for path, _ in files],
            Records(*(table.columns[f"record_{name}"] for name in Records._fields)),
            manifest.about["jpeg"],
            # As a number: a text is a version that the server states.
            self.open_shards([(path, Stamp(shard["bytes"], int(shard["sha256"], 16))) for path, shard in files]),
        )
        columns, classes, paths = table.columns, tuple(manifest.about["classes"]), table_paths(table)
        pixels = math.prod((*self.config.crop_image_size, self.config.num_channels)) if shards.kind == "raw" else None
        shards.check_places([shard["bytes"] for shard in manifest.shards], paths, ADVICE, pixels)
        _check_records(shards, columns["label"], len(classes), self.folder)
        catalog = images_catalog(split, paths, columns["label"], classes, table_boxes(table))
        return replace(catalog, annotated=columns["annotated"], weights=columns.get("weight")), shards


def _check_folder(folder: AnyPath, split: str) -> Manifest:
    if isinstance(folder, Path) and (note := folder / f".{PREFIX[split]}.staged.json").exists():
        # The copy of some ranks' images has zeros in place of the others.
        raise ConfigError(
            f"{folder} was copied by an earlier version, maybe in part, says {note}: remove it and stage it"
        )
    manifest = Manifest.read(folder / manifest_name(split))
    manifest.check_sizes(folder)
    return manifest


def _check_records(shards: Shards, labels: np.ndarray, classes: int, folder: AnyPath) -> None:
    """Raises ConfigError if records are not those of the images, in their order, or a label is no class."""
    owners, count = shards.records.image, len(labels)
    right = len(owners) > 0
    if right and shards.kind in WHOLE:
        right = np.array_equal(owners, np.arange(count))
    elif right:
        right = bool(owners[0] >= 0 and owners[-1] < count and (owners[1:] >= owners[:-1]).all())
    if not right:
        raise ConfigError(f"{folder}: its records ({len(owners)}) are not those of its images ({count}); {ADVICE}")
    for column in (labels, shards.records.label):
        if column.min() < BY_OBJECT or column.max() >= classes:
            raise ConfigError(f"{folder}: a label is {column.max()}, and the last class is {classes - 1}; {ADVICE}")


def _check_config(manifest: dict[str, Any], config: DataConfig, split: str, folder: AnyPath) -> None:
    """Raises ConfigError if the data was packed with settings that differ from `config`; names keys and values."""
    packed: dict[str, Any] = {"data.label_source": manifest["label_source"]}
    expected: dict[str, Any] = {"data.label_source": config.label_source}
    if config.classes is not None:
        packed["data.classes"] = manifest["classes"]
        expected["data.classes"] = list(class_table(config, FileList.of([])))
    if manifest["kind"] != "original" or config.uses_boxes(split):  # boxes were drawn on turned images, or on others
        packed["data.exif"], expected["data.exif"] = manifest.get("data.exif", "ignore"), config.exif
    if manifest["kind"] not in WHOLE:
        packed |= {"data.fit": "stretch"} | manifest  # packs of earlier versions have no other
        expected |= pixel_keys(config, split)
    problems = differences(packed, expected, "packed", "in the config")
    if problems:
        raise ConfigError(
            f"{folder} cannot serve this config's {split} data: {'; '.join(problems)}; change the config, or pack for "
            "it, into another folder"
        )
