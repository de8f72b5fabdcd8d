"""Jobs in parts, which the ranks share: finished parts are kept, so an interrupted job resumes where it ended."""

import glob
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from zipfile import BadZipFile

from tfpipe.data.catalog.class_folders import SCAN_THREADS
from tfpipe.data.catalog.table import ADVICE
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.atomic_write import remove_leftovers, writing
from tfpipe.util.locks import locked
from tfpipe.util.progress import progress
from tfpipe.util.resources import usable_cpus
from tfpipe.util.retry import retried

# Images per part: constant, so that a result does not depend on how many ranks make it.
PART = 5_000
PARTS_SUFFIX = ".parts"
MAX_ERRORS = 20

P = TypeVar("P")
R = TypeVar("R")


class Job(NamedTuple):
    """A job in parts; rank 0 holds a lock, so that two jobs never write the same result."""

    target: Path  # the result, a file or folder
    lock: Path
    task: str  # for the message to a second job, e.g. "building this index"
    unfinished: str  # headline if parts cannot be made, in which {count} is the number of problems
    advice: str = ""  # what to do if nothing can be written

    def run(
        self, world: World, start: Callable[[], list[P]], make: Callable[[list[P]], list[str]], merge: Callable[[], R]
    ) -> R:
        """Makes the parts that `start` returns, each on one rank, and merges all parts on rank 0. Every rank must call.

        `make` returns messages, so that those of all ranks are known together. Raises ConfigError if there are any
        (the message has up to MAX_ERRORS), nothing can be written, or another process is at work on the same result.
        """
        with ExitStack() as locks:

            def lock_and_start() -> list[P]:
                self.lock.parent.mkdir(parents=True, exist_ok=True)
                locks.enter_context(locked(self.lock, self.task))
                return start()

            missing = world.from_rank0(writing(self.target, self.advice)(lock_and_start))
            problems = world.on_all(lambda: make(world.mine(missing)))
            errors = list(islice(chain.from_iterable(problems), MAX_ERRORS))
            if errors:
                count = f"{'at least ' if len(errors) == MAX_ERRORS else ''}{counted(len(errors), 'problem')}"
                raise ConfigError("\n  ".join([self.unfinished.format(count=count), *errors]))
            return world.from_rank0(writing(self.target, self.advice)(merge))


@dataclass(frozen=True)
class ImageParts(ABC, Generic[R]):
    """A job over the images of a split, in parts of PART, each a file in a folder until all are merged."""

    split: Split
    target: Path
    key: str  # fingerprint of everything that the parts are made from; its beginning is in their folder's name
    chunk: int  # images that a process or thread reads at a time
    processes: int | None  # or threads, of this rank; None for one per CPU that it may use

    name: ClassVar[str]  # of the result, in messages
    task: ClassVar[str]
    suffix: ClassVar[str]  # of a part's file

    @abstractmethod
    def read(self, chunks: list[range], processes: int) -> Iterator[tuple[Any, list[str]]]:
        """Reads chunks of images; yields the content of each, in order, and a message for each image that is bad."""

    @abstractmethod
    def write(self, contents: list[Any], path: Path) -> None:
        """Writes the contents of a part's chunks to its file, atomically."""

    @abstractmethod
    def is_current(self, path: Path, items: range) -> bool:
        """Returns whether the files of `items` have the stamps that a part's file says they had before they were read.

        Raises OSError, ValueError, EOFError or BadZipFile if it cannot be read.
        """

    @abstractmethod
    def merge(self, paths: list[Path]) -> R:
        """Merges the parts' files into the result, atomically; returns its statistics."""

    def run(self) -> R:
        """Runs the job as Job.run does; an earlier result is replaced."""
        unfinished = f"no {self.name} of {self.split.catalog.split} data, {{count}} (what is done is kept):"
        job = Job(self.target, self.target.with_name(f"{self.target.name}.lock"), self.task, unfinished, ADVICE)
        return job.run(self.split.world, self._start, self._make, self._merge)

    @property
    def _folder(self) -> Path:
        return self.target.with_name(f"{self.target.name}.{self.key[:16]}{PARTS_SUFFIX}")

    @property
    def _parts(self) -> list[range]:
        count = len(self.split.catalog)
        return [range(start, min(start + PART, count)) for start in range(0, count, PART)]

    def _path(self, part: range) -> Path:
        return self._folder / f"{part.start:09}-{part.stop:09}{self.suffix}"

    def _start(self) -> list[range]:
        self._folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            current = pool.map(self._is_current, self._parts)
            return [part for part, is_current in zip(self._parts, current, strict=True) if not is_current]

    def _is_current(self, part: range) -> bool:
        """Returns whether a part is made, whole, and of files that have not changed since, by their sizes and times."""
        try:
            return self.is_current(self._path(part), part)
        except (OSError, ValueError, EOFError, BadZipFile):  # there is none, or it is damaged
            return False

    def _make(self, parts: list[range]) -> list[str]:
        """Writes the parts whose images can all be read; returns the errors of the others."""
        world, errors = self.split.world, list[str]()
        chunks = {
            part: [part[start : start + self.chunk] for start in range(0, len(part), self.chunk)] for part in parts
        }
        every = list(chain.from_iterable(chunks.values()))
        try:
            results = self.read(every, self.processes or world.threads or usable_cpus())
            shown = progress(results, len(every), f"reading {self.split.catalog.split} data", "chunk", world.rank == 0)
            for part in parts:
                contents, problems = zip(*islice(shown, len(chunks[part])), strict=True)
                bad = list(chain.from_iterable(problems))
                errors += [f"{problem}; {self.split.remedy}" for problem in bad]
                if len(errors) >= MAX_ERRORS:
                    break
                if not bad:
                    with writing(self._path(part), ADVICE):
                        retried(self.write)(list(contents), self._path(part))
        except ConfigError as error:
            errors.append(str(error))
        except BrokenProcessPool:
            errors.append(f"a process of rank {world.rank} was killed; if memory was short, use fewer: --processes")
        return errors

    def _merge(self) -> R:
        """Merges the parts; removes them, and old parts of unfinished jobs of other fingerprints."""
        result = self.merge([self._path(part) for part in self._parts])
        shutil.rmtree(self._folder, ignore_errors=True)
        remove_leftovers(self.target.parent.glob(f"{glob.escape(self.target.name)}.*{PARTS_SUFFIX}"))
        return result
