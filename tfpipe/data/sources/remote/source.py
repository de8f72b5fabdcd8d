"""Images and XMLs behind URLs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tfpipe.config import Parallel, Remote
from tfpipe.data.catalog.layout import Storage
from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.data.sources.records import LoadedFiles
from tfpipe.data.sources.remote.cache import Cache
from tfpipe.data.sources.remote.fetcher import CANNOT_FETCH, Fetcher, FetchError, shared_fetcher
from tfpipe.data.sources.remote.listing import LISTED_TOGETHER
from tfpipe.data.split import Failure, Split
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Self


class UrlStorage(Storage):
    """Files behind URLs."""

    def __init__(self, remote: Remote, folders: Sequence[str], turn: bool = False) -> None:
        """Fetches as `remote` says; the URLs are in `folders`. Raises ConfigError as Fetcher does, when first used."""
        self._remote, self._folders, self._turn = remote, tuple(folders), turn

    def fetcher(self) -> Fetcher:
        """Returns the client; storages with equal settings and schemes share it and its connections."""
        return shared_fetcher(self._remote, self._folders)

    def names(self, folders: list[str]) -> Iterator[set[str]]:
        for start in range(0, len(folders), LISTED_TOGETHER):
            for entries in self.fetcher().listings(folders[start : start + LISTED_TOGETHER]):
                yield {name for name, _ in entries}

    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        results = self.fetcher().fetch(paths)
        for result in results:
            if isinstance(result, FetchError):
                raise result
        return [result for result in results if not isinstance(result, FetchError)]

    def sizes(self, paths: list[str]) -> np.ndarray:
        starts = self.fetcher().starts(paths, START)
        by_start = (None if isinstance(start, FetchError) else jpeg_header(start) for start in starts)
        files = zip(paths, by_start, strict=True)
        headers = (header or header_of(self.contents([path])[0] or b"", path) for path, header in files)
        return np.array([header.turned(self._turn)[:2] for header in headers], np.float32)


@dataclass(frozen=True, eq=False)
class UrlSplit(Split):
    """Files behind URLs; `data.remote` says how to fetch them."""

    images_per_call: int = field(default=32, kw_only=True)
    """Images that are requested together, each with its annotation."""

    @cached_property
    def storage(self) -> UrlStorage:
        return UrlStorage(self.config.remote, self.catalog.paths.folders, self.config.turn)

    def image(self, item: int) -> bytes:
        return self.storage.contents([self.catalog.paths[item]])[0] or b""

    def load(self, images: np.ndarray) -> LoadedFiles:
        """Returns the files of some images (int64 [n]), requested together with their annotations.

        Holds the GIL for about 10 microseconds an image. Raises ValueError that names a URL that cannot be fetched.
        """
        catalog, items = self.catalog, images.tolist()
        annotations = [catalog.annotation(item) if catalog.reads_annotations else "" for item in items]
        try:
            files = self.storage.contents([*(catalog.paths[item] for item in items), *annotations])
        except FetchError as error:
            raise ValueError(str(error)) from None
        texts = files[len(items) :]
        paths = ["" if text is None else path for path, text in zip(annotations, texts, strict=True)]
        return LoadedFiles(
            # dtype object, since NumPy's byte strings lose trailing zeros.
            np.array([file or b"" for file in files[: len(items)]], object),
            np.array([text or b"" for text in texts], object),
            np.array(paths, object),
        )

    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        """Fetches URLs, `images_per_call` at a time; raises ConfigError if `data.cache` is set."""
        from tfpipe.data.sources.reading import read_by_python

        if self.config.cache is not None:
            raise ConfigError(
                "data.cache holds files of a file system, and the filelist holds URLs: set data.remote.cache instead, "
                "to a folder on a local disk"
            )
        # Twice as many as fill `data.remote.concurrency`, so that no batch waits for the last request of another.
        at_once = 2 * -(-self.config.remote.concurrency // self.images_per_call)
        return read_by_python(samples, self, self.load, self.images_per_call, at_once)

    def serial(self) -> "Self":
        # Requests still run concurrently; their results arrive in order too.
        remote = self.config.remote.model_copy(update={"cache": None})
        config = super().serial().config.model_copy(update={"parallel": Parallel(read="auto"), "remote": remote})
        return replace(self, config=config, images_per_call=1)

    def evict(self, item: int) -> None:
        if self.config.remote.cache is not None:
            Cache(self.config.remote).forget(self.catalog.files_of(item))

    def explain(self, item: int, error: "tf.errors.OpError") -> Failure:
        # From the server: what is in the cache may be evicted, to be fetched again.
        return _unreachable(error) or Split.explain(self.serial(), item, error)

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
