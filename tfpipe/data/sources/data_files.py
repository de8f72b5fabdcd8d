"""The files of a split, by their names, in a folder or behind URLs."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from tfpipe.config import Remote, SourceConfig
from tfpipe.data.catalog.class_folders import BySplit
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
from tfpipe.data.sources.source import BaseSource
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

# End of the names of indexes, which are not data.
INDEX = "index.parquet"
# Name of the files next to those of training and test data.
NEITHER = "neither"
# Suffixes of TFRecord files, which need none if their names end in NUMBER-of-NUMBER.
RECORDS = (".tfrecord", ".tfrecords", ".tfrec", ".tfr", ".record")


def check_split(split: str) -> None:
    """Raises ConfigError if there is no such split."""
    if split not in ("train", "test"):
        raise ConfigError(f'no data for split "{split}": it must be "train" or "test"')


def data_files(source: SourceConfig, split: str, remote: Remote, is_data: Callable[[str], bool]) -> Sequence[AnyPath]:
    """Returns the files of a split, those in a folder by their names (catalog/class_folders.py), sorted.

    `path` is a file of training data, a folder, or a URL of a file, of a pattern of files or, in an object store, of a
    folder; `test_path` may name the test data. `remote` says how to reach URLs. Files of the split NEITHER lie next to
    the others, and are not used. Raises FetchError, and ConfigError if a split is not clear, and `test_path` does not
    say where the test data is.
    """
    apart = source.test_path is not None
    elsewhere = split == "test" and apart
    path = source.test_path if elsewhere else source.path
    assert path is not None, "the config is checked"
    folder, named = as_path(path, remote), split == "train" or elsewhere
    if isinstance(folder, UrlPath):
        if is_data((urls := expanded(str(path)))[0]):
            return [UrlPath(url, remote) for url in urls] if named else []
        names: Iterable[str] = folder.names()
    elif folder.is_dir():
        names = os.listdir(folder)
    else:
        return [folder] if named and folder.is_file() else []
    by_split = BySplit.of(name for name in names if name[0] != "." and is_data(name))
    if split == NEITHER:
        return [] if apart else [folder / name for name in by_split.unused()]
    return [folder / name for name in (by_split.training(apart) if split == "train" else by_split.testing(apart))]


def expanded(url: str) -> list[str]:
    """Returns the URLs of a pattern such as https://host/train-{0000..0099}.tar; of any other URL itself."""
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", url)
    if numbers is None:
        return [url]
    pattern, first, last = numbers[0], numbers[1], numbers[2]
    return [url.replace(pattern, f"{number:0{len(first)}}", 1) for number in range(int(first), int(last) + 1)]


class DataFiles(BaseSource):
    """Images in files that are of a split by their names."""

    noun: ClassVar[str]
    """Name of a file for messages, e.g. "table"."""
    suffixes: ClassVar[tuple[str, ...]]
    """Ends of the names of the files, in lower case."""

    def expected(self, split: str) -> str:
        """Returns the names that files of a split have, for messages."""
        return " or ".join(f"*{suffix}" for suffix in self.suffixes)

    def is_data(self, name: str) -> bool:
        """Returns whether a file is data by its name."""
        return name.lower().endswith(self.suffixes) and not name.endswith(INDEX)

    def found(self, split: str) -> Sequence[AnyPath]:
        """Returns the files of a split by their names, sorted; none if there is none."""
        return data_files(self.about, split, self.config.remote, self.is_data)

    def files(self, split: str) -> Sequence[AnyPath]:
        """Returns the files that a split is read from."""
        return self.found(split)

    def checked(self, split: str) -> Sequence[AnyPath]:
        """Returns the files that a split is read from; raises ConfigError if there is none, or one is missing."""
        files = self.files(split)
        if not files:
            source = self.about
            path = source.test_path if split == "test" and source.test_path is not None else source.path
            raise ConfigError(
                f"data.source: there is no {split} {self.noun} in {path}; expected {self.expected(split)}. Names with "
                "the word train, or with the name of no split if there are none of these, are training data; those "
                "with val, valid or validation, else those with test, are test data; data.source.test_path names test "
                "data of another place"
            )
        return files

    def has_test(self) -> bool:
        return bool(self.files("test"))

    def check(self, test: bool = False) -> None:
        for split in ("train", "test") if test and self.about.test_path is not None else ("train",):
            self.checked(split)

    def unused(self) -> Ledger:
        """Returns a ledger with the files that are of no split."""
        ledger = Ledger()
        ledger.add_all("files of no split", self.found(NEITHER))
        return ledger
