"""Images and XMLs that are files, named by filelists."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tfpipe.config import DataConfig
from tfpipe.data.catalog.filelist import check_filelists
from tfpipe.data.catalog.layout import LocalFiles, Storage
from tfpipe.data.catalog.load import load_listed
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.sources.remote.source import UrlSplit, UrlStorage
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.util.files import Stamp, read_whole, stamp

if TYPE_CHECKING:
    import tensorflow as tf


class Files(BaseSource):
    """Images that are lines of filelists, each with an XML or none."""

    refused: ClassVar[dict[str, str]] = {}

    @property
    def display_name(self) -> str:
        return " + ".join(map(str, self.config.train_lists))

    def has_test(self) -> bool:
        return self.config.test_filelist is not None

    def check(self, test: bool = False) -> None:
        check_filelists([*self.config.train_lists, *([self.config.test_filelist] if test else [])])

    def open(self, split: str, world: World) -> Split:
        catalog = load_listed(self.config, split, world, partial(storage_of, self.config))
        return kind_of(catalog.paths)(self.config, catalog, world)


class FileSplit(Split):
    """Files on a file system."""

    @property
    def storage(self) -> Storage:
        return LocalFiles(self.config.turn)

    def image(self, item: int) -> bytes:
        return read_whole(self.catalog.paths[item])

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        from tfpipe.data.sources.cache import reader
        from tfpipe.data.sources.reading import read_in_graph

        return read_in_graph(samples, self, reader(self))

    def evict(self, item: int) -> None:
        from tfpipe.data.sources.cache import evict

        evict(self, item)

    def stamp(self, item: int) -> Stamp:
        return stamp(self.catalog.paths[item])

    def files(self, item: int) -> list[str]:
        return self.catalog.files_of(item)


def storage_of(config: DataConfig, paths: FileList) -> Storage:
    """Returns access to what holds these images: a file system or, for URLs, servers."""
    return UrlStorage(config.remote, paths.folders, config.turn) if paths.remote else LocalFiles(config.turn)


def kind_of(paths: FileList) -> type[FileSplit] | type[UrlSplit]:
    """Returns the kind of split that reads these images."""
    return UrlSplit if paths.remote else FileSplit
