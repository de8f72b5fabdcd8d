"""Shares parts of a catalog between the processes of a host: one makes a part as files, and all map it.

Parts of `train.txt` are in the folder `train.catalog` beside it or in `data.index`, as its index is, or, where that
cannot be written, in the folder for temporary files (TMPDIR) of each host. A part's name is a hash of everything that
it is made from (util/made_from.py); files count by size and time of change.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tfpipe.config import DataConfig, WeightedList
from tfpipe.data.catalog.lists import hashed_name, index_path, paths_of
from tfpipe.distributed import World
from tfpipe.util.files import Stamp
from tfpipe.util.locks import waiting_lock
from tfpipe.util.made_from import MadeFrom, stamped
from tfpipe.util.mapped import Part, map_part, write_part

logger = logging.getLogger(__name__)

FORMAT = 1
# Filelists of fewer bytes, some 100,000 images, are read by every process in a tenth of a second: no file is left.
SMALL_BYTES = 8_000_000
LOCK = ".lock"


class Shared:
    """The parts of a split's catalog, which the ranks of a host share if its filelists are large."""

    def __init__(self, places: Sequence[Path], files: Sequence[tuple[str, Stamp]], world: World) -> None:
        """Shares in the first of `places` that can be written, or not at all if there is none.

        `files`, paths and stamps, are what all parts are made from; the same on every rank.
        """
        self.places, self.files, self.world = places, files, world

    def stamps(self, paths: Iterable[Path | None]) -> list[tuple[str, Stamp]]:
        """Returns the paths and stamps of files as rank 0 sees them, on every rank; [] if nothing is shared."""
        return self.world.from_rank0(lambda: stamped(paths)) if self.places else []

    def part(self, kind: str, inputs: Sequence[Any], make: Callable[[], Part | None]) -> Part | None:
        """Returns the part that `make()` makes of `inputs`, mapped if it could be stored; every rank must call.

        Rank 0 makes it; then the first rank of each host that does not see rank 0's; then, where no file can be
        written, every rank. An error of `make` is raised on every rank. If it returns None, so do all.
        """
        if not self.places:
            return make()
        key = MadeFrom(FORMAT, self.files, {"kind": kind, "inputs": inputs}).digest()
        world = self.world
        found: Part | None = None

        def look(turn: int, may_make: bool) -> tuple[bool, bool]:
            """Returns whether `make` makes nothing, and whether this rank has the part."""
            nonlocal found
            # A host that looks for a file before it is there may not see it for a minute over NFS.
            if found is None and (may_make or turn > 0):
                found = self._find(f"{kind}-{key[:16]}")
            if found is None and may_make:
                found = self._make(f"{kind}-{key[:16]}", make)
                return found is None, found is not None
            return False, found is not None

        for turn, may_make in enumerate((world.rank == 0 or world.backend == "none", world.local_rank == 0, True)):
            nothing, has = zip(*world.on_all(partial(look, turn, may_make)), strict=True)
            if any(nothing):
                return None
            if all(has):
                break
        return found

    def _find(self, name: str) -> Part | None:
        for place in filter(is_trusted, self.places):
            try:
                part = map_part(place / name)
            except OSError as error:
                logger.info("cannot read the catalog in %s: %s", place, error)
                continue
            if part is not None:
                return part
        return None

    def _make(self, name: str, make: Callable[[], Part | None]) -> Part | None:
        """Makes a part once; returns it mapped, or as made if it cannot be stored."""
        part = None
        for place in self.places:
            with ExitStack() as held:
                try:
                    create(place)
                    held.enter_context(waiting_lock(place / LOCK))
                    found = map_part(place / name)  # another process may have made it meanwhile
                except OSError as error:
                    logger.info("cannot share the catalog in %s: %s", place, error)
                    continue
                if found is not None:
                    return found
                part = part or make()
                if part is None:
                    return None
                try:
                    write_part(place / name, part)
                    logger.info("%s: %.0f MB, which all processes of a host map", place / name, part.nbytes / 1e6)
                    return map_part(place / name)
                except OSError as error:
                    logger.info("cannot share the catalog in %s: %s", place, error)
        part = part or make()
        if part is not None:
            logger.warning(
                "every rank holds %.0f MB of its own: no folder can be written to share them, of %s; set data.index",
                part.nbytes / 1e6,
                ", ".join(map(str, self.places)),
            )
        return part


def share(config: DataConfig, filelist: Path | list[WeightedList], world: World) -> Shared:
    """Returns how the parts of this list's catalog are shared: not at all if it is small, or names a folder."""
    files = world.from_rank0(lambda: stamped(paths_of(filelist)))
    sizes = [stamp.size for _, stamp in files if stamp.size is not None]
    folder = any(path.is_dir() for path in paths_of(filelist))
    if folder or len(sizes) < len(files) or sum(sizes) < SMALL_BYTES:
        return Shared([], [], world)
    beside = index_path(config, filelist)
    places = [_catalog_of(beside), temporary_folder() / _catalog_of(Path(hashed_name(filelist)))]
    return Shared(places, files, world)


def _catalog_of(index: Path) -> Path:
    return index.with_name(index.name.removesuffix(".index.parquet") + ".catalog")


def create(place: Path) -> None:
    """Creates a folder for parts; raises OSError if it cannot be created, or somebody else may write to it."""
    if is_temporary(place):
        place.parent.mkdir(mode=0o700, exist_ok=True)
        if not is_trusted(place):
            raise PermissionError(f"{place.parent} belongs to somebody else, or others may write to it")
    place.mkdir(parents=True, exist_ok=True)


def is_temporary(place: Path) -> bool:
    """Returns whether `place` is in the folder for temporary files, which all users share."""
    return place.parent == temporary_folder()


def temporary_folder() -> Path:
    """Returns this user's folder for the parts of lists beside which nothing can be written."""
    return Path(tempfile.gettempdir()) / f"tfpipe-{os.getuid()}"


def is_trusted(place: Path) -> bool:
    """Returns whether parts in `place` may be used: in a folder that all users share, only those of this user."""
    if not is_temporary(place):
        return True
    try:
        about = place.parent.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
