"""Faults that a run meets: files that are spoilt, and signals to its ranks."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import Processes
from tfpipe.errors import Stopped

# The workers of a service take long to start, which is no stall.
FILES = ("files", "index", "cache", "memory", "service")
PACKED = ("original", "crops", "raw")
KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL, 1}


class Site:
    """The folder of a run: its data, which can be spoilt and repaired, and the processes of its ranks."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        """Takes the run's folder, with the images in tree/ or packed data in packed/, and the source of chance."""
        self.folder, self.rng = folder, rng
        self.ranks = Processes(folder / "pids")
        self.spoilt: dict[Path, bytes] = {}
        """Contents by path of the files that are spoilt now."""

    def choose(self, pattern: str) -> Path:
        """Chooses one of the files that match, and notes its contents."""
        path = self.rng.choice(sorted(self.folder.glob(pattern)))
        self.spoilt.setdefault(path, path.read_bytes())
        return path

    def repair(self) -> None:
        """Restores the spoilt files."""
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


def _gone(site: Site) -> None:
    site.choose(JPEG).unlink()


def _replaced(pattern: str, *contents: bytes) -> Callable[[Site], None]:
    def replace(site: Site) -> None:
        path = site.choose(pattern)
        partial = path.with_name("partial")
        whole = site.spoilt[path]
        partial.write_bytes(site.rng.choice([*contents, whole[: len(whole) // 2], b""]))
        partial.replace(path)

    return replace


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
    path = site.choose("packed/train-0*-of-*")
    middle = len(site.spoilt[path]) // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes(4096))


def _told_then_killed(site: Site) -> None:
    """Kills all ranks while they save."""
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
    """Part of the message of a command that has failed, besides the name of the file that `act` spoils."""
    options: tuple[str, ...] = ()
    """Overrides of the config for the command."""
    is_signal: bool = False


def _signal(act: Callable[[Site], None], *codes: int) -> Fault:
    return Fault((*FILES, *PACKED), DONE | {*codes}, act, is_signal=True)


ENDS, DONE = frozenset({0, 1, 2}), frozenset({0})
ALL, SAVED, SHORT = (*FILES, *PACKED), Stopped.exit_code, ("data.stall_timeout_s=8",)
JPEG, XML = "tree/Data/**/train/**/*.JPEG", "tree/Annotations/**/train/**/*.xml"
FAULTS = {
    "": Fault((), DONE),
    "missing file": Fault(FILES, ENDS, _gone, skipped=DONE),
    "bad JPEG": Fault(FILES, ENDS, _replaced(JPEG, b"not an image", bytes(500)), skipped=DONE),
    "bad XML": Fault(FILES, ENDS, _replaced(XML, b"<annotation><object>")),
    "link to itself": Fault(FILES, ENDS, _loop, skipped=DONE),
    "bad record": Fault(("original", "crops"), ENDS, _record),
    "pipe": Fault(FILES[:-1], ENDS, _pipe, options=SHORT),
    "file hangs": Fault(FILES[:-1], ENDS, rules=("HANG:0:*N.JPEG",), options=SHORT, says="N.JPEG: no answer in"),
    "storage hangs 0.5 s": Fault(ALL, DONE, rules=("HANG:500:*/tree/*N.*", "HANG:500:*/packed/*")),
    "EIO 0.5 s": Fault(ALL, DONE, rules=("EIO:500:*/tree/*N.JPEG", "EIO:500:*/packed/train-0*")),
    "EIO of XMLs 0.5 s": Fault(FILES, DONE, rules=("EIO:500:*/tree/*.xml",)),
    "EMFILE 0.5 s": Fault(ALL, DONE, rules=("EMFILE:500:*/tree/*/train/*", "EMFILE:500:*/packed/train-0*")),
    "EACCES": Fault(FILES, ENDS, rules=("EACCES:0:*/tree/*N.JPEG",), skipped=DONE, says="Permission denied"),
    "EIO of the cache 0.5 s": Fault(("cache",), DONE, rules=("EIO:500:*/cache/*",)),
    "full cache": Fault(("cache",), ENDS, rules=("FULL:0:*/cache/*:w",), says="No space left"),
    "full run": Fault(ALL, ENDS, rules=("FULL:0:*/run/[!l]*:w",), says="No space left"),
    "no room for checkpoints": Fault(ALL, ENDS, rules=("FULL:0:*/checkpoints/*step-*:w",), says="No space left"),
    "no room for metrics": Fault(ALL, ENDS, rules=("FULL:0:*/run/metrics*:w",), says="No space left"),
    "no room for positions": Fault(ALL, ENDS, rules=("FULL:0:*/run/positions*:w",), says="No space left"),
    "no room for the model": Fault(ALL, ENDS, rules=("ENOSPC:0:*/run/*.keras:w",), says="No space left"),
    "SIGTERM": _signal(lambda site: site.signal(signal.SIGTERM), SAVED),
    "SIGUSR1": _signal(lambda site: site.signal(signal.SIGUSR1, True), SAVED),
    "SIGKILL of one": _signal(lambda site: site.signal(signal.SIGKILL), *KILLED),
    "SIGKILL of all": _signal(lambda site: site.signal(signal.SIGKILL, True), *KILLED),
    "SIGTERM, SIGKILL": _signal(_told_then_killed, SAVED, *KILLED),
}
