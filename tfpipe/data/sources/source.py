"""The protocol of sources: where the bytes of the images are, how they are read, and what a failure is called."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from tfpipe.config import DataConfig, Remote
from tfpipe.data.catalog.layout import list_folders
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.headers import START, header_of, jpeg_header
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf

    from tfpipe.data.sources.cache import Store

REPAIR = "repair it or take it out of the data; tfpipe check finds all such images"

Stores = Literal["images", "crops", "pixels"]
Loader = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Images (int64 [n]) -> their files (bytes [n]), heights and widths (int32 [n, 2]). Raises OSError or ValueError."""


class Failure(NamedTuple):
    """A file that cannot be used, and why."""

    path: str
    reason: str


class Source(ABC):
    """Base of all kinds of sources. A kind has to define `catalog` and `image`; the rest has defaults.

    `data.source: {"kind": "package.module:Class", "args": {...}}` names a kind of the user's own.
    """

    stores: Stores = "images"
    """Content of a record: an image's file, a crop as a JPEG, or a crop's pixels."""
    jpeg: dict[str, Any] | None = None
    """JPEG quality and subsampling if crops were encoded again; a run that resumes must have the same."""
    remote: Remote | None = None
    """Settings to fetch the images if they are behind URLs."""
    remedy: ClassVar[str] = REPAIR
    """Advice about an image that cannot be used."""
    per_call: int = 32
    """Images that one call of `loader`'s function loads: Python is called once for all of them."""
    replay_reads: Literal["auto"] | None = None
    """`data.parallel.read` with which images are loaded once more, to find the one that failed, in order."""
    left_out: Sequence[str] = ()
    """Files and members of the data that are not used, a text for each kind: "12 .tiff (e.g. a/1.tiff)"."""
    listed: ClassVar[bool] = False
    """True if a filelist names the images: `tfpipe check` then reads it line by line."""
    refused: ClassVar[dict[str, str]] = {
        "index": "data.source knows its own boxes: tfpipe index is for filelists",
        "check --fix-list": "--fix-list writes a filelist, and data.source has none",
        "stage": "tfpipe stage copies the files of filelists, or packed data; data.source is neither: pack it first",
        "view --errors": "view --errors opens the files of a filelist, and data.source has none: use tfpipe check",
    }
    """Commands that this kind cannot serve, and why."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    # Before anything is loaded.

    @property
    def place(self) -> str:
        """Name of the training data for a message."""
        return self.config.source.kind if self.config.source else "the data"

    def has_test(self) -> bool:
        """Returns whether there is test data."""
        return True

    def check(self, test: bool = False) -> None:
        """Raises ConfigError if training data, and with `test` test data, is missing; reads next to nothing."""

    def check_use(self, command: str) -> None:
        """Raises ConfigError if this kind cannot serve a command, e.g. "index"."""
        if command in self.refused:
            raise ConfigError(self.refused[command])

    # Loading.

    @abstractmethod
    def catalog(self, split: str, world: World) -> Catalog:
        """Returns everything that is known about `split`, "train" or "test", whose `source` reads its images.

        Raises:
            ConfigError: the data is missing, damaged, or does not match the config.
        """

    def of(self, paths: FileList) -> "Source":
        """Returns the source that reads these images of a filelist."""
        del paths
        return self

    def list_folders(self, folders: list[str]) -> Iterator[set[str]]:
        """Yields the base names in each folder, an empty set for one that does not exist."""
        return list_folders(folders)

    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        """Returns the XMLs at `paths`; None for one that may be missing, and is. Raises OSError or TfpipeError."""
        raise ConfigError(f"{self.place} holds no XMLs")

    def sizes(self, paths: list[str]) -> np.ndarray:
        """Returns heights and widths (float32 [n, 2]) of the images at `paths`, whose XMLs do not state them."""
        raise ConfigError(f"{self.place} does not know the sizes of its images")

    # Reading.

    @abstractmethod
    def image(self, catalog: Catalog, item: int) -> bytes:
        """Returns the file of image `item`. Raises OSError or ValueError."""

    def loader(self, catalog: Catalog) -> Loader:
        """Returns the function that `read` calls for some images at once, in several threads."""

        def load(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            contents, sizes = np.empty(len(images), object), np.empty((len(images), 2), np.int32)
            for number, item in enumerate(images.tolist()):
                try:
                    file = contents[number] = self.image(catalog, item)
                except (OSError, ValueError) as error:
                    raise ValueError(f"{self.name(catalog, item)}: {error}") from None
                sizes[number] = (jpeg_header(file[:START]) or header_of(file, self.name(catalog, item)))[:2]
            return contents, sizes

        return load

    def read(
        self, samples: "tf.data.Dataset", catalog: Catalog, config: DataConfig, world: World, store: "Store | None"
    ) -> "tf.data.Dataset":
        """Reads images, `SamplePaths` -> `Encoded`; their boxes are known, so there is no XML.

        Raises:
            ConfigError: `data.cache` or `data.storage_delay_ms` is set, which are for files.
        """
        from tfpipe.data.sources.reading import read_records

        del store
        for key, plain in (("cache", None), ("storage_delay_ms", 0.0)):
            if getattr(config, key) != plain:
                raise ConfigError(f"data.{key} is for files, and {self.place} has none: leave it out")
        return read_records(samples, self.loader(catalog), self.per_call, config, world)

    def find_crops(self, catalog: Catalog) -> Callable[[Any], Any]:
        """Returns an in-graph function from samples to the stored crops that they consist of; only if crops are."""
        raise ConfigError(f"{self.place} stores {self.stores}, and cannot read them in batches")

    def gather_crops(
        self, batches: "tf.data.Dataset", catalog: Catalog, config: DataConfig, world: World
    ) -> "tf.data.Dataset":
        """Reads batches of what `find_crops` returns; -> batches of `Crops`."""
        raise ConfigError(f"{self.place} stores {self.stores}, and cannot read them in batches")

    def records(self, catalog: Catalog) -> int:
        """Returns the number of records: images, or crops if these are stored."""
        return len(catalog)

    def record(self, catalog: Catalog, number: int) -> bytes:
        """Returns a record as it is stored. Raises OSError or ValueError."""
        return self.image(catalog, number)

    # After a failure.

    def uncached(self) -> "Source":
        """Returns the source that reads the originals one at a time, since a user can only repair these."""
        source = copy(self)
        source.per_call = 1
        return source

    def evict(self, catalog: Catalog, config: DataConfig, world: World, item: int) -> None:
        """Deletes an image's files from caches, so that they are read again after a repair."""

    def name(self, catalog: Catalog, item: int) -> str:
        """Returns the name of image `item` for a message."""
        return catalog.paths[item]

    def files(self, catalog: Catalog, item: int) -> list[str]:
        """Returns the paths of the files that reading image `item` opens, if a user could look at them."""
        del catalog, item
        return []

    def explain(self, catalog: Catalog, config: DataConfig, item: int, error: "tf.errors.OpError") -> Failure:
        """Returns what is wrong with image `item`, given the `error` raised when it was loaded alone."""
        from tfpipe.data.images.damage import describe
        from tfpipe.data.runtime.op_errors import reason

        name = self.name(catalog, item)
        try:
            contents = self.image(catalog, item)
        except (OSError, ValueError) as unread:
            return Failure(name, str(unread))
        return Failure(name, describe(contents, reason(error)))

    def cause(self, error: "tf.errors.OpError", split: str) -> str | None:
        """Returns the failed file, the reason and the remedy if the error itself names them, else None."""
        del error, split
        return None
