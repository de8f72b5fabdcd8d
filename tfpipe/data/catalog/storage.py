"""The file system or server that holds the images and XMLs of a filelist."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from tfpipe.data.catalog.layout import list_folders
from tfpipe.data.images.headers import read_header
from tfpipe.util.files import read_whole


class Storage(ABC):
    """Access to files by path or URL, many at once."""

    @abstractmethod
    def names(self, folders: list[str]) -> Iterator[set[str]]:
        """Yields the base names in each folder, an empty set for one that does not exist."""

    @abstractmethod
    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        """Returns the files at `paths`; None for one that may be missing, and is. Raises OSError or TfpipeError."""

    @abstractmethod
    def sizes(self, paths: list[str]) -> np.ndarray:
        """Returns heights and widths (float32 [n, 2]) of the images at `paths`. Raises OSError or ValueError."""


class LocalFiles(Storage):
    """Files on a file system."""

    def names(self, folders: list[str]) -> Iterator[set[str]]:
        return list_folders(folders)

    def contents(self, paths: list[str]) -> Sequence[bytes | None]:
        return [read_whole(path) for path in paths]

    def sizes(self, paths: list[str]) -> np.ndarray:
        return np.array([read_header(path)[:2] for path in paths], np.float32)
