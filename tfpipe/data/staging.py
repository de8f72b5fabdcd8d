"""A filelist's data copied to a disk local to the node before a job, from where training then reads it.

OUT/train.txt, OUT/val.txt      the lists, in the same order as theirs
OUT/train.index.parquet         where there is an index of the list; then no XML is copied
OUT/HOST/PATH, OUT/PATH         the files, below their server's or bucket's name or their whole path
"""

import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations import find_layout
from tfpipe.data.catalog import Catalog, index_path, load_catalog
from tfpipe.data.filelist import SCAN_THREADS, FileList, read_filelist, write_filelist
from tfpipe.data.remote import Fetcher, FetchError
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.progress import progress

T = TypeVar("T")
LISTS = {"train": "train.txt", "test": "val.txt"}
# Files that a thread copies at a time.
TOGETHER = 32
# Of files looked at for the mean size, and of the disk kept free, since that makes an estimate.
SAMPLED = 200
SPARE = 0.1
MAX_ERRORS = 20


class Share(NamedTuple):
    """Of a list's images, those whose number leaves `rank` when divided by `size`."""

    rank: int = 0
    size: int = 1


class File(NamedTuple):
    """To be copied."""

    source: str
    target: str


class Copied(NamedTuple):
    """What was done with some files."""

    files: int = 0
    there: int = 0
    """That had been copied before."""
    bytes: int = 0
    errors: tuple[str, ...] = ()

    def plus(self, other: "Copied") -> "Copied":
        """Both together."""
        return Copied(
            self.files + other.files, self.there + other.there, self.bytes + other.bytes, self.errors + other.errors
        )


class Staged(NamedTuple):
    """What is there now, of all ranks."""

    copied: Copied
    overrides: list[str]
    """KEY=VALUE for --set, by which a config trains from it."""


@dataclass(frozen=True)
class Plan:
    """What one process copies of a split."""

    catalog: Catalog
    paths: FileList
    """Where the images are to be, in the list's order."""
    images: np.ndarray
    """int64: numbers of those to copy."""
    xmls: np.ndarray
    """int64: numbers of the images whose XML to copy."""

    def __len__(self) -> int:
        return len(self.images) + len(self.xmls)

    def files(self, out: Path) -> Iterator[File]:
        """In the list's order, the images first."""
        for item in self.images.tolist():
            yield File(self.catalog.paths[item], self.paths[item])
        for item in self.xmls.tolist():
            source = self.catalog.annotation(item)
            yield File(source, target_of(out, source))


def stage(config: DataConfig, splits: list[str], out: Path, world: World, share: Share | None = None) -> Staged:
    """Copies what training reads of some splits to `out`; files that are there in their right size are left alone.

    With several ranks, to a disk of each node: with `data.scope` "shard" the images of the node's ranks, as training
    with as many ranks visits them, otherwise all, dealt out to the node's ranks. XMLs are copied all: which image has
    one, and how many crops there are, is asked of the whole list.

    Args:
        config: says what to read, and how it is shuffled and shared.
        splits: of "train" and "test".
        out: a folder, made where it is not there.
        world: the ranks that copy; every rank must call.
        share: the only images to copy; None for those above.

    Raises:
        ConfigError: a list cannot be used, `out` cannot be written, or there is not room enough.
        TfpipeError: files cannot be copied, naming up to 20 of them; what is copied stays.
    """
    out = out.absolute()
    config = config.model_copy(update={"cache": None, "remote": config.remote.model_copy(update={"cache": None})})
    plans = {split: _plan(config, split, out, world, share) for split in splits}
    scratch = out / ".partial-{}of{}".format(*(share or (world.rank, world.size)))

    def copy() -> Copied:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        done = Copied()
        for plan in plans.values():
            copier = _Copier(plan.catalog, scratch)
            _check_room(copier, plan, out, world)
            done = done.plus(_copy(copier, plan, out, world.rank == 0))
        shutil.rmtree(scratch)
        return done

    def write() -> None:
        if world.local_rank == 0:
            for split, plan in plans.items():
                _write_lists(config, split, plan, out)

    copied = functools.reduce(Copied.plus, _on_all(world, copy, out))
    if copied.errors:
        count = f"at least {MAX_ERRORS}" if len(copied.errors) >= MAX_ERRORS else len(copied.errors)
        said = [f"{count} file(s) cannot be copied (what is copied stays):", *copied.errors[:MAX_ERRORS]]
        raise TfpipeError("\n  ".join(said))
    # The lists come last: with them all is there.
    _on_all(world, write, out)
    return Staged(copied, _overrides(config, splits, out))


def _on_all(world: World, work: Callable[[], T], out: Path) -> list[T]:
    """What `work()` gives on every rank, by rank; an error on one is raised on all."""
    outcome: T | TfpipeError
    try:
        outcome = work()
    except OSError as error:
        outcome = ConfigError(f"rank {world.rank}: cannot write to {out}: {error}")
    except TfpipeError as error:
        outcome = error
    results = []
    for each in world.gather(outcome):
        if isinstance(each, TfpipeError):
            raise each
        results.append(each)
    return results


def target_of(out: Path, source: str) -> str:
    """Where a file is copied to, or those of a folder whose name ends in a slash; never out of `out`."""
    path = source.partition("://")[2] or source
    inside = os.path.normpath("/" + path.lstrip("/"))
    return f"{out}{inside}/" if path.endswith("/") else f"{out}{inside}"


def _plan(config: DataConfig, split: str, out: Path, world: World, share: Share | None) -> Plan:
    # Boxes are known where there is an index, unless they are samples.
    catalog = load_catalog(config.model_copy(update={"unit": "image"}), split, world)
    node = Share(world.local_rank, world.local_size)
    whose = share or (Share(world.rank, world.size) if config.scope == "shard" else node)
    images = np.arange(whose.rank, len(catalog), whose.size)
    if split == "train" and config.unit == "box" and whose.size > 1 and whose != node:
        boxes = load_catalog(config, split, world).sampled_boxes
        if boxes is not None:
            images = np.unique(boxes.images[whose.rank :: whose.size]).astype(np.int64)
    annotated = np.flatnonzero(catalog.annotated) if catalog.boxes is None else np.zeros(0, np.int64)
    paths = replace(catalog.paths, folders=[target_of(out, folder) for folder in catalog.paths.folders])
    return Plan(catalog, paths, images, annotated[annotated % node.size == node.rank])


class _Copier:
    """Copies files, whole or not at all; from several threads."""

    def __init__(self, catalog: Catalog, scratch: Path) -> None:
        self._fetcher = None if catalog.remote is None else Fetcher(catalog.remote, catalog.paths.folders)
        self._scratch = scratch
        remote = catalog.remote
        self.threads = SCAN_THREADS if remote is None else 2 * -(-remote.concurrency // TOGETHER)

    def copy(self, files: list[File]) -> Copied:
        """Those that are not there; does not raise."""
        there = [os.path.exists(file.target) for file in files]
        known = iter(self.sizes([file.source for file, is_there in zip(files, there, strict=True) if is_there]))
        # A file appears whole; where its source does not say its size, it is right.
        left = [
            file
            for file, is_there in zip(files, there, strict=True)
            if not (is_there and next(known) in (None, os.path.getsize(file.target)))
        ]
        copied = [each for each in map(self._put, left, self._contents(left)) if each is not None]
        errors = tuple(each for each in copied if isinstance(each, str))
        done = [each for each in copied if isinstance(each, int)]
        return Copied(len(done), len(files) - len(left), sum(done), errors)

    def sizes(self, sources: list[str]) -> Sequence[int | Exception | None]:
        """In bytes, None where the server does not say, or why they cannot be known."""
        if self._fetcher is not None:
            return self._fetcher.sizes(sources)
        sizes: list[int | Exception | None] = []
        for source in sources:
            try:
                sizes.append(os.path.getsize(source))
            except OSError as error:
                sizes.append(error)
        return sizes

    def _contents(self, files: list[File]) -> Iterable[bytes | FetchError | None]:
        if self._fetcher is None:
            return [None] * len(files)
        return self._fetcher.fetch([file.source for file in files])

    def _put(self, file: File, contents: bytes | FetchError | None) -> int | str | None:
        """Its size, what went wrong, or None where there is nothing."""
        if isinstance(contents, FetchError):
            return str(contents)
        if contents is None and self._fetcher is not None:
            return None
        unfinished = f"{self._scratch}/{threading.get_ident()}"
        try:
            if contents is None:
                shutil.copyfile(file.source, unfinished)
            else:
                Path(unfinished).write_bytes(contents)
            os.makedirs(os.path.dirname(file.target), exist_ok=True)
            size = os.path.getsize(unfinished)
            os.replace(unfinished, file.target)
        except OSError as error:
            return f"cannot copy {file.source} to {file.target}: {error.strerror}"
        return size


def _copy(copier: _Copier, plan: Plan, out: Path, show: bool) -> Copied:
    files, done = plan.files(out), Copied()
    groups = iter(lambda: list(islice(files, TOGETHER)), [])
    label = f"copying {plan.catalog.split} data"
    with ThreadPoolExecutor(copier.threads) as pool:
        parts = _ahead(pool, copier.copy, groups, 2 * copier.threads)
        for part in progress(parts, -(-len(plan) // TOGETHER), label, "batch", show):
            done = done.plus(part)
            if len(done.errors) >= MAX_ERRORS:
                break
    return done


def _ahead(
    pool: ThreadPoolExecutor, work: Callable[[list[File]], Copied], tasks: Iterator[list[File]], ahead: int
) -> Iterator[Copied]:
    """The results of `work`, in order, with so many tasks under way: a list of millions is never all handed over."""
    waiting = [pool.submit(work, task) for task in islice(tasks, ahead)]
    while waiting:
        yield waiting.pop(0).result()
        waiting += [pool.submit(work, task) for task in islice(tasks, 1)]


def _check_room(copier: _Copier, plan: Plan, out: Path, world: World) -> None:
    """Raises: ConfigError: what is still to be copied does not fit into this rank's share of the disk."""
    missing = [file.source for file in plan.files(out) if not os.path.exists(file.target)]
    if not missing:
        return
    chosen = [missing[place] for place in np.unique(np.linspace(0, len(missing) - 1, SAMPLED).astype(int))]
    sizes = [size for size in copier.sizes(chosen) if isinstance(size, int)]
    wanted = len(missing) * float(np.mean(sizes)) if sizes else 0
    free = shutil.disk_usage(out).free // world.local_size
    if wanted > (1 - SPARE) * free:
        raise ConfigError(
            f"{out}: {len(missing)} files of the {plan.catalog.split} data need {wanted / 1e9:.3g} GB, of "
            f"{free / 1e9:.3g} GB free, a tenth of which is kept free; use a larger disk, or copy a share with "
            '--share or, under a launcher, with data.scope "shard"'
        )


def _write_lists(config: DataConfig, split: str, plan: Plan, out: Path) -> None:
    """The list, relative to its folder, and the index where there is one: last, since with them all is there."""
    base = f"{out}/"
    folders = [folder.removeprefix(base) for folder in plan.paths.folders]
    target = out / LISTS[split]
    write_filelist(target, (folders[number] + name for number, name in plan.paths.entries()))
    if plan.catalog.boxes is not None:
        # Imports pyarrow, which takes as long as reading a list.
        from tfpipe.data.index import copy_index, fingerprint

        paths = read_filelist(target)
        source = config.box_file_for(split) or find_layout(config.layout, paths)
        key = fingerprint(paths, plan.catalog.classes, plan.catalog.labels, source)
        beside = config.model_copy(update={"index": None})
        copy_index(index_path(config, config.filelist_for(split)), index_path(beside, target), paths, key)


def _overrides(config: DataConfig, splits: list[str], out: Path) -> list[str]:
    keys = {"train": "data.train_filelist", "test": "data.test_filelist"}
    lists = [f"{keys[split]}={out / LISTS[split]}" for split in splits]
    return [*lists, "data.index=null"] if config.index is not None else lists
