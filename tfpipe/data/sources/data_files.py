"""The files of a split, by their names, in a folder or behind URLs."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from tfpipe.config import Remote
from tfpipe.data.catalog.paths import is_url
from tfpipe.data.catalog.splits import Role, sorted_files
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
from tfpipe.data.sources.source import BaseSource
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

# End of the names of indexes, which are not data.
INDEX = "index.parquet"
# Ends of the names of compressed archives.
COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".lz4", ".7z", ".rar")
# Suffixes of TFRecord files, which need none if their names end in NUMBER-of-NUMBER.
RECORDS = (".tfrecord", ".tfrecords", ".tfrec", ".tfr", ".record")


def check_split(split: str) -> None:
    """Raises ConfigError if there is no such split."""
    if split not in ("train", "test"):
        raise ConfigError(f'no data for split "{split}": it must be "train" or "test"')


class FilesOf(NamedTuple):
    """The files at a path, by their use; each sorted."""

    train: Sequence[AnyPath]
    test: Sequence[AnyPath]
    left_out: Mapping[str, Sequence[AnyPath]] = {}  # by the reason


def files_at(path: Path | str, role: Role, remote: Remote, is_data: Callable[[str], bool]) -> FilesOf:
    """Returns the data files at a path, those in a folder by their names (catalog/splits.py).

    `path` is a file, a folder, or a URL of a file, of a pattern of files or, in an object store, of a folder. `remote`
    says how to reach URLs. Raises FetchError, and ConfigError if a file's split is not clear.
    """
    folder = as_path(path, remote)
    if isinstance(folder, UrlPath) and is_data((urls := expand_pattern(str(path)))[0]):
        return _of_role([UrlPath(url, remote) for url in urls], role)
    if not isinstance(folder, UrlPath) and not folder.is_dir():
        return _of_role([folder] if folder.is_file() else [], role)
    names: Iterable[str] = folder.names() if isinstance(folder, UrlPath) else os.listdir(folder)
    try:
        files = sorted_files((name for name in names if name[0] != "." and is_data(name)), role)
    except ConfigError as error:
        raise ConfigError(f"data.source.path: {error}") from error
    left_out = {reason: [folder / name for name in names] for reason, names in files.left_out.items()}
    return FilesOf([folder / name for name in files.train], [folder / name for name in files.test], left_out)


def _of_role(files: Sequence[AnyPath], role: Role) -> FilesOf:
    return FilesOf([], files) if role == "test" else FilesOf(files, [])


def expand_pattern(url: str) -> list[str]:
    """Returns the URLs of a pattern such as https://host/train-{0000..0099}.tar; of any other URL itself.

    Raises ConfigError if the numbers go down.
    """
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", url)
    if numbers is None:
        return [url]
    pattern, first, last = numbers[0], numbers[1], numbers[2]
    if int(first) > int(last):
        raise ConfigError(f"{url}: received {pattern}, which names no file; accepted: the smaller number first")
    return [url.replace(pattern, f"{number:0{len(first)}}", 1) for number in range(int(first), int(last) + 1)]


class DataFiles(BaseSource):
    """Images in files that are of a split by their names."""

    noun: ClassVar[str]
    """Name of a file for messages, e.g. "table"."""
    suffixes: ClassVar[tuple[str, ...]]
    """Ends of the names of the files, in lower case."""
    within: ClassVar[str] = ""
    """End of a message about missing test data: how these files may hold both."""

    def expected_names(self, split: str) -> str:
        """Returns the names that files of a split have, for messages."""
        return " or ".join(f"*{suffix}" for suffix in self.suffixes)

    def is_data(self, name: str) -> bool:
        """Returns whether a file is data by its name."""
        return name.lower().endswith(self.suffixes) and not name.endswith(INDEX)

    def sorted_files(self, split: str) -> FilesOf:
        """Returns the files at `test_path` if it holds `split`, else those at `path` that `test_path` does not name."""
        source, remote = self.about, self.config.remote
        assert source.path is not None, "the config is checked"
        if source.test_path is None:
            return files_at(source.path, "both", remote, self.is_data)
        if split == "test":
            return files_at(source.test_path, "test", remote, self.is_data)
        files = files_at(source.path, "train", remote, self.is_data)
        others = set(map(_real, expand_pattern(str(source.test_path)))) - {_real(source.path)}
        left_out = {reason: _without(others, paths) for reason, paths in files.left_out.items()}
        return FilesOf(_without(others, files.train), [], left_out)

    def split_files(self, split: str) -> Sequence[AnyPath]:
        """Returns the files of a split by their names, sorted; none if there is none."""
        files = self.sorted_files(split)
        return files.train if split == "train" else files.test

    def files(self, split: str) -> Sequence[AnyPath]:
        """Returns the files that a split is read from."""
        return self.split_files(split)

    def require_files(self, split: str) -> Sequence[AnyPath]:
        """Returns the files that a split is read from; raises ConfigError if there is none, or one is missing."""
        files = self.files(split)
        if not files:
            source = self.about
            path = source.test_path if split == "test" and source.test_path is not None else source.path
            raise ConfigError(
                f"data.source: there is no {split} {self.noun} in {path}; expected {self.expected_names(split)}. Names "
                "with the word train, or with the name of no split if there are none of these, are training data; "
                "those with val, valid or validation, else those with test, are test data; data.source.test_path names "
                f"test data of another place{self.within}"
            )
        return files

    def has_test(self) -> bool:
        return bool(self.files("test"))

    def check(self, test: bool = False) -> None:
        for split in ("train", "test") if test and self.about.test_path is not None else ("train",):
            self.require_files(split)

    def unused_files(self, split: str) -> Ledger:
        """Returns a ledger of the files of no split; those next to training data are counted with these alone."""
        ledger = Ledger()
        if split == "train" or self.about.test_path is not None:
            for reason, paths in self.sorted_files(split).left_out.items():
                ledger.add_all(reason, paths)
        return ledger


def _without(others: Collection[str], paths: Sequence[AnyPath]) -> list[AnyPath]:
    return [path for path in paths if _real(path) not in others]


def _real(path: AnyPath | str) -> str:
    """Returns a path with its links resolved, or a URL."""
    return str(path) if is_url(str(path)) else os.path.realpath(str(path))
