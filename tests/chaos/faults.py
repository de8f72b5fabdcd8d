"""Faults that a run meets: files that are spoilt, a server that fails, and signals to its ranks."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.forms import FORMS, PACKED, SERVED
from tests.support.commands import Processes
from tests.support.server import Server
from tfpipe.errors import Stopped

# The workers of a service take long to start, which is no stall.
FILES = ("files", "index", "cache", "memory", "service")
# Images in files of their own, on disks. What is gone from folders, or from a folder of shards, is not missed.
NAMED = (*FILES, "csv", "coco")
LOOSE = (*NAMED, "folders")
TARS = ("tar", "tar with xml")
SHARDS = (*TARS, "tfrecord", "tar at url")
TABLES = ("csv", "parquet", "coco", "url")
STORED = (*SHARDS, "parquet")
KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL, 1}


class Site:
    """The folder of a run: its data, which can be spoilt and repaired, and the processes of its ranks."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        """Takes the run's folder, with the images in tree/ or packed data in packed/, and the source of chance."""
        self.folder, self.rng = folder, rng
        self.server: Server | None = None
        """Serves tree/, if its data have URLs."""
        self.ranks = Processes(folder / "pids")
        self.spoilt: dict[Path, bytes] = {}
        """Contents by path of the files that are spoilt now."""

    def choose(self, patterns: tuple[str, ...]) -> Path:
        """Chooses one of the files that match any of the patterns, and notes its contents."""
        path = self.rng.choice(sorted(path for pattern in patterns for path in self.folder.glob(pattern)))
        self.spoilt.setdefault(path, path.read_bytes())
        return path

    def repair(self) -> None:
        """Restores the spoilt files and the server."""
        if self.server is not None:
            self.server.stop()
            self.server.fail = lambda path: None
            self.server.start()
        for path, contents in self.spoilt.items():
            path.unlink(missing_ok=True)
            path.write_bytes(contents)
        self.spoilt.clear()

    def signal(self, number: signal.Signals, everywhere: bool = False) -> None:
        """Sends a signal to one rank that runs, or to all."""
        running = self.ranks.running()
        for pid in running if everywhere or not running else [self.rng.choice(running)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass  # the rank has ended meanwhile


def _gone(*patterns: str) -> Callable[[Site], None]:
    return lambda site: site.choose(patterns).unlink()


def _replaced(patterns: tuple[str, ...], *contents: bytes, cut: bool = True) -> Callable[[Site], None]:
    """Returns what replaces a file by an empty one, by one of `contents` or, if `cut`, by its first half."""

    def replace(site: Site) -> None:
        path = site.choose(patterns)
        partial = path.with_name("partial")
        whole = site.spoilt[path]
        partial.write_bytes(site.rng.choice([*contents, *([whole[: len(whole) // 2]] if cut else []), b""]))
        partial.replace(path)

    return replace


def _stored(site: Site) -> None:
    """Damages, for good, what an earlier command has stored of the shards or the table."""
    for stored in site.folder.glob("indexes/*.catalog/*/*.npy"):
        half = stored.with_name("half")
        half.write_bytes(stored.read_bytes()[: stored.stat().st_size // 2])
        half.replace(stored)


def _fails(site: Site) -> None:
    site.server.fail_some(0.2, site.rng.randrange(1000))


def _away(site: Site) -> None:
    site.server.stop()
    time.sleep(1)
    site.server.start()


def _pipe(site: Site) -> None:
    path = site.choose(JPEG)
    path.unlink()
    os.mkfifo(path)


def _loop(site: Site) -> None:
    path = site.choose(JPEG)
    path.unlink()
    path.symlink_to(path)


def _record(site: Site) -> None:
    """Overwrites the middle of a shard of JPEGs."""
    path = site.choose((*SHARD, "packed/train-0*-of-*"))
    middle = len(site.spoilt[path]) // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes(4096))


def _told_then_killed(site: Site) -> None:
    site.signal(signal.SIGTERM)
    time.sleep(site.rng.uniform(0, 0.5))
    site.signal(signal.SIGKILL, everywhere=True)


class Fault(NamedTuple):
    """A fault: the sources of data that it can meet, what it does, and how the command may end."""

    sources: tuple[str, ...]
    codes: frozenset[int]
    """Exit codes; 0 if the command has ended before, or does not notice."""
    act: Callable[[Site], None] = lambda site: None
    """Spoils a file, or sends a signal."""
    rules: tuple[str, ...] = ()
    """Rules of `faulty`, from the start of the command on; N stands for a digit."""
    skipped: frozenset[int] | None = None
    """Exit codes with `data.on_error` "skip"; None: the same."""
    says: str = ""
    """Regular expression of a failed command's message, besides the name of the file that `act` spoils."""
    options: tuple[str, ...] = ()
    """Overrides of the config for the command."""
    is_signal: bool = False
    is_passing: bool = False
    """`act` is only for running ranks, and ends what it does."""
    is_before: bool = False
    """`act` is only for what the next command reads at its start."""
    writes: bool = False
    """Fails at files that only train.py writes."""


def _signal(act: Callable[[Site], None], *codes: int) -> Fault:
    return Fault(ALL, DONE | {*codes}, act, is_signal=True)


ENDS, DONE = frozenset({0, 1, 2}), frozenset({0})
ALL, SAVED, SHORT = (*FILES, *PACKED, *FORMS), Stopped.exit_code, ("data.stall_timeout_s=8",)
JPEG, XML = ("tree/Data/**/train/**/*.JPEG", "tree/train/images/**/*.jpg"), "tree/Annotations/**/train/**/*.xml"
TABLE, SHARD = ("tree/train.*",), ("tree/train/shards/*",)
# The first opens of tables, shards and loose images of the training data.
FORM, IMAGE = "*/tree/train*", "*/tree/*N.[Jj]*"
FAULTS = {
    "": Fault((), DONE),
    "missing file": Fault((*NAMED, "url"), ENDS, _gone(*JPEG), skipped=DONE),
    "bad JPEG": Fault((*LOOSE, "url"), ENDS, _replaced(JPEG, b"not an image", bytes(500)), skipped=DONE),
    "bad XML": Fault(FILES, ENDS, _replaced((XML,), b"<annotation><object>")),
    "link to itself": Fault(NAMED, ENDS, _loop, skipped=DONE),
    "missing table": Fault(TABLES, ENDS, _gone(*TABLE)),
    "bad table": Fault(TABLES, ENDS, _replaced(TABLE, b"not a table", cut=False)),
    "cut table": Fault(("parquet", "coco"), ENDS, _replaced(TABLE)),
    "missing shard": Fault(("tar at url",), ENDS, _gone(*SHARD)),
    "bad shard": Fault(SHARDS, ENDS, _replaced(SHARD, b"not a shard")),
    "bad record": Fault(("original", "crops", *SHARDS), ENDS, _record),
    "bad scan or copy": Fault(STORED, DONE, _stored, is_before=True),
    "pipe": Fault((*FILES[:-1], "csv", "coco"), ENDS, _pipe, options=SHORT),
    "file hangs": Fault(
        tuple(source for source in LOOSE if source != "service"),
        ENDS,
        rules=("HANG:0:" + IMAGE,),
        options=SHORT,
        says="N[.](JPEG|jpg): no answer in",
    ),
    "storage hangs 0.5 s": Fault(ALL, DONE, rules=tuple(f"HANG:500:{at}" for at in (IMAGE, FORM, "*/packed/*"))),
    "EIO 0.5 s": Fault(ALL, DONE, rules=("EIO:500:" + IMAGE, "EIO:500:*/packed/train-0*")),
    "EIO of XMLs 0.5 s": Fault(FILES, DONE, rules=("EIO:500:*/tree/*.xml",)),
    "EIO of tables and shards 0.5 s": Fault((*TABLES, *SHARDS), DONE, rules=("EIO:500:" + FORM,)),
    "EIO of stored 0.5 s": Fault(STORED, DONE, rules=("EIO:500:*/indexes/*",)),
    "EMFILE 0.5 s": Fault(
        ALL, DONE, rules=tuple(f"EMFILE:500:{at}" for at in ("*/tree/*/train/*", FORM, "*/packed/train-0*"))
    ),
    "EACCES": Fault(LOOSE, ENDS, rules=("EACCES:0:" + IMAGE,), skipped=DONE, says="Permission denied"),
    "EACCES of tables and shards": Fault(
        ("csv", "parquet", "coco", *TARS, "tfrecord"), ENDS, rules=("EACCES:0:" + FORM,), says="Permission denied"
    ),
    "server fails": Fault(SERVED, DONE, _fails),
    "server is away for 1 s": Fault(SERVED, DONE, _away, is_passing=True),
    "server is gone": Fault(SERVED, ENDS, lambda site: site.server.stop(), says="http://127.0.0.1"),
    "EIO of the cache 0.5 s": Fault(("cache",), DONE, rules=("EIO:500:*/cache/*",)),
    "full cache": Fault(("cache",), ENDS, rules=("FULL:0:*/cache/*:w",), says="No space left"),
    "no room for scan or copy": Fault(STORED, ENDS, rules=("FULL:0:*/indexes/*:w",), says="No space left"),
    "full run": Fault(ALL, ENDS, rules=("FULL:0:*/run/[!l]*:w",), says="No space left", writes=True),
    "no room for checkpoints": Fault(
        ALL, ENDS, rules=("FULL:0:*/checkpoints/*step-*:w",), says="No space left", writes=True
    ),
    "no room for metrics": Fault(ALL, ENDS, rules=("FULL:0:*/run/metrics*:w",), says="No space left", writes=True),
    "no room for positions": Fault(ALL, ENDS, rules=("FULL:0:*/run/positions*:w",), says="No space left", writes=True),
    "no room for the model": Fault(ALL, ENDS, rules=("ENOSPC:0:*/run/*.keras:w",), says="No space left", writes=True),
    "SIGTERM": _signal(lambda site: site.signal(signal.SIGTERM), SAVED),
    "SIGUSR1": _signal(lambda site: site.signal(signal.SIGUSR1, True), SAVED),
    "SIGKILL of one": _signal(lambda site: site.signal(signal.SIGKILL), *KILLED),
    "SIGKILL of all": _signal(lambda site: site.signal(signal.SIGKILL, True), *KILLED),
    "SIGTERM, SIGKILL": _signal(_told_then_killed, SAVED, *KILLED),
}
