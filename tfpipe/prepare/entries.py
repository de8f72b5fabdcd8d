"""Finds the entry points of all images of a split, in parallel over threads and ranks; an interrupted run continues.

The images are parsed and not transformed: it takes some 0.6 ms of CPU time for an ImageNet file.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog.entries import COMMAND, entries_folder, entries_name
from tfpipe.data.catalog.table import StoredTable, write_table
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.native import core
from tfpipe.prepare.parts import ImageParts
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import Stamp
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.pools import in_order

# MCUs from one entry point to the next, by profiles/entries.py: of ImageNet's files a RandomResizedCrop then takes 0.75
# of the CPU time, for 1.8 % of their bytes; with 16 it is 0.79 for 0.9 %, and with 4 no less for twice the bytes.
EVERY = 8
# Version of what a part holds.
ENTRIES_VERSION = 2
# Images per task of a thread.
IMAGES_PER_TASK = 50
# Settings with which a split is loaded without its boxes, which are not used here.
WITHOUT_BOXES = {"crop": "full", "test_crop": "full", "unit": "image", "scope": "global", "service": None}


class ImageEntries(NamedTuple):
    """The entry points of an image."""

    entries: bytes
    size: int  # of the image, in bytes
    stamp: Stamp  # of the file that holds it, before it was read


class EntriesSummary(NamedTuple):
    """Statistics of entry points."""

    path: Path  # of the table
    images: int
    with_entries: int  # images that have entry points
    entries_bytes: int
    images_bytes: int


def build_entries(config: DataConfig, split: str, world: World, threads: int | None = None) -> EntriesSummary:
    """Writes the entry points of the images of `split` next to the data; returns their statistics.

    The ranks share the images; every rank must call. Parts that an interrupted run finished are kept; entry points that
    are there already are made again. `threads` are those of this rank; None for one per CPU that it may use. Raises
    ConfigError if the data hold no whole images, some cannot be read (the message names up to 20), or `Job.run` does.
    """
    source = open_source(config)
    source.check(split == "test")
    source.check_use(COMMAND)
    loaded = load_split(config.model_copy(update=config.targets.unread | WITHOUT_BOXES), split, world)
    folder = entries_folder(config, split)
    if folder is None:
        raise ConfigError("data.index must name a local folder, for the entry points of data behind URLs: set it")
    target = folder / entries_name(loaded.catalog)
    return EntriesParts(loaded, target, f"{EVERY}-{ENTRIES_VERSION}", IMAGES_PER_TASK, threads).run()


@dataclass(frozen=True)
class EntriesParts(ImageParts[EntriesSummary]):
    """The parts of a table of entry points."""

    name, task, suffix = "entry points", "finding these entry points", ".npz"

    def read(self, chunks: list[range], processes: int) -> Iterator[tuple[list[ImageEntries], list[str]]]:
        with ThreadPoolExecutor(processes) as pool:
            yield from in_order(pool, self._read_chunk, chunks, 2 * processes)

    def _read_chunk(self, items: range) -> tuple[list[ImageEntries], list[str]]:
        """Returns the entry points of each image, and a message for each that cannot be read."""
        library, images, errors = core(), list[ImageEntries](), list[str]()
        for item in items:
            stamp = self.split.stamp(item)
            try:
                contents = self.split.image(item)
            except (OSError, ValueError) as error:
                errors.append(f"{self.split.name(item)}: {error}")
            else:
                images.append(ImageEntries(library.entries(contents, EVERY), len(contents), stamp))
        return images, errors

    def write(self, contents: list[list[ImageEntries]], path: Path) -> None:
        # `text` has each image's bytes and one that ends them, `ends` the place after that.
        images = list(chain.from_iterable(contents))
        text = np.frombuffer(b"".join(each.entries + b"\n" for each in images), np.uint8)
        ends = np.cumsum([len(each.entries) + 1 for each in images], dtype=np.int64)
        size, stamps = sum(each.size for each in images), json.dumps([each.stamp for each in images])
        with atomic_write(path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, text=text, ends=ends, images_bytes=size, stamps=stamps)

    def is_current(self, path: Path, items: range) -> bool:
        return str(_read_part(path, "stamps")) == json.dumps([self.split.stamp(item) for item in items])

    def merge(self, paths: list[Path]) -> EntriesSummary:
        starts = [np.zeros(1, np.int64)]
        for path in paths:
            starts.append(starts[-1][-1] + _read_part(path, "ends"))
        joined = np.concatenate(starts)
        text = (_read_part(path, "text") for path in paths)
        images_bytes = sum(int(_read_part(path, "images_bytes")) for path in paths)
        images = len(joined) - 1
        table = StoredTable({"every": EVERY, "images bytes": images_bytes}, {"starts": joined}, {"text": text})
        made_from = MadeFrom(ENTRIES_VERSION, [], {"every": EVERY, "images": images})
        write_table(self.target, table, made_from, replace=True)
        sizes = np.diff(joined) - 1
        return EntriesSummary(self.target, images, int((sizes > 0).sum()), int(sizes.sum()), images_bytes)


def _read_part(path: Path, name: str) -> np.ndarray:
    with np.load(path) as stored:
        return stored[name]
