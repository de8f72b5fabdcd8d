"""Images and XMLs behind URLs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tfpipe.config import Parallel, Remote
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.catalog.layout import Storage
from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.data.sources.remote.fetcher import CANNOT_FETCH, Fetcher, FetchError, shared_fetcher
from tfpipe.data.split import Failure, Split, stated_failure

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Self

# Folders of an object store that are listed concurrently.
LISTED_TOGETHER = 256


class UrlStorage(Storage):
    """Files behind URLs."""

    def __init__(self, remote: Remote, folders: Sequence[str]) -> None:
        """Fetches as `remote` says; the URLs are in `folders`. Raises ConfigError as Fetcher does, when first used."""
        self._remote, self._folders = remote, tuple(folders)

    def fetcher(self) -> Fetcher:
        """Returns the client; storages with equal settings and schemes share it and its connections."""
        return shared_fetcher(self._remote, self._folders)

    def names(self, folders: list[str]) -> Iterator[set[str]]:
        fetcher = Fetcher(self._remote, folders)
        for start in range(0, len(folders), LISTED_TOGETHER):
            yield from fetcher.names(folders[start : start + LISTED_TOGETHER])
        fetcher.close()

    def forget(self, urls: Sequence[str]) -> None:
        """Deletes files from `data.remote.cache`, so that they are fetched again."""
        Fetcher(self._remote, self._folders).forget(urls)

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


class UrlSplit(Split):
    """Files behind URLs; `data.remote` says how to fetch them."""

    @cached_property
    def storage(self) -> UrlStorage:
        return UrlStorage(self.config.remote, self.catalog.paths.folders)

    def image(self, item: int) -> bytes:
        return self.storage.contents([self.catalog.paths[item]])[0] or b""

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        from tfpipe.data.sources.remote.read import read_remote

        return read_remote(samples, self, self.storage.fetcher())

    def serial(self) -> "Self":
        # Requests still run concurrently; their results arrive in order too.
        remote = self.config.remote.model_copy(update={"batch": 1, "cache": None})
        config = super().serial().config.model_copy(update={"parallel": Parallel(read="auto"), "remote": remote})
        return replace(self, config=config)

    def evict(self, item: int) -> None:
        self.storage.forget(self.catalog.opened(item))

    def explain(self, item: int, error: "tf.errors.OpError") -> Failure:
        from tfpipe.data.runtime.op_errors import reason

        unreachable = _unreachable(error)
        if unreachable is not None:
            return unreachable
        path, *annotation = self.catalog.opened(item)
        if self.catalog.masks is not None:
            return stated_failure(self.catalog.masks[item], reason(error)) or Failure(path, reason(error))
        for url in annotation:
            try:
                text = self.serial().storage.contents([url])[0]
                if text is not None:
                    parse_annotation(text, url, self.catalog.annotation_format)
            except FetchError:
                continue
            except ValueError as wrong:
                return Failure(url, str(wrong))
            if reason(error).startswith(f"{url}: "):
                return Failure(url, reason(error))
        return Failure(path, reason(error))

    def cause(self, error: "tf.errors.OpError") -> str | None:
        failure = _unreachable(error)
        if failure is None:
            return None
        return (
            f"{failure.path} of the {self.catalog.split} data: {failure.reason}; see to the server or the network, or "
            "take it out of the filelist"
        )


def _unreachable(error: "tf.errors.OpError") -> Failure | None:
    """Returns the URL that could not be fetched, None if `error` has another cause."""
    from tfpipe.data.runtime.op_errors import reason

    match = re.search(f"(?s){CANNOT_FETCH}(\\S+): (.*?)]?$", reason(error))
    return Failure(match[1], match[2]) if match else None
