"""Filelists: made from a tree once, read by training, which never walks a tree."""

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
from tfpipe.progress import progress

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
    """Paths, in their list's order, as a few arrays: some 35 bytes a path, where a list of strings takes 150.

    Path i is folders[folder[i]] + names[offsets[i] : offsets[i + 1] - 1].
    """

    folders: list[str]
    """The folders, each once, in order of their first image; each ends in a slash, or is "" for a bare name. Of a URL
    all that comes before the base name, e.g. https://host/train/n02437312/."""
    folder: np.ndarray
    """int32 [n]: number of each path's folder."""
    names: bytes
    """The base names in UTF-8, each followed by a line end."""
    offsets: np.ndarray
    """int64 [n + 1]: where each name starts in `names`, and where the last one's line ends."""
    digest: str
    """sha256, in hex, of the lines as written in the list, taken apart.

    It stays the same where a data set is moved whole, its list having relative lines, and where only white space or
    blank lines change.
    """

    @classmethod
    def of(cls, paths: Iterable[str]) -> "FileList":
        """These paths as they are, absolute or not.

        Raises:
            ValueError: a path holds a line end.
        """
        paths = list(paths)
        if any("\n" in path for path in paths):
            raise ValueError("a path with a line end in it cannot be in a filelist")
        return _pack([paths], "")

    @classmethod
    def joined(cls, lists: Sequence["FileList"]) -> "FileList":
        """All paths of some lists, one list after the other; of one list, itself."""
        if len(lists) == 1:
            return lists[0]
        numbers: dict[str, int] = {}
        folder = [
            np.array([numbers.setdefault(each, len(numbers)) for each in one.folders], np.int32)[one.folder]
            for one in lists
        ]
        starts = np.cumsum([0, *(len(one.names) for one in lists)])
        offsets = [one.offsets[:-1] + start for one, start in zip(lists, starts, strict=False)]
        digest = hashlib.sha256("".join(one.digest for one in lists).encode()).hexdigest()
        names = b"".join(one.names for one in lists)
        return cls(list(numbers), np.concatenate(folder), names, np.concatenate([*offsets, starts[-1:]]), digest)

    def __len__(self) -> int:
        return len(self.folder)

    @overload
    def __getitem__(self, item: int) -> str: ...

    @overload
    def __getitem__(self, item: slice) -> list[str]: ...

    def __getitem__(self, item: int | slice) -> str | list[str]:
        if isinstance(item, slice):
            return [self[each] for each in range(len(self))[item]]
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
        """Whether these are URLs, not paths of files."""
        return bool(self.folders) and self.folders[0].startswith(REMOTE)

    def name(self, item: int) -> str:
        """The base name of path `item`."""
        item = range(len(self))[item]
        return self.names[self.offsets[item] : self.offsets[item + 1] - 1].decode()

    def entries(self) -> Iterator[tuple[int, str]]:
        """(number of the folder, base name) of each path; much faster than asking for one at a time."""
        for folder, names in self.chunks():
            yield from zip(folder, names, strict=True)

    def chunks(self) -> Iterator[tuple[list[int], list[str]]]:
        """The same, some thousands at a time: the folders' numbers and the base names."""
        for start in range(0, len(self), CHUNK_NAMES):
            yield self.part(start, min(start + CHUNK_NAMES, len(self)))

    def part(self, start: int, stop: int) -> tuple[list[int], list[str]]:
        """The same of paths `start` to `stop`."""
        text = self.names[self.offsets[start] : self.offsets[stop]].decode()
        return self.folder[start:stop].tolist(), text.split("\n")[:-1]


class _Folders(dict[str | None, int]):
    """Numbers of the folders as lines have them, None for none; one that is spelt in two ways has one number."""

    def __init__(self, base: str) -> None:
        """Args: the folder that relative ones are in."""
        super().__init__()
        self.base = base
        self.numbers: dict[str, int] = {}

    def __missing__(self, folder: str | None) -> int:
        path = "" if folder is None else f"{folder}/"
        path = path if path.startswith(REMOTE) else os.path.join(self.base, path)
        self[folder] = self.numbers.setdefault(path, len(self.numbers))
        return self[folder]


def read_filelist(path: str | Path) -> FileList:
    """The paths in the list at `path`, one a line, in the list's order; blank lines are left out.

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
    other = [each for each in paths.folders if each.startswith(REMOTE) != paths.remote]
    if other:
        raise ConfigError(
            f"the filelist {path} holds both URLs and paths, e.g. of {paths.folders[0]} and {other[0]}: make it of one "
            "kind, e.g. by copying what is remote with `tfpipe stage`"
        )
    return paths


def _read_lines(path: Path) -> Iterator[list[str]]:
    """The lines, some thousands at a time: a list of millions would take ten times the memory of a FileList."""
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
        if "" in heads:  # of "name", or of "/name"
            heads = [head if slash else None for head, slash, _ in parts]
        folder.append(np.fromiter(map(folders.__getitem__, heads), np.int32, len(heads)))
        text.write(_joined(map(itemgetter(2), parts)))
    names = text.getvalue()
    ends = np.flatnonzero(np.frombuffer(names, np.uint8) == LINE_END)
    numbers = np.concatenate(folder)
    # Of the parts, not of the lines, which are five times as long.
    digest = hashlib.sha256(_joined(map(str, folders)) + b"\n" + numbers.tobytes() + names).hexdigest()
    return FileList(list(folders.numbers), numbers, names, np.append(0, ends + 1), digest)


def _joined(lines: Iterable[str]) -> bytes:
    return "\n".join([*lines, ""]).encode()


def check_filelists(paths: Iterable[Path | None]) -> None:
    """Makes sure, without reading them whole, that the lists can be read and hold a line.

    Raises:
        ConfigError: naming all that cannot.
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
    """Writes one image a line, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text("".join(f"{image}\n" for image in images))
    partial.replace(path)


def scan(root: str | Path, show: bool = True) -> dict[str, list[str]]:
    """The images of an ILSVRC or Pascal VOC tree: absolute paths by split, sorted.

    ILSVRC: Data/CLS-LOC/train/WNID/*.JPEG and Data/CLS-LOC/val/, flat or in folders. VOC: the lists of
    ImageSets/Main, resolved in JPEGImages.

    Args:
        root: the folder holding Data or JPEGImages, or the ILSVRC folder's parent.
        show: whether to show progress.

    Raises:
        ConfigError: `root` is neither; or a VOC list names an image that is not there.
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
            found = progress(listings, len(folders) + 1, f"listing {split}", "folder", show)
            splits[split] = sorted(path for listing in found for path in listing)
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
