"""The base of the sources whose images are byte ranges of a few large files."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.headers import as_file
from tfpipe.data.sources.catalogs import apply_settings
from tfpipe.data.sources.data_files import check_split
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.records import ReadFiles, RecordSplit
from tfpipe.data.sources.remote.ranges import RemoteFiles
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Stores
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp, stamp
from tfpipe.util.ledger import Ledger

if TYPE_CHECKING:
    import tensorflow as tf

STORES: dict[str, Stores] = {"original": "images", "coefficients": "images", "crops": "crops", "raw": "pixels"}


@dataclass(frozen=True, eq=False)
class ShardSplit(RecordSplit):
    """A split whose records are byte ranges of shards."""

    shards: Shards

    @property
    def stores(self) -> Stores:
        return STORES[self.shards.kind]

    def image(self, item: int) -> bytes:
        return as_file(self.shards.contents(item))

    def stamp(self, item: int) -> Stamp:
        return stamp(self.shards.paths[self.shards.records.shard[item]])

    def mask(self, item: int) -> bytes:
        assert self.shards.masks is not None, "there are masks"
        return self.shards.masks.contents(item)

    def file_reader(self) -> ReadFiles:
        return self.shards.reader(self.catalog.paths)

    def mask_reader(self) -> ReadFiles | None:
        masks, paths = self.shards.masks, self.catalog.masks
        return None if masks is None or paths is None else masks.reader(paths)

    def reader(self) -> "Callable[[tf.Tensor], tf.Tensor] | None":
        from tfpipe.data.sources.packed.crops import range_reader

        return range_reader(self.config, self.shards)

    def name(self, item: int) -> str:
        return self.shards.name(item, self.catalog.paths)


class StoredSource(BaseSource):
    """Images in shards, each read at once by its shard, offset and length."""

    split_type: ClassVar[type[ShardSplit]] = ShardSplit

    @property
    def folder(self) -> AnyPath:
        """Folder of the data."""
        assert self.about.path is not None, "the config is checked"
        return as_path(self.about.path, self.config.remote)

    @property
    def display_name(self) -> str:
        return str(self.folder)

    def open(self, split: str, world: World) -> ShardSplit:
        if self.config.cache is not None:
            raise ConfigError(
                "data.cache is of loose files, and data.source is packed: leave it out; if storage is slow, copy the "
                "folder to a local disk"
            )
        check_split(split)
        catalog, shards = self.load(split, world)
        catalog.ledger.update(self.unused_files(split))
        catalog = replace(catalog, jpeg=shards.jpeg, display_name=self.name_of(split))
        catalog = apply_settings(self.config, catalog, show=world.rank == 0)
        return self.split_type(self.config, catalog, world, shards)

    @abstractmethod
    def load(self, split: str, world: World) -> tuple[Catalog, Shards]:
        """Returns the catalog of a split, and the location of its records; raises ConfigError as `open` does."""

    def unused_files(self, split: str) -> Ledger:
        """Returns a ledger of the files next to the data of a split that are not used."""
        return Ledger()

    def open_shards(self, shards: Sequence[tuple[AnyPath, Stamp]]) -> RemoteFiles | None:
        """Returns what reads shards if they are behind URLs, None if they are files.

        A shard's stamp has its size; `changed` may be anything that tells its versions apart, as a checksum does.
        """
        if not shards or not isinstance(shards[0][0], UrlPath):
            return None
        return RemoteFiles([(str(path), stamp) for path, stamp in shards], self.config.remote)
