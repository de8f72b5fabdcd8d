"""Filelists: written once from a folder tree, read by training, which never walks a tree."""

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import overload

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.progress import progress

IMAGE_SUFFIXES = (".jpeg", ".jpg")
REMOTE = ("http://", "https://", "s3://", "gs://")
VOC_SPLITS = ("train", "val", "test", "trainval")
# Listing folders waits for the file system, not for the CPU.
SCAN_THREADS = 16
LINE_END = ord("\n")
# Large enough to be fast, small enough for what is made of a chunk to stay in the CPU's cache.
CHUNK_CHARS = 2**18
CHUNK_NAMES = 2**14
HOW_TO_MAKE = "make one with: tfpipe filelist ROOT --out DIR"


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
    names: bytes
    """Base names in UTF-8, each followed by a line end."""
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

        Raises:
            ValueError: a path holds a line end.
        """
        paths = list(paths)
        if any("\n" in path for path in paths):
            raise ValueError("a path with a line end in it cannot be in a filelist")
        return _pack([paths], "")

    @classmethod
    def joined(cls, lists: Sequence["FileList"]) -> "FileList":
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
        names = b"".join(part.names for part in lists)
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
        same = (self.folders, self.names) == (other.folders, other.names)
        return same and np.array_equal(self.folder, other.folder)

    @property
    def remote(self) -> bool:
        """Returns whether these are URLs, not paths of files."""
        return bool(self.folders) and self.folders[0].startswith(REMOTE)

    def name(self, item: int) -> str:
        """Returns the base name of path `item`."""
        item = range(len(self))[item]
        return self.names[self.offsets[item] : self.offsets[item + 1] - 1].decode()

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
        text = self.names[self.offsets[start] : self.offsets[stop]].decode()
        return self.folder[start:stop].tolist(), text.split("\n")[:-1]


class _Folders(dict[str | None, int]):
    """The number of each folder as written in a list, None for no folder; two spellings of a folder share a number."""

    def __init__(self, base: str) -> None:
        """Starts empty; relative folders are relative to `base`."""
        super().__init__()
        self.base = base
        self.numbers: dict[str, int] = {}

    def __missing__(self, folder: str | None) -> int:
        path = "" if folder is None else f"{folder}/"
        path = path if path.startswith(REMOTE) else os.path.join(self.base, path)
        self[folder] = self.numbers.setdefault(path, len(self.numbers))
        return self[folder]


def read_filelist(path: str | Path) -> FileList:
    """Reads the list at `path`, one path a line; blank lines are skipped.

    A relative line is relative to the list's folder; a URL is left as it is.

    Raises:
        ConfigError: the list cannot be read, holds no line, or holds both URLs and paths.
    """
    path = Path(path)
    try:
        paths = _pack(_read_lines(path), str(path.parent.absolute()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_unreadable(path, error)}; {HOW_TO_MAKE}") from error
    if not paths:
        raise ConfigError(f"the filelist {path} holds no line; {HOW_TO_MAKE}")
    other = [folder for folder in paths.folders if folder.startswith(REMOTE) != paths.remote]
    if other:
        raise ConfigError(
            f"the filelist {path} holds both URLs and paths, e.g. of {paths.folders[0]} and {other[0]}: make it of one "
            "kind, e.g. by copying what is remote with `tfpipe stage`"
        )
    return paths


def _read_lines(path: Path) -> Iterator[list[str]]:
    """Yields some thousands of lines at a time: millions at once would take ten times the memory of a FileList."""
    with open(path, encoding="utf-8-sig") as file:
        while lines := file.readlines(CHUNK_CHARS):
            yield [line for line in map(str.strip, lines) if line]


def _pack(chunks: Iterable[list[str]], base: str) -> FileList:
    folders = _Folders(base)
    folder: list[np.ndarray] = [np.empty(0, np.int32)]
    text = io.BytesIO()
    for lines in chunks:
        parts = list(map(str.rpartition, lines, repeat("/")))  # twice as fast as slicing each line
        heads = list(map(itemgetter(0), parts))
        if "" in heads:  # a line "name" or "/name"
            heads = [head if slash else None for head, slash, _ in parts]
        folder.append(np.fromiter(map(folders.__getitem__, heads), np.int32, len(heads)))
        text.write(_joined(map(itemgetter(2), parts)))
    names = text.getvalue()
    ends = np.flatnonzero(np.frombuffer(names, np.uint8) == LINE_END)
    numbers = np.concatenate(folder)
    # Hashes the parts, not the lines, which are five times as long.
    digest = hashlib.sha256(_joined(map(str, folders)) + b"\n" + numbers.tobytes() + names).hexdigest()
    return FileList(list(folders.numbers), numbers, names, np.append(0, ends + 1), digest)


def _joined(lines: Iterable[str]) -> bytes:
    return "\n".join([*lines, ""]).encode()


def check_filelists(paths: Iterable[Path | None]) -> None:
    """Checks, without reading them completely, that the lists can be read and hold a line.

    Raises:
        ConfigError: a list cannot be read or holds no line; names all such lists.
    """
    errors = []
    for path in filter(None, paths):
        try:
            with open(path, encoding="utf-8-sig") as lines:
                if not any(line.strip() for line in lines):
                    errors.append(f"the filelist {path} holds no line")
        except (OSError, UnicodeDecodeError) as error:
            errors.append(_unreadable(path, error))
    if errors:
        raise ConfigError("; ".join([*errors, HOW_TO_MAKE]))


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    return f"cannot read the filelist {path}: {error.strerror if isinstance(error, OSError) else error}"


def write_filelist(path: Path, images: Iterable[str]) -> None:
    """Writes one image a line; the file appears complete, by renaming."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        partial.write_text("".join(f"{image}\n" for image in images))


def scan(root: str | Path, show: bool = True) -> dict[str, list[str]]:
    """Finds the images of an ILSVRC or Pascal VOC tree; returns absolute paths by split, sorted.

    ILSVRC: Data/CLS-LOC/train/WNID/*.JPEG and Data/CLS-LOC/val/, flat or in folders. VOC: the images in JPEGImages
    that the lists in ImageSets/Main name.

    Args:
        root: the folder holding Data or JPEGImages, or the ILSVRC folder's parent.
        show: whether to show progress.

    Raises:
        ConfigError: `root` is neither tree, an ILSVRC tree has no training image, or a VOC list names a missing image.
    """
    root = Path(root).absolute()
    for base in (root, root / "ILSVRC"):
        if (base / "Data/CLS-LOC").is_dir():
            return _scan_ilsvrc(base / "Data/CLS-LOC", show)
    if (root / "JPEGImages").is_dir() and (root / "ImageSets/Main").is_dir():
        return _scan_voc(root)
    raise ConfigError(
        f"{root} is neither an ILSVRC tree (Data/CLS-LOC/train) nor a Pascal VOC one (JPEGImages, ImageSets/Main)"
    )


def _scan_ilsvrc(images: Path, show: bool) -> dict[str, list[str]]:
    splits = {}
    for split in ("train", "val"):
        if not (images / split).is_dir():
            continue
        folders = [entry.path for entry in os.scandir(images / split) if entry.is_dir()]
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            listings = pool.map(_images_in, [str(images / split), *folders])
            shown = progress(listings, len(folders) + 1, f"listing {split}", "folder", show)
            splits[split] = sorted(path for listing in shown for path in listing)
    if not splits.get("train"):
        raise ConfigError(f"no image below {images / 'train'}; expected WNID folders of .JPEG files")
    return splits


def _images_in(folder: str) -> list[str]:
    return [
        entry.path
        for entry in os.scandir(folder)
        if entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith(".")
    ]


def _scan_voc(root: Path) -> dict[str, list[str]]:
    by_name = {os.path.splitext(os.path.basename(path))[0]: path for path in _images_in(str(root / "JPEGImages"))}
    splits = {}
    for split in VOC_SPLITS:
        names = root / "ImageSets/Main" / f"{split}.txt"
        if not names.exists():
            continue
        wanted = sorted({line.split()[0] for line in names.read_text().splitlines() if line.strip()})
        missing = [name for name in wanted if name not in by_name]
        if missing:
            raise ConfigError(f"{names} names {len(missing)} images that are not in JPEGImages, e.g. {missing[0]}")
        splits[split] = [by_name[name] for name in wanted]
    if not splits:
        raise ConfigError(f"no list in {root / 'ImageSets/Main'}; expected one of {', '.join(VOC_SPLITS)} (.txt)")
    return splits
