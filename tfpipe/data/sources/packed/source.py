"""Packed data as a source: the output of `tfpipe pack`."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.catalog.index import Index, index_of
from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.known import check_split, known_catalog
from tfpipe.data.sources.packed.manifest import RECORDS, Manifest, manifest_path, pixel_keys
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.data.sources.source import Failure, Loader, Source, Stores
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.differences import differences

if TYPE_CHECKING:
    import tensorflow as tf

    from tfpipe.data.sources.cache import Store


STORES: dict[str, Stores] = {"original": "images", "crops": "crops", "raw": "pixels"}


class Packed(Source):
    """Images or crops in shards."""

    remedy = "find all changed files with tfpipe pack --verify, then pack again"
    refused: ClassVar[dict[str, str]] = {
        **Source.refused,
        "index": "data.source names packed data, which holds its boxes: it needs no index",
        "pack": "data.source names packed data; tfpipe pack packs files: leave it out",
        "view --errors": "view --errors opens files, and data.source is packed: use tfpipe pack --verify",
    }
    shards: Shards
    """Location of the records; known once `catalog` has made a copy of this source for a split."""

    @property
    def folder(self) -> Path:
        """Folder of the packed data."""
        assert self.config.source is not None and self.config.source.path is not None, "the config is checked"
        return self.config.source.path

    @property
    def place(self) -> str:
        return str(self.folder)

    def has_test(self) -> bool:
        return manifest_path(self.folder, "test").exists()

    def check(self, test: bool = False) -> None:
        if not manifest_path(self.folder, "train").exists():
            raise ConfigError(
                f"data.source: there is no {manifest_path(self.folder, 'train')}; an interrupted pack continues with "
                f"the same command: tfpipe pack -c CONFIG --out {self.folder}"
            )

    def check_use(self, command: str) -> None:
        if command == "check":
            verify = f"tfpipe pack --verify {self.folder}"
            raise ConfigError(
                f"check reads the files of a list, and data.source has none: {verify} compares its checksums"
            )
        super().check_use(command)

    def catalog(self, split: str, world: World) -> Catalog:
        for name, plain in (("cache", None), ("storage_delay_ms", 0.0)):
            if getattr(self.config, name) != plain:
                raise ConfigError(
                    f"data.{name} is of loose files, and data.source is packed: leave it out; if storage is slow, "
                    "copy the packed folder to a local disk"
                )
        check_split(split)
        return self.load(split, world)

    def load(self, split: str, world: World) -> Catalog:
        """Loads the catalog of a split from its manifest and tables."""
        manifest = world.from_rank0(lambda: _checked(self.folder, split))
        _check_config(manifest.about, self.config, split, self.folder)
        images, records = (pq.read_table(self.folder / table["name"]) for table in manifest.tables)
        paths = replace(FileList.of(images["path"].to_pylist()), digest=manifest.about["list"])
        shards = Shards(
            manifest.about["kind"],
            [str(self.folder / shard["name"]) for shard in manifest.shards],
            Records(*(records[name].to_numpy() for name in RECORDS.names)),
            manifest.about["jpeg"],
        )
        labels, classes = images["label"].to_numpy(), tuple(manifest.about["classes"])
        return self.as_catalog(split, world, paths, classes, labels, index_of(images), shards)

    def as_catalog(
        self,
        split: str,
        world: World,
        paths: FileList,
        classes: tuple[str, ...],
        labels: np.ndarray,
        index: Index,
        shards: Shards,
    ) -> Catalog:
        """Makes the catalog of packed data.

        `paths` are the images' original paths; `labels` (int32 [len(paths)]) are class numbers or BY_OBJECT; `index`
        has the boxes and which images were annotated, and is read if crops need boxes. Raises ConfigError if there are
        more classes than `data.num_classes`, or too few samples for the ranks in scope "shard".
        """
        return known_catalog(self.of_shards(shards), split, world, paths, classes, labels, index.boxes, index.annotated)

    def of_shards(self, shards: Shards) -> "Packed":
        """Returns a copy of this source that reads a split from its shards."""
        source = copy(self)
        source.shards, source.jpeg = shards, shards.jpeg
        source.stores = STORES[shards.kind]
        return source

    def image(self, catalog: Catalog, item: int) -> bytes:
        return self.shards.contents(item)

    def loader(self, catalog: Catalog) -> Loader:
        from tfpipe.data.sources.packed.crops import file_loader

        return file_loader(self.shards, catalog.paths)

    def read(
        self, samples: "tf.data.Dataset", catalog: Catalog, config: DataConfig, world: World, store: "Store | None"
    ) -> "tf.data.Dataset":
        if self.stores != "images":
            raise ConfigError(
                "data.source holds crops instead of whole images, which this command needs: use data "
                "packed with --kind original, or the files themselves"
            )
        return super().read(samples, catalog, config, world, store)

    def find_crops(self, catalog: Catalog) -> Callable[[Any], Any]:
        from tfpipe.data.sources.packed.crops import find_crops

        return find_crops(self.shards, catalog)

    def gather_crops(
        self, batches: "tf.data.Dataset", catalog: Catalog, config: DataConfig, world: World
    ) -> "tf.data.Dataset":
        from tfpipe.data.sources.packed.crops import gather_crops

        return gather_crops(batches, self.shards, catalog, config, world)

    def records(self, catalog: Catalog) -> int:
        return len(self.shards.records.image)

    def record(self, catalog: Catalog, number: int) -> bytes:
        return self.shards.contents(number)

    def name(self, catalog: Catalog, item: int) -> str:
        return self.shards.name(item, catalog.paths)

    def explain(self, catalog: Catalog, config: DataConfig, item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        return Failure(self.name(catalog, item), reason(error))

    def cause(self, error: "tf.errors.OpError", split: str) -> str | None:
        from tfpipe.data.runtime.op_errors import reason

        return f"{reason(error)}; {self.remedy}" if reason(error).startswith("record ") else None


def _checked(folder: Path, split: str) -> Manifest:
    manifest = Manifest.read(manifest_path(folder, split))
    manifest.check_sizes(folder)
    return manifest


def _check_config(about: dict[str, Any], config: DataConfig, split: str, folder: Path) -> None:
    """Raises ConfigError if the data was packed with settings that differ from `config`; names keys and values."""
    packed: dict[str, Any] = {"data.label_source": about["label_source"]}
    wanted: dict[str, Any] = {"data.label_source": config.label_source}
    if config.classes is not None:
        packed["data.classes"], wanted["data.classes"] = about["classes"], list(class_table(config, FileList.of([])))
    if about["kind"] != "original":
        packed |= about
        wanted |= pixel_keys(config, split)
    problems = differences(packed, wanted, "packed", "in the config")
    if problems:
        raise ConfigError(
            f"{folder} cannot serve this config's {split} data: {'; '.join(problems)}; change the config, or pack for "
            "it, into another folder"
        )
