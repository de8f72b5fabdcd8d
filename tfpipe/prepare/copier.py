"""Copies files to a folder, each atomically, many at once, by all ranks of a node."""

import functools
import operator
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar

from tfpipe.data.catalog.class_folders import SCAN_THREADS
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import Stamp, stamp
from tfpipe.util.locks import locked
from tfpipe.util.pools import in_order
from tfpipe.util.retry import retried

T = TypeVar("T")

# Files per copying task.
TOGETHER = 32
MAX_ERRORS = 20
# Share of the disk to keep free if the size of what is copied is an estimate.
SPARE_SHARE = 0.1


class File(NamedTuple):
    """A file to copy, and the path of its copy."""

    source: str
    target: str


class Share(NamedTuple):
    """A share of a list: the images whose number modulo `size` is `rank`."""

    rank: int = 0
    size: int = 1


class Staging(NamedTuple):
    """A folder to copy to, and the ranks that copy together."""

    out: Path
    world: World
    share: Share | None  # the share to copy, None for that of the ranks

    @property
    def scratch(self) -> Path:
        """The folder of this rank's unfinished files."""
        return self.out / ".partial-{}of{}".format(*(self.share or (self.world.rank, self.world.size)))

    def check_room(self, needs: str, size: float, *, estimated: bool = False) -> None:
        """Raises ConfigError if `size` bytes do not fit into this rank's share of the free disk space.

        If the size is `estimated`, as of loose files, SPARE_SHARE is kept free. `needs` begins the message.
        """
        free = shutil.disk_usage(self.out).free // self.world.local_size
        if size > (1 - SPARE_SHARE if estimated else 1) * free:
            spare = ", a tenth of which is kept free" if estimated else ""
            share = ', or copy a share with --share or, under a launcher, with data.scope "shard"' if estimated else ""
            raise ConfigError(
                f"{self.out}: {needs} {size / 1e9:.3g} GB, of {free / 1e9:.3g} GB free{spare}; use a larger disk{share}"
            )

    def run(self, prepare: Callable[[], None], copy: Callable[[], "Copies"], finish: Callable[[], None]) -> "Copies":
        """Runs `prepare` and `finish` on one rank of each node, and between them `copy` on all.

        `finish` writes what says that the copy is complete. Raises an error of one rank on all of them: ConfigError if
        `out` cannot be written or another process copies to it as the same rank, TfpipeError if files cannot be
        copied; the message names up to MAX_ERRORS of them.
        """
        leads = self.world.local_rank == 0

        def start() -> None:
            self.out.mkdir(parents=True, exist_ok=True)
            locks.enter_context(locked(self.out / f"{self.scratch.name}.lock", "copying to this folder"))
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir()
            if leads:
                prepare()

        def work() -> Copies:
            done = copy()
            shutil.rmtree(self.scratch)
            return done

        with ExitStack() as locks:
            self.world.on_all(writing(self.out)(start))
            copied = functools.reduce(Copies.plus, self.world.on_all(writing(self.out)(work)))
            if copied.errors:
                least = "at least " if len(copied.errors) >= MAX_ERRORS else ""
                count = counted(len(copied.errors), "file")
                lines = [f"{least}{count} cannot be copied (what is copied stays):", *copied.errors[:MAX_ERRORS]]
                raise TfpipeError("\n  ".join(lines))
            self.world.on_all(writing(self.out)(finish if leads else lambda: None))
        return copied


class Copies(NamedTuple):
    """Statistics of copying."""

    files: int = 0  # number of files copied now
    there: int = 0  # number of files copied before
    bytes: int = 0
    errors: tuple[str, ...] = ()

    def plus(self, other: "Copies") -> "Copies":
        """Returns the sum of both."""
        return Copies(*map(operator.add, self, other))


class StageResult(NamedTuple):
    """Result of staging, over all ranks."""

    copied: Copies
    overrides: list[str]  # arguments KEY=VALUE for --set, with which a config trains from the copy


def copy_all(
    work: Callable[[T], Copies], tasks: Iterable[T], threads: int, shown: Callable[[Iterator[Copies]], Iterable[Copies]]
) -> Copies:
    """Runs `work` on each task in threads; returns the sum, that of the first tasks if there are MAX_ERRORS errors.

    `shown` reports the progress.
    """
    with ThreadPoolExecutor(threads) as pool:
        for done in accumulate(shown(in_order(pool, work, tasks, 2 * threads)), Copies.plus, initial=Copies()):
            if len(done.errors) >= MAX_ERRORS:
                break
    return done


class Copier:
    """A thread-safe copier of files, each atomically."""

    def __init__(self, split: Split, scratch: Path) -> None:
        """Copies the files of `split`; unfinished files are in the folder `scratch` until they are complete."""
        paths = split.catalog.paths
        remote = split.config.remote if paths.remote else None
        self._fetcher = None if remote is None else Fetcher(remote, paths.folders)
        self._scratch = scratch
        self.threads = SCAN_THREADS if remote is None else 2 * -(-remote.concurrency // TOGETHER)

    def copy(self, files: list[File]) -> Copies:
        """Copies the files that are not there as their sources are now; returns errors instead of raising them."""
        existing = [file for file in files if os.path.exists(file.target)]
        stamps = dict(zip(existing, self.stamps([file.source for file in existing]), strict=True))
        outdated = [file for file in files if file not in stamps or not self._is_copy(file.target, stamps[file])]
        sources = [file.source for file in outdated]
        contents = [None] * len(outdated) if self._fetcher is None else self._fetcher.fetch(sources)
        there = Copies(there=len(files) - len(outdated))
        return functools.reduce(Copies.plus, map(self._put, outdated, contents), there)

    def stamps(self, sources: Sequence[str]) -> Sequence[Stamp | FetchError]:
        """Returns each file's stamp, as far as the server of a URL states it, or the error."""
        return [stamp(source) for source in sources] if self._fetcher is None else self._fetcher.stamps(sources)

    def _is_copy(self, path: str, source: Stamp | FetchError) -> bool:
        """Returns whether a file has the size and time of its source now or, of a URL, the size if that is stated.

        Copies appear atomically, so one whose source has no known size is complete.
        """
        if self._fetcher is None:
            return stamp(path) == source
        return isinstance(source, Stamp) and source.size in (None, stamp(path).size)

    def _put(self, file: File, contents: bytes | FetchError | None) -> Copies:
        """Writes a file, unless it is optional and does not exist; returns an error instead of raising it."""
        if isinstance(contents, FetchError):
            return Copies(errors=(str(contents),))
        if contents is None and self._fetcher is not None:
            return Copies()
        try:
            with atomic_write(Path(file.target), scratch=self._scratch) as partial:
                if contents is None:
                    before = retried(os.stat)(file.source)  # so that a change while it is copied shows
                    retried(shutil.copyfile)(file.source, partial)
                    os.utime(partial, ns=(before.st_atime_ns, before.st_mtime_ns))
                else:
                    partial.write_bytes(contents)
                os.makedirs(os.path.dirname(file.target), exist_ok=True)
                return Copies(files=1, bytes=partial.stat().st_size)
        except OSError as error:
            return Copies(errors=(f"cannot copy {file.source} to {file.target}: {error.strerror}",))
