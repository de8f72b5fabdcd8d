"""Images and XMLs that are files, named by filelists."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tfpipe.config import DataConfig
from tfpipe.data.annotations.formats import read_annotation
from tfpipe.data.catalog.filelist import check_filelists
from tfpipe.data.catalog.layout import LocalFiles, Storage
from tfpipe.data.catalog.load import load_listed
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.damage import describe
from tfpipe.data.sources.remote.source import UrlSplit, UrlStorage
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Failure, Split, stated_failure
from tfpipe.distributed import World
from tfpipe.util.files import read_whole

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
        return LocalFiles()

    def image(self, item: int) -> bytes:
        return read_whole(self.catalog.paths[item])

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        from tfpipe.data.sources.reading import read_files

        return read_files(samples, self)

    def evict(self, item: int) -> None:
        from tfpipe.data.sources.cache import evict

        evict(self, item)

    def files(self, item: int) -> list[str]:
        return self.catalog.opened(item)

    def explain(self, item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        path, *annotation = self.files(item)
        failure_of = _mask_failure if self.catalog.masks is not None else self._xml_failure
        failure = failure_of(annotation, reason(error))
        try:
            contents = self.image(item)
        except OSError as unread:
            return failure or Failure(path, unread.strerror or reason(error))
        return failure or Failure(path, describe(contents, reason(error)))

    def _xml_failure(self, annotations: list[str], reason: str) -> Failure | None:
        """Returns the error of an XML, with its line, or that `reason` states of it; None if there is no error."""
        for path in annotations:
            try:
                read_annotation(path, self.catalog.annotation_format)
            except (OSError, ValueError) as error:
                return Failure(path, str(error))
        return next((Failure(path, reason) for path in annotations if reason.startswith(f"{path}: ")), None)


def storage_of(config: DataConfig, paths: FileList) -> Storage:
    """Returns access to what holds these images: a file system or, for URLs, servers."""
    return UrlStorage(config.remote, paths.folders) if paths.remote else LocalFiles()


def kind_of(paths: FileList) -> type[FileSplit] | type[UrlSplit]:
    """Returns the kind of split that reads these images."""
    return UrlSplit if paths.remote else FileSplit


def _mask_failure(masks: list[str], reason: str) -> Failure | None:
    """Returns why a mask cannot be read or, as `reason` says it, used; None if it can."""
    for path in masks:
        try:
            read_whole(path)
        except OSError as error:
            return Failure(path, error.strerror or str(error))
    return next(filter(None, (stated_failure(path, reason) for path in masks)), None)
