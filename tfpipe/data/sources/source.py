"""The protocol of sources: where the data is, whether it is there, and what is known of it before an image is read."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from tfpipe.config import DataConfig, SourceConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.records import OwnSplit
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


class BaseSource(ABC):
    """A kind of data that a config names."""

    refused: ClassVar[dict[str, str]] = {
        "index": "data.source knows its own boxes: tfpipe index is for filelists",
        "check --fix-list": "--fix-list writes a filelist, and data.source has none",
        "stage": "tfpipe stage copies the files of filelists, or packed data; data.source is neither: pack it first",
    }
    """Commands that this kind cannot serve, and why."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    @property
    def about(self) -> SourceConfig:
        """Settings of the source."""
        assert self.config.source is not None, "the config is checked"
        return self.config.source

    @property
    def display_name(self) -> str:
        """Name of the training data for a message."""
        return self.config.source.kind if self.config.source else "the data"

    def name_of(self, split: str) -> str:
        """Returns the name of the data of a split for a message."""
        test_path = self.about.test_path
        return self.display_name if split == "train" or test_path is None else str(test_path)

    def has_test(self) -> bool:
        """Returns whether there is test data."""
        return True

    def check(self, test: bool = False) -> None:
        """Raises ConfigError if training data, and with `test` test data, is missing; reads next to nothing."""

    def check_use(self, command: str) -> None:
        """Raises ConfigError if this kind cannot serve a command, e.g. "index"."""
        if command in self.refused:
            raise ConfigError(self.refused[command])

    @abstractmethod
    def open(self, split: str, world: World) -> Split:
        """Finds the images of `split`, "train" or "test", with their labels and boxes; every rank must call.

        Raises ConfigError if the data is missing, damaged, or does not match the config.
        """


class Source(BaseSource):
    """Base of a user's own sources, `data.source: {"kind": "package.module:Class", "args": {...}}`."""

    @abstractmethod
    def catalog(self, split: str, world: World) -> Catalog:
        """Returns what is known of `split` before the first image is read; errors and ranks as in `open`."""

    @abstractmethod
    def image(self, catalog: Catalog, item: int) -> bytes:
        """Returns the file of image `item`. Several threads call it. Raises OSError or ValueError."""

    def open(self, split: str, world: World) -> Split:
        """Opens a split whose images `image` reads."""
        catalog = self.catalog(split, world)
        catalog = replace(catalog, display_name=catalog.display_name or self.name_of(split))
        return OwnSplit(self.config, catalog, world, lambda item: self.image(catalog, item))
