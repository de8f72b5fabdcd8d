"""Copies of files behind URLs on a local disk: of tables, which are then read as files.

A copy is whole, or has holes in the place of what is not read from it.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from tfpipe.config import DataConfig
from tfpipe.data.catalog.table import ADVICE, catalog_folders, create_folder
from tfpipe.data.sources.remote.fetcher import FetchError
from tfpipe.data.sources.remote.ranges import REQUEST_BYTES
from tfpipe.data.sources.remote.url_path import AnyPath, Unreachable, UrlPath, stamped_files, stamps_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import Stamp
from tfpipe.util.locks import waiting_lock
from tfpipe.util.progress import progress

COPIES, LOCK = "copy-", ".copy.lock"
# Seconds after which a copy of an earlier version is removed: until then another run may be about to read it.
IN_USE_S = 3600.0


class Parts(NamedTuple):
    """A form of copies that hold only parts of their files."""

    name: str  # of the form, for the copy's own name
    write: Callable[[IO[bytes], UrlPath, int], None]
    """Writes the parts of a file of a size, at their places; raises OSError."""


class CopiedFiles(NamedTuple):
    """Files on a disk of this host: some that are there, or copies of some behind URLs."""

    paths: list[Path]
    names: dict[str, str]  # the URL of each copy, by its path
    version: str = ""  # digest of the URLs' sizes and ETags or times of change; "" if they are files, or state none
    urls: Sequence[tuple[UrlPath, Stamp]] = ()  # the URLs with their versions, if the copies hold only parts

    @contextmanager
    def naming_urls(self) -> Iterator[None]:
        """Raises a ConfigError that names a copy's URL in the place of one that names the copy."""
        try:
            yield
        except ConfigError as error:
            if not self.names:
                raise
            text = str(error)
            for copy, url in self.names.items():
                text = text.replace(copy, url)
            raise ConfigError(text) from error


def local_files(files: Sequence[AnyPath], config: DataConfig, world: World, parts: Parts | None = None) -> CopiedFiles:
    """Copies files behind URLs to this host, once for each version of them; every rank must call.

    They are copied whole unless `parts` are given and one has more than REQUEST_BYTES: smaller ones come by one
    request, which any server answers.

    A copy is in the folder `data.index`, or in this user's folder for temporary files, and has the file's name. A file
    whose server states neither an ETag nor a time of change is copied at each start. Raises ConfigError if one cannot
    be fetched, changes meanwhile, or the disk is too small.
    """
    urls = [file for file in files if isinstance(file, UrlPath)]
    if not urls:
        return CopiedFiles([file for file in files if isinstance(file, Path)], {})
    stamps = world.from_rank0(lambda: [stamp for _, stamp in stamped_files(urls)])
    unknown = [stamp for stamp in stamps if stamp.changed is None]
    start = world.from_rank0(time.time_ns)
    stamps = [stamp if stamp.changed is not None else Stamp(stamp.size, start) for stamp in stamps]
    if all((stamp.size or 0) <= REQUEST_BYTES for stamp in stamps):
        parts = None
    paths, versions = list[Path](), list(zip(urls, stamps, strict=True))

    def copy_all(may_copy: bool) -> None:
        if may_copy and not paths:
            paths.extend(_copy_file(url, stamp, config, parts, show=world.rank == 0) for url, stamp in versions)

    for may_copy in (world.local_rank == 0 or world.backend == "none", True):
        world.on_all(partial(copy_all, may_copy))
    version = hashlib.sha256(repr([(url.name, *stamp) for url, stamp in versions]).encode())
    return CopiedFiles(
        paths,
        dict(zip(map(str, paths), map(str, urls), strict=True)),
        "" if unknown else version.hexdigest(),
        [] if parts is None else versions,
    )


def _copy_file(url: UrlPath, stamp: Stamp, config: DataConfig, parts: Parts | None, *, show: bool) -> Path:
    """Returns the copy of a file, which is made unless it is there; earlier versions of it are removed."""
    folder = catalog_folders(config, [url])[0]
    form = () if parts is None else (parts.name,)
    digest = hashlib.sha256(repr((str(url), *stamp, *form)).encode()).hexdigest()
    copy = folder / f"{COPIES}{digest[:16]}" / url.name
    try:
        create_folder(folder)
        with waiting_lock(folder / LOCK):
            if copy.exists():
                return copy
            for before in folder.glob(f"{COPIES}*"):
                if time.time() - before.stat().st_mtime > IN_USE_S:
                    shutil.rmtree(before, ignore_errors=True)
            assert stamp.size is not None, "stamps_of returns an error without a size"
            free = shutil.disk_usage(folder).free
            if parts is None and stamp.size > free:
                raise ConfigError(
                    f"{folder} needs {stamp.size / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free; {ADVICE}"
                )
            copy.parent.mkdir(exist_ok=True)
            with atomic_write(copy, sync=True) as partial:
                with partial.open("wb") as file:
                    if parts is None:
                        count = -(-stamp.size // REQUEST_BYTES)
                        file.writelines(progress(_parts(url, stamp.size), count, f"copying {url}", "part", show))
                    else:
                        parts.write(file, url, stamp.size)
                (now,) = stamps_of([url])
                states_version = isinstance(stamp.changed, str)
                if partial.stat().st_size != stamp.size or (states_version and now != stamp):
                    raise ConfigError(f"{url} has changed while it was copied: start again")
    except Unreachable as error:
        raise ConfigError(f"cannot read {url}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(f"cannot copy {url} to {folder}: {error.strerror or error}; {ADVICE}") from error
    return copy


def _parts(url: UrlPath, size: int) -> Iterator[bytes]:
    """Yields the content of a URL; raises OSError. A short one comes whole, for servers that ignore ranges."""
    if size > REQUEST_BYTES:
        with url.open() as file:
            yield from iter(lambda: file.read(REQUEST_BYTES), b"")
        return
    (contents,) = url.fetcher().fetch([str(url)])
    if isinstance(contents, FetchError):
        raise Unreachable.of(url, contents)
    yield contents or b""
