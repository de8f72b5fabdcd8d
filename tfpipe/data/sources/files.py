"""Images and XMLs that are files, named by filelists."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfpipe.data.annotations.voc import read_xml
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.damage import describe
from tfpipe.data.images.headers import read_header
from tfpipe.data.sources.listed import Listed, opened
from tfpipe.data.sources.remote.source import Urls
from tfpipe.data.sources.source import Failure, Source
from tfpipe.distributed import World
from tfpipe.util.files import read_whole

if TYPE_CHECKING:
    import tensorflow as tf

    from tfpipe.config import DataConfig
    from tfpipe.data.sources.cache import Store


class Files(Listed):
    """Files on a file system."""

    def of(self, paths: FileList) -> Source:
        return Urls(self.config, tuple(paths.folders)) if paths.remote else self

    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        return [read_whole(path) for path in paths]

    def sizes(self, paths: list[str]) -> np.ndarray:
        return np.array([read_header(path)[:2] for path in paths], np.float32)

    def image(self, catalog: Catalog, item: int) -> bytes:
        return read_whole(catalog.paths[item])

    def read(
        self, samples: "tf.data.Dataset", catalog: Catalog, config: "DataConfig", world: World, store: "Store | None"
    ) -> "tf.data.Dataset":
        from tfpipe.data.sources.reading import read_files

        return read_files(samples, catalog, config, world, store)

    def evict(self, catalog: Catalog, config: "DataConfig", world: World, item: int) -> None:
        from tfpipe.data.sources.cache import evict

        evict(catalog, config, world, item)

    def files(self, catalog: Catalog, item: int) -> list[str]:
        return opened(catalog, item)

    def explain(self, catalog: Catalog, config: "DataConfig", item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        path, *annotation = self.files(catalog, item)
        try:
            contents = read_whole(path)
        except OSError as unread:
            return _xml_failure(annotation) or Failure(path, unread.strerror or reason(error))
        return _xml_failure(annotation) or Failure(path, describe(contents, reason(error)))


def _xml_failure(annotations: list[str]) -> Failure | None:
    """Returns lxml's error for an XML, with its line; None if there is no error."""
    for path in annotations:
        try:
            read_xml(path)
        except (OSError, ValueError) as error:
            return Failure(path, str(error))
    return None
