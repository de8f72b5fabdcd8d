"""Packed data as a source: the output of `tfpipe pack`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tfpipe.config import DataConfig
from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import table_boxes, table_paths
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.known import known_catalog
from tfpipe.data.sources.packed.manifest import (
    Manifest,
    check_share,
    manifest_path,
    packed_table,
    pixel_keys,
    table_records,
)
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.packed.stored import Stored
from tfpipe.data.sources.remote.url_path import AnyPath
from tfpipe.data.sources.source import Failure, Source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.json_text import differences

if TYPE_CHECKING:
    import tensorflow as tf

    from tfpipe.data.sources.cache import Store


class Packed(Stored):
    """Images or crops in shards."""

    remedy = "find all changed files with tfpipe pack --verify, then pack again"
    refused: ClassVar[dict[str, str]] = {
        **{command: why for command, why in Source.refused.items() if command != "stage"},
        "index": "data.source names packed data, which holds its boxes: it needs no index",
        "pack": "data.source names packed data; tfpipe pack packs files: leave it out",
        "view --errors": "view --errors opens files, and data.source is packed: use tfpipe pack --verify",
    }

    def has_test(self) -> bool:
        return manifest_path(self.folder, "test").exists()

    def check(self, test: bool = False) -> None:
        if not manifest_path(self.folder, "train").exists():
            raise ConfigError(
                f"data.source: there is no {manifest_path(self.folder, 'train')}; an interrupted pack continues with "
                f"the same command: tfpipe pack -c CONFIG --out {self.folder}"
            )

    def load(self, split: str, world: World) -> Catalog:
        """Loads the catalog of a split from its manifest and tables."""
        manifest = world.from_rank0(lambda: _checked(self.folder, split))
        if isinstance(self.folder, Path):
            check_share(self.folder, split, self.config, world)
        _check_config(manifest.about, self.config, split, self.folder)
        table = packed_table(manifest, self.folder, self.config, world)
        files = [(self.folder / shard["name"], shard) for shard in manifest.shards]
        shards = Shards(
            manifest.about["kind"],
            [str(path) for path, _ in files],
            table_records(table),
            manifest.about["jpeg"],
            self.opened([(path, Stamp(shard["bytes"], shard["sha256"])) for path, shard in files]),
        )
        paths, boxes, weights = table_paths(table), table_boxes(table), table.columns.get("weight")
        labels, annotated, classes = (
            table.columns["label"],
            table.columns["annotated"],
            tuple(manifest.about["classes"]),
        )
        return known_catalog(self.of_shards(shards), split, world, paths, classes, labels, boxes, annotated, weights)

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

    def explain(self, catalog: Catalog, config: DataConfig, item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        return Failure(self.name(catalog, item), reason(error))


def _checked(folder: AnyPath, split: str) -> Manifest:
    manifest = Manifest.read(manifest_path(folder, split))
    manifest.check_sizes(folder)
    return manifest


def _check_config(about: dict[str, Any], config: DataConfig, split: str, folder: AnyPath) -> None:
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
