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
    site.choose("tree/Data/**/train/**/*.JPEG").unlink()


def _replaced(pattern: str, *contents: bytes) -> Callable[[Site], None]:
    def replace(site: Site) -> None:
        path = site.choose(pattern)
        partial = path.with_name("partial")
        whole = site.spoilt[path]
        partial.write_bytes(site.rng.choice([*contents, whole[: len(whole) // 2], b""]))
        partial.replace(path)

    return replace


def _pipe(site: Site) -> None:
    path = site.choose("tree/Data/**/train/**/*.JPEG")
    path.unlink()
    os.mkfifo(path)


def _loop(site: Site) -> None:
    path = site.choose("tree/Data/**/train/**/*.JPEG")
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
    """A fault: the sources of data that it can meet, its action, and what becomes of the command."""

    sources: tuple[str, ...]
    act: Callable[[Site], None]
    codes: frozenset[int]
    """Exit codes; 0 if the command has ended before, or does not notice."""
    skipped: frozenset[int] | None = None
    """The same with `data.on_error` "skip"; None: the same."""
    options: tuple[str, ...] = ()
    """Overrides of the config for the command."""


ENDS = frozenset({0, 1, 2})
DONE = frozenset({0})
ALL = (*FILES, *PACKED)
FAULTS = {
    "missing file": Fault(FILES, _gone, ENDS, DONE),
    "bad JPEG": Fault(FILES, _replaced("tree/Data/**/train/**/*.JPEG", b"not an image", bytes(500)), ENDS, DONE),
    "bad XML": Fault(FILES, _replaced("tree/Annotations/**/train/**/*.xml", b"<annotation><object>"), ENDS),
    "link to itself": Fault(FILES, _loop, ENDS, DONE),
    "bad record": Fault(("original", "crops"), _record, ENDS),
    "hang": Fault(FILES, _pipe, frozenset({0, 1}), options=("data.stall_timeout_s=4",)),
    "SIGTERM": Fault(ALL, lambda site: site.signal(signal.SIGTERM), frozenset({0, Stopped.exit_code})),
    "SIGUSR1": Fault(ALL, lambda site: site.signal(signal.SIGUSR1, True), frozenset({0, Stopped.exit_code})),
    "SIGKILL of one": Fault(ALL, lambda site: site.signal(signal.SIGKILL), DONE | KILLED),
    "SIGKILL of all": Fault(ALL, lambda site: site.signal(signal.SIGKILL, True), DONE | KILLED),
    "SIGTERM, SIGKILL": Fault(ALL, _told_then_killed, DONE | KILLED | {Stopped.exit_code}),
}
