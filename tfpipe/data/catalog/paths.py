"""The paths of a filelist, as a few arrays."""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import itemgetter
from typing import overload

import numpy as np

from tfpipe.errors import ConfigError

# Start of a URL: every scheme that fsspec has.
URL = re.compile(r"[a-z][a-z0-9+.-]*://")
LINE_END = ord("\n")
# Names end with a line end in FileList.names, and with a NUL for the system, which would open another file. Python
# reads a byte of a file's name that is not UTF-8 as a surrogate.
UNUSABLE = re.compile("[\0\n\ud800-\udfff]")
# Large enough to be fast, small enough for what is made of a chunk to stay in the CPU's cache.
CHUNK_NAMES = 2**14


@dataclass(frozen=True, eq=False)
class FileList(Sequence[str]):
    """Paths in their list's order, as a few arrays: about 35 bytes a path, while a list of strings takes 150.

    Path i is folders[folder[i]] + names[offsets[i] : offsets[i + 1] - 1].
    """

    folders: list[str]
    """Distinct folders, in the order of their first image, each with a trailing slash; "" for a bare name. A URL's
    folder is everything before the base name, e.g. https://host/train/n02437312/."""
    folder: np.ndarray
    """int32 [n]: each path's folder, as an index into `folders`."""
    names: bytes | np.ndarray
    """Base names in UTF-8, each followed by a line end: bytes, or uint8 [m] of a file that is mapped."""
    offsets: np.ndarray
    """int64 [n + 1]: start of each name in `names`, and the end of the last name's line."""
    digest: str
    """sha256, in hex, of the folders and base names as written in the list.

    It stays the same if a data set moves together with a list of relative lines, or if only white space or blank lines
    change.
    """

    @classmethod
    def of(cls, paths: Iterable[str]) -> "FileList":
        """Returns a FileList of these paths, left as they are, absolute or not.

        Raises ConfigError if a path holds a line end or a NUL, or is not UTF-8.
        """
        if isinstance(paths, FileList):
            return paths
        some = iter(paths)
        return pack_lines(iter(lambda: list(islice(some, CHUNK_NAMES)), []), "")

    @classmethod
    def concat(cls, lists: Sequence["FileList"]) -> "FileList":
        """Concatenates lists; returns a single list itself."""
        if len(lists) == 1:
            return lists[0]
        numbers: dict[str, int] = {}
        folder = [
            np.array([numbers.setdefault(path, len(numbers)) for path in part.folders], np.int32)[part.folder]
            for part in lists
        ]
        starts = np.cumsum([0, *(len(part.names) for part in lists)])
        offsets = [part.offsets[:-1] + start for part, start in zip(lists, starts, strict=False)]
        digest = hashlib.sha256("".join(part.digest for part in lists).encode()).hexdigest()
        names = b"".join(part.text.data for part in lists)
        return cls(list(numbers), np.concatenate(folder), names, np.concatenate([*offsets, starts[-1:]]), digest)

    def __len__(self) -> int:
        return len(self.folder)

    @overload
    def __getitem__(self, item: int) -> str: ...

    @overload
    def __getitem__(self, item: slice) -> list[str]: ...

    def __getitem__(self, item: int | slice) -> str | list[str]:
        if isinstance(item, slice):
            return [self[number] for number in range(len(self))[item]]
        return self.folders[self.folder[item]] + self.name(item)

    def __iter__(self) -> Iterator[str]:
        return (self.folders[folder] + name for folder, name in self.entries())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileList):
            return NotImplemented
        pairs = ((self.folder, other.folder), (self.text, other.text))
        return self.folders == other.folders and all(np.array_equal(*pair) for pair in pairs)

    @property
    def text(self) -> np.ndarray:
        """Returns `names` as uint8 [m], without a copy."""
        return np.frombuffer(self.names, np.uint8)

    @property
    def remote(self) -> bool:
        """Returns whether these are URLs, not paths of files."""
        return bool(self.folders) and is_url(self.folders[0])

    def name(self, item: int) -> str:
        """Returns the base name of path `item`."""
        item = range(len(self))[item]
        return bytes(self.names[self.offsets[item] : self.offsets[item + 1] - 1]).decode()

    def ending(self, *ends: str) -> np.ndarray:
        """Returns int64 [k]: the places of the names with one of `ends`, lower-case ASCII, in letters of any case.

        Looks at the last letters first, some at a time: 0.1 s for 14 million names, without memory for each.
        """
        text, lasts, places = self.text, np.zeros(256, bool), list[int]()
        lasts[[ord(end[-1]) for end in ends]] = True
        for start in range(0, len(self), 64 * CHUNK_NAMES):
            stops = self.offsets[start + 1 : start + 64 * CHUNK_NAMES + 1]
            likely = (start + np.flatnonzero(lasts[text[stops - 2] | 0x20])).tolist()
            places += [place for place in likely if self.name(place).lower().endswith(ends)]
        return np.array(places, np.int64)

    def entries(self) -> Iterator[tuple[int, str]]:
        """Yields (folder number, base name) of each path; much faster than indexing path by path."""
        for folder, names in self.chunks():
            yield from zip(folder, names, strict=True)

    def chunks(self) -> Iterator[tuple[list[int], list[str]]]:
        """Yields the folder numbers and the base names of CHUNK_NAMES paths at a time."""
        for start in range(0, len(self), CHUNK_NAMES):
            yield self.part(start, min(start + CHUNK_NAMES, len(self)))

    def part(self, start: int, stop: int) -> tuple[list[int], list[str]]:
        """Returns the folder numbers and the base names of paths `start` to `stop`."""
        text = bytes(self.names[self.offsets[start] : self.offsets[stop]]).decode()
        return self.folder[start:stop].tolist(), text.split("\n")[:-1]


def is_url(path: str) -> bool:
    """Returns whether a path is a URL."""
    return URL.match(path) is not None


class _Folders(dict[str | None, int]):
    """The number of each folder as written in a list, None for no folder; two spellings of a folder share a number."""

    def __init__(self, base: str) -> None:
        """Starts empty; relative folders are relative to `base`."""
        super().__init__()
        self.base = base
        self.numbers: dict[str, int] = {}

    def __missing__(self, folder: str | None) -> int:
        if folder is not None and UNUSABLE.search(folder):
            raise unusable([folder], self.base)
        path = "" if folder is None else f"{folder}/"
        path = path if is_url(path) else os.path.join(self.base, path)
        self[folder] = self.numbers.setdefault(path, len(self.numbers))
        return self[folder]


def pack_lines(chunks: Iterable[list[str]], base: str) -> FileList:
    """Makes a FileList of lines, some at a time; relative ones are relative to `base`.

    Raises ConfigError if a line is UNUSABLE: a line end would shift the names after it.
    """
    folders = _Folders(base)
    folder: list[np.ndarray] = [np.empty(0, np.int32)]
    text = io.BytesIO()
    for lines in chunks:
        parts = list(map(str.rpartition, lines, repeat("/")))  # twice as fast as slicing each line
        heads = list(map(itemgetter(0), parts))
        if "" in heads:  # a line "name" or "/name"
            heads = [head if slash else None for head, slash, _ in parts]
        folder.append(np.fromiter(map(folders.__getitem__, heads), np.int32, len(heads)))
        try:
            joined = _join_lines(map(itemgetter(2), parts))
        except UnicodeEncodeError:
            raise unusable(lines, base) from None
        if joined.count(b"\n") != len(lines) or b"\0" in joined:
            raise unusable(lines, base)
        text.write(joined)
    names = text.getvalue()
    ends = np.flatnonzero(np.frombuffer(names, np.uint8) == LINE_END)
    numbers = np.concatenate(folder)
    # Hashes the parts, not the lines, which are five times as long.
    digest = hashlib.sha256(_join_lines(map(str, folders)) + b"\n" + numbers.tobytes() + names).hexdigest()
    return FileList(list(folders.numbers), numbers, names, np.append(0, ends + 1), digest)


def unusable(names: Iterable[str], base: str) -> ConfigError:
    """Makes the error for the first of `names` that is UNUSABLE; it is relative to `base`."""
    name = next(name for name in names if UNUSABLE.search(name))
    path = os.path.join(base, name)
    return ConfigError(f"the name {path!a} {fault(path)}: rename the file or the folder")


def fault(name: str) -> str:
    """Returns what makes a name UNUSABLE, for messages."""
    return "holds a NUL, where the system ends a name" if "\0" in name else "holds a line end or is not UTF-8"


def _join_lines(lines: Iterable[str]) -> bytes:
    return "\n".join([*lines, ""]).encode()
