"""The base of the sources whose images are byte ranges of a few large files."""

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.known import check_split
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.remote.fetcher import FetchError
from tfpipe.data.sources.remote.ranges import RemoteFiles
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
from tfpipe.data.sources.source import Loader, Source, Stores
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp

if TYPE_CHECKING:
    import tensorflow as tf

STORES: dict[str, Stores] = {"original": "images", "crops": "crops", "raw": "pixels"}


class Stored(Source):
    """Images in shards, each read at once by its shard, offset and length."""

    shards: Shards
    """Location of the records; known once `catalog` has made a copy of this source for a split."""

    @property
    def folder(self) -> AnyPath:
        """Folder of the data."""
        assert self.config.source is not None and self.config.source.path is not None, "the config is checked"
        return as_path(self.config.source.path, self.config.remote)

    @property
    def place(self) -> str:
        return str(self.folder)

    def catalog(self, split: str, world: World) -> Catalog:
        for name, plain in (("cache", None), ("storage_delay_ms", 0.0)):
            if getattr(self.config, name) != plain:
                raise ConfigError(
                    f"data.{name} is of loose files, and data.source is packed: leave it out; if storage is "
                    "slow, copy the folder to a local disk"
                )
        check_split(split)
        return self.load(split, world)

    @abstractmethod
    def load(self, split: str, world: World) -> Catalog:
        """Loads the catalog of a split; raises ConfigError as `catalog` does."""

    def of_shards(self, shards: Shards) -> "Stored":
        """Returns a copy of this source that reads a split from its shards."""
        source = copy(self)
        source.shards, source.jpeg = shards, shards.jpeg
        source.stores = STORES[shards.kind]
        return source

    def opened(self, shards: Sequence[tuple[AnyPath, Stamp]]) -> RemoteFiles | None:
        """Returns what reads shards if they are behind URLs, None if they are files.

        A shard's stamp has its size; `changed` may be anything that tells its versions apart, as a checksum does.
        """
        if not shards or not isinstance(shards[0][0], UrlPath):
            return None
        return RemoteFiles([(str(path), stamp) for path, stamp in shards], self.config.remote)

    def image(self, catalog: Catalog, item: int) -> bytes:
        try:
            contents = self.shards.contents(item)
        except FetchError as error:
            raise ValueError(str(error)) from None
        if len(contents) != self.shards.records.length[item]:
            raise ValueError("the shard ends within it")
        return contents

    def loader(self, catalog: Catalog) -> Loader:
        from tfpipe.data.sources.packed.crops import file_loader

        return file_loader(self.shards, catalog.paths)

    def name(self, catalog: Catalog, item: int) -> str:
        return self.shards.name(item, catalog.paths)

    def cause(self, error: "tf.errors.OpError", split: str) -> str | None:
        from tfpipe.data.runtime.op_errors import reason

        return f"{reason(error)}; {self.remedy}" if reason(error).startswith("record ") else None
