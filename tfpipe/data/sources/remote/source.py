"""Images and XMLs behind URLs."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfpipe.config import DataConfig, Remote
from tfpipe.data.annotations.voc import find_objects
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.data.sources.listed import Listed, opened
from tfpipe.data.sources.remote.fetcher import CANNOT_FETCH, Fetcher, FetchError, shared_fetcher
from tfpipe.data.sources.source import Failure
from tfpipe.distributed import World

if TYPE_CHECKING:
    import tensorflow as tf

    from tfpipe.data.sources.cache import Store

# Folders of an object store that are listed concurrently.
LISTED_TOGETHER = 256


class Urls(Listed):
    """Files behind URLs; `data.remote` says how to fetch them."""

    # Requests still run concurrently; their results arrive in order too.
    replay_reads = "auto"

    def __init__(self, config: DataConfig, folders: tuple[str, ...]) -> None:
        super().__init__(config)
        self.folders = folders
        self.remote: Remote = config.remote

    def fetcher(self) -> Fetcher:
        """Returns the client; sources with equal settings and schemes share it and its connections."""
        return shared_fetcher(self.remote, self.folders)

    def list_folders(self, folders: list[str]) -> Iterator[set[str]]:
        fetcher = Fetcher(self.remote, folders)
        for start in range(0, len(folders), LISTED_TOGETHER):
            yield from fetcher.names(folders[start : start + LISTED_TOGETHER])
        fetcher.close()

    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        results = self.fetcher().fetch(paths)
        for result in results:
            if isinstance(result, FetchError):
                raise result
        return [result for result in results if not isinstance(result, FetchError)]

    def sizes(self, paths: list[str]) -> np.ndarray:
        starts = self.fetcher().starts(paths, START)
        headers = [None if isinstance(start, FetchError) else jpeg_header(start) for start in starts]
        return np.array(
            [
                (header or header_of(self.contents([path])[0] or b"", path))[:2]
                for path, header in zip(paths, headers, strict=True)
            ],
            np.float32,
        )

    def image(self, catalog: Catalog, item: int) -> bytes:
        return self.contents([catalog.paths[item]])[0] or b""

    def read(
        self, samples: "tf.data.Dataset", catalog: Catalog, config: DataConfig, world: World, store: "Store | None"
    ) -> "tf.data.Dataset":
        from tfpipe.data.sources.remote.read import read_remote

        return read_remote(samples, catalog, self.fetcher(), config, world, store)

    def uncached(self) -> "Urls":
        source = Urls(self.config, self.folders)
        source.remote = self.remote.model_copy(update={"batch": 1, "cache": None})
        return source

    def evict(self, catalog: Catalog, config: DataConfig, world: World, item: int) -> None:
        Fetcher(self.remote, self.folders).forget(opened(catalog, item))

    def explain(self, catalog: Catalog, config: DataConfig, item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        unreachable = _unreachable(error)
        if unreachable is not None:
            return unreachable
        path, *annotation = opened(catalog, item)
        for url in annotation:
            try:
                text = self.uncached().contents([url])[0]
                if text is not None:
                    find_objects(text, url)
            except FetchError:
                continue
            except ValueError as wrong:
                return Failure(url, str(wrong))
        return Failure(path, reason(error))

    def cause(self, error: "tf.errors.OpError", split: str) -> str | None:
        failure = _unreachable(error)
        if failure is None:
            return None
        return (
            f"{failure.path} of the {split} data: {failure.reason}; see to the server or the network, or take it out "
            "of the filelist"
        )


def _unreachable(error: "tf.errors.OpError") -> Failure | None:
    """Returns the URL that could not be fetched, None if `error` has another cause."""
    from tfpipe.data.runtime.op_errors import reason

    match = re.search(f"(?s){CANNOT_FETCH}(\\S+): (.*?)]?$", reason(error))
    return Failure(match[1], match[2]) if match else None
