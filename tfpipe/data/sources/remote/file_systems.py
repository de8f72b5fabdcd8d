"""Requests for bytes of URLs, and fsspec's file systems, one for a scheme of URLs other than those of HTTP."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from tfpipe.config import Remote
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.forks import per_process

# Upper bound of a response in bytes, decompressed: pixels of a JPEG that TensorFlow decodes take at most twice as much.
MAX_BYTES = 2**28

# Threads for the calls of file systems without asyncio.
THREADS = 64
# Names by which fsspec's file systems state that a file has changed, in lower case, the best first.
VERSIONS = (
    "etag", "blob_id", "content-md5", "last-modified", "lastmodified", "last_modified", "updated", "mtime", "created",
)  # fmt: skip
# Headers of an answer to a request for a part of a file.
OF_PARTS = ("content-range", "content-length", *VERSIONS)
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)


class ByteRange(NamedTuple):
    """A request for a URL's content, or for its bytes `start` to `end`."""

    url: str
    start: int = 0
    end: int | None = None
    stamp: Stamp | None = None  # the version of the file that the bytes must be of, None for any
    exact: bool = True  # False: of a server that ignores ranges, the start of its response is taken
    fresh: bool = False  # by a connection of its own; libcurl itself repeats a request when an open connection is lost
    what: Literal["bytes", "stamp", "names"] = "bytes"  # asked for: the bytes, the stamp, or the names in a folder
    signing: tuple[tuple[str, Any], ...] = ()  # options of libcurl that sign the request, by their names


class TooLong(ValueError):
    """A response of more than MAX_BYTES."""


def ends_early(end: int, asked: int) -> ValueError:
    """Returns the error of a file that ends before the last byte that was asked for."""
    return ValueError(f"it ends at byte {end}, before {asked}")


def check_part(headers: Mapping[str, str], start: int, end: int, stamp: Stamp | None) -> None:
    """Raises ValueError if an answer to a request for the bytes `start` to `end` has others, or those of another file.

    `headers` are the answer's, of which OF_PARTS count, in lower case; `stamp` is the version of the file that is
    meant: a text in it is one that the server has stated. Fewer bytes may come, of a file that ends before.
    """
    received = headers.get("content-range", "")
    part = CONTENT_RANGE.fullmatch(received)
    if part is None or int(part[1]) != start or int(part[2]) >= end:
        answer = f'Content-Range "{received}"' if received else "no Content-Range"
        raise ValueError(f"the server answers bytes={start}-{end - 1} with {answer}, which may be other bytes")
    if stamp is not None:
        versions = [headers[name] for name in VERSIONS if name in headers]
        check_version(versions, None if part[3] == "*" else int(part[3]), stamp)


def check_version(versions: Sequence[str], size: int | None, stamp: Stamp) -> None:
    """Raises ValueError if a file is not that of its `stamp`, by the versions and the size that its server now states.

    An ETag that a server calls weak, by W/, is the same as a strong one.
    """
    if None not in (size, stamp.size) and size != stamp.size:
        raise ValueError(f"it has changed since the start, from {stamp.size} to {size} bytes: start again")
    if isinstance(stamp.changed, str) and versions:
        if stamp.changed.removeprefix("W/") not in [version.removeprefix("W/") for version in versions]:
            raise ValueError(f"it has changed since the start, from {stamp.changed} to {versions[0]}: start again")


def open_file_system(scheme: str, config: Remote) -> Any:
    """Opens fsspec's file system for a scheme, without its own limits on concurrency and without its own retries."""
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(
            f"{scheme}:// URLs need a package that is missing ({error}): pip install 'tfpipe[remote]', or fsspec's own"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{scheme}:// is no scheme that fsspec knows: {error}") from error
    options = dict(config.options)
    try:
        if scheme == "s3":
            pool: dict[str, Any] = {"max_pool_connections": config.concurrency, "retries": {"max_attempts": 0}}
            pool["http_session_cls"] = _session_kind()
            options["config_kwargs"] = pool | options.get("config_kwargs", {})
            # Above 1, s3fs would first request each file's size.
            options["max_concurrency"] = 1
        if not kind.async_impl:
            from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

            # Its calls run in threads; each is of a few bytes or of one file.
            return AsyncFileSystemWrapper(kind(**options))
        system = kind(skip_instance_cache=True, use_listings_cache=False, **options)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"data.remote.options: {scheme}:// cannot be used with these: {error}") from error
    if scheme == "s3":
        system.retries = 1
    return system


def _session_kind() -> type:
    """Returns the class of s3fs's connections: aiohttp's follow redirections, with the token that signs a request."""
    from aiobotocore.httpsession import AIOHTTPSession

    class Session(AIOHTTPSession):
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            return SimpleNamespace(request=partial(session.request, allow_redirects=False))

    return Session


@per_process
def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop in which all of fsspec's file systems work; it runs in a thread of fsspec's."""
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    loop.call_soon_threadsafe(loop.set_default_executor, ThreadPoolExecutor(THREADS, "tfpipe-fetch-sync"))
    return loop
