"""Finds the entry points of all images of a split, in parallel over threads and ranks; an interrupted run continues.

The images are parsed and not transformed: it takes some 0.6 ms of CPU time for an ImageNet file.
"""

import glob
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog.table import ADVICE, PARTIAL, StoredTable, write_table
from tfpipe.data.sources.entries import COMMAND, entries_folder, entries_name
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.native import core
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.locks import locked
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.progress import progress

# MCUs from one entry point to the next, by profiles/entries.py: of ImageNet's files a RandomResizedCrop then takes 0.75
# of the CPU time, for 1.8 % of their bytes; with 16 it is 0.79 for 0.9 %, and with 4 no less for twice the bytes.
EVERY = 8
# Version of what a part holds.
FORMAT = 1
# Images per part (the unit that is dealt to ranks, and that an interrupted run keeps) and per task of a thread.
PART, CHUNK = 5_000, 50
PARTS = ".parts"
MAX_ERRORS = 20
# Settings with which a split is loaded without its boxes, which are not used here.
PLAIN = {"crop": "full", "test_crop": "full", "unit": "image", "scope": "global", "service": None}


class EntriesSummary(NamedTuple):
    """Statistics of entry points."""

    path: Path  # of the table
    images: int
    found: int  # images that have entry points
    entries_bytes: int
    images_bytes: int


class Part(NamedTuple):
    """The entry points of some images, as a part's file holds them."""

    text: np.ndarray  # uint8 [m]: each image's bytes, and one that ends them
    ends: np.ndarray  # int64 [n]: where each image's end
    images_bytes: int


def build_entries(config: DataConfig, split: str, world: World, threads: int | None = None) -> EntriesSummary:
    """Writes the entry points of the images of `split` next to the data; returns their statistics.

    The ranks share the images. Parts that an interrupted run finished are kept; entry points that are there already are
    made again. `threads` are those of this rank; None for one per CPU that it may use. Every rank must call.

    Raises ConfigError if the data holds crops or coefficients, images cannot be read (the message names up to 20), or
    the folder cannot be written or another process is writing there.
    """
    source = open_source(config)
    source.check(split == "test")
    source.check_use(COMMAND)
    loaded = load_split(config.model_copy(update=config.targets.unread | PLAIN), split, world)
    folder = entries_folder(config, split)
    if folder is None:
        raise ConfigError("data.index must name a local folder, for the entry points of data behind URLs: set it")
    target = folder / entries_name(loaded.catalog)
    working = target.with_name(f"{target.name}.{EVERY}-{FORMAT}{PARTS}")
    parts = [range(start, min(start + PART, len(loaded.catalog))) for start in range(0, len(loaded.catalog), PART)]
    with ExitStack() as held:
        missing = world.from_rank0(lambda: _start(target, working, parts, held))
        mine = world.mine(missing)
        failed = world.on_all(lambda: _build_parts(loaded, working, mine, threads))
        errors = [error for rank in failed for error in rank][:MAX_ERRORS]
        if errors:
            count = f"at least {MAX_ERRORS} problems" if len(errors) == MAX_ERRORS else f"{len(errors)} problem(s)"
            raise ConfigError(
                "\n  ".join([f"no entry points of {split} data, {count} (what is done is kept):", *errors])
            )
        return world.from_rank0(lambda: _merge(target, working, parts))


def _start(target: Path, working: Path, parts: list[range], held: ExitStack) -> list[range]:
    """Locks the entry points until `held` is closed; returns the parts that are still to be made."""
    with writing(working, ADVICE):
        working.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(target.with_name(f"{target.name}.lock"), "finding these entry points"))
    return [part for part in parts if not _part_path(working, part).exists()]


def _part_path(working: Path, part: range) -> Path:
    return working / f"{part.start:09}-{part.stop:09}.npz"


def _build_parts(split: Split, working: Path, parts: list[range], threads: int | None) -> list[str]:
    """Writes the parts whose images can all be read; returns the errors of the others."""
    errors = list[str]()

    def chunk(items: range) -> list[tuple[bytes, int] | str]:
        return [_entries_of(split, item) for item in items]

    with ThreadPoolExecutor(threads or split.world.threads or len(os.sched_getaffinity(0))) as pool:
        label = f"parsing {split.catalog.split} data"
        for part in progress(parts, len(parts), label, f"{PART} images", split.world.rank == 0):
            chunks = pool.map(chunk, [part[start : start + CHUNK] for start in range(0, len(part), CHUNK)])
            images = [image for done in chunks for image in done]
            errors += [image for image in images if isinstance(image, str)]
            if len(errors) >= MAX_ERRORS:
                break
            if not errors:
                _write_part(_part_path(working, part), [image for image in images if not isinstance(image, str)])
    return errors


def _entries_of(split: Split, item: int) -> tuple[bytes, int] | str:
    """Returns an image's entry points and its bytes, or why it cannot be read."""
    try:
        contents = split.image(item)
    except (OSError, ValueError) as error:
        return f"{split.name(item)}: {error}; {split.remedy}"
    return core().entries(contents, EVERY), len(contents)


def _write_part(path: Path, images: list[tuple[bytes, int]]) -> None:
    text = np.frombuffer(b"".join(entries + b"\n" for entries, _ in images), np.uint8)
    ends = np.cumsum([len(entries) + 1 for entries, _ in images], dtype=np.int64)
    with writing(path, ADVICE), atomic_write(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, text=text, ends=ends, images_bytes=sum(size for _, size in images))


def _read_part(path: Path) -> Part:
    with np.load(path) as stored:
        return Part(stored["text"], stored["ends"], int(stored["images_bytes"]))


def _merge(target: Path, working: Path, parts: list[range]) -> EntriesSummary:
    """Joins the parts to the table, in the place of one that is there; removes them, and those of other settings."""
    starts, images_bytes = [np.zeros(1, np.int64)], 0
    for part in parts:
        made = _read_part(_part_path(working, part))
        starts.append(starts[-1][-1] + made.ends)
        images_bytes += made.images_bytes
    joined = np.concatenate(starts)

    def text() -> Iterator[np.ndarray]:
        for part in parts:
            yield _read_part(_part_path(working, part)).text

    images = len(joined) - 1
    table = StoredTable({"every": EVERY, "images bytes": images_bytes}, {"starts": joined}, {"text": text()})
    with writing(target, ADVICE), _aside(target):
        write_table(target, table, MadeFrom(FORMAT, [], {"every": EVERY, "images": images}))
        for other in target.parent.glob(f"{glob.escape(target.name)}.*{PARTS}"):
            shutil.rmtree(other)
    sizes = np.diff(joined) - 1
    return EntriesSummary(target, images, int((sizes > 0).sum()), int(sizes.sum()), images_bytes)


@contextmanager
def _aside(target: Path) -> Iterator[None]:
    """Moves a table that is there aside, and removes it at the end, or puts it back after an error.

    Processes that have mapped it keep it until they end.
    """
    before = target.with_name(f".{target.name}.before{PARTIAL}")
    shutil.rmtree(before, ignore_errors=True)
    had_one = target.exists()
    if had_one:
        target.rename(before)
    try:
        yield
    except BaseException:
        if had_one and not target.exists():
            before.rename(target)
        raise
    shutil.rmtree(before, ignore_errors=True)
