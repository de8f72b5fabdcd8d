"""The files of a split, by their names, in a folder or behind URLs."""

import os
import re
from collections.abc import Callable, Iterable, Sequence

from tfpipe.config import Remote, SourceConfig
from tfpipe.data.catalog.class_folders import BySplit
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, as_path
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


def ends_with(suffixes: tuple[str, ...]) -> Callable[[str], bool]:
    """Returns the test whether a file's name ends with one of `suffixes`, and not as an index's."""
    return lambda name: name.lower().endswith(suffixes) and not name.endswith(INDEX)


def data_files(source: SourceConfig, split: str, remote: Remote, is_data: Callable[[str], bool]) -> Sequence[AnyPath]:
    """Returns the files of a split, those in a folder by their names; see names_of.

    `path` is a file of training data, a folder, or a URL of a file, of a pattern of files or, in an object store, of a
    folder; `test_path` may name the test data. `remote` says how to reach URLs. Raises ConfigError as names_of does,
    and FetchError.
    """
    elsewhere = split == "test" and source.test_path is not None
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
    return [folder / name for name in names_of(filter(is_data, names), source, split)]


def expanded(url: str) -> list[str]:
    """Returns the URLs of a pattern such as https://host/train-{0000..0099}.tar; of any other URL itself."""
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", url)
    if numbers is None:
        return [url]
    first, last = numbers[1], numbers[2]
    return [
        f"{url[: numbers.start()]}{number:0{len(first)}}{url[numbers.end() :]}"
        for number in range(int(first), int(last) + 1)
    ]


def names_of(names: Iterable[str], source: SourceConfig, split: str) -> list[str]:
    """Returns those data files of a folder that are of a split by their names (catalog/class_folders.py), sorted.

    Those of the split NEITHER lie next to the others, and are not used. Raises ConfigError if a split is not clear, and
    `test_path` does not say where the test data is.
    """
    by_split = BySplit.of(name for name in names if name[0] != ".")
    apart = source.test_path is not None
    if split == NEITHER:
        return [] if apart else by_split.unused()
    return by_split.training(apart) if split == "train" else by_split.testing(apart)


def not_used(files: Sequence[AnyPath]) -> Ledger:
    """Returns a ledger with the files of the split NEITHER."""
    ledger = Ledger()
    ledger.add_all("files of no split", files)
    return ledger


def check_files(files: Sequence[object], source: SourceConfig, split: str, kind: str, expected: str) -> None:
    """Raises ConfigError if there are no `files` of a split, `kind` being the name of one: "table"."""
    if not files:
        path = source.test_path if split == "test" and source.test_path is not None else source.path
        raise ConfigError(
            f"data.source: there is no {split} {kind} in {path}; expected {expected}. Names with the word train, or "
            "with the name of no split if there are none of these, are training data; those with val, valid or "
            "validation, else those with test, are test data; data.source.test_path names test data of another place"
        )
