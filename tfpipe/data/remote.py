"""Files behind URLs: fetched through fsspec, many at once, and anew where that failed for a reason that may pass."""

import asyncio
import atexit
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from tfpipe.config import Remote
from tfpipe.data.fetch_cache import FetchCache
from tfpipe.data.fetch_loop import Ended, Loop
from tfpipe.errors import ConfigError, TfpipeError

T = TypeVar("T")
# The first pause before a request is repeated, in seconds; each further one is twice as long, to 60 s at most, less up
# to a half by chance, so that what failed together does not come back together. Eight pauses last 32 s at least.
PAUSE_S = 0.25
LONGEST_PAUSE_S = 60.0
MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
# Of aiohttp and botocore, for a connection that failed or was lost; by name, since neither need be installed.
LOST = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "EndpointConnectionError"}
# How a message begins; the URL follows and, behind a colon and a space, the reason.
CANNOT_FETCH = "cannot fetch "


class FetchError(TfpipeError):
    """A URL that cannot be fetched: names it, the status or the reason, and the number of tries."""

    missing = False
    """Whether the server says that there is no such file."""

    @classmethod
    def of(cls, url: str, reason: str, missing: bool = False) -> "FetchError":
        """Of this URL. Not by the constructor, since ranks hand errors on, and pickle gives that the message."""
        error = cls(f"{CANNOT_FETCH}{url}: {reason}")
        error.missing = missing
        return error


def is_optional(url: str) -> bool:
    """Whether there need be nothing: HTTP lists no folders, so an XML is asked for without knowing of it."""
    return url.startswith(("http://", "https://")) and url.endswith(".xml")


class Fetcher:
    """Fetches URLs, from any number of threads; what they ask for shares `data.remote.concurrency`.

    The requests are made in one thread, which starts with the first of them and ends with this, or with the process.
    """

    def __init__(self, config: Remote, urls: Iterable[str]) -> None:
        """Args: how to fetch; URLs, or folders of some, whose schemes say from what.

        Raises:
            ConfigError: a package is missing, or `data.remote.options` or the cache's folder cannot be used.
        """
        self._config = config
        self._turns = asyncio.Semaphore(config.concurrency)
        schemes = sorted({url.partition("://")[0] for url in urls})
        self._systems = {scheme: _file_system(scheme, config) for scheme in schemes}
        self._cache = None if config.cache is None else FetchCache(config)
        self._loop = Loop(partial(_close, list(self._systems.values())))
        close = weakref.finalize(self, self._loop.close)
        # In its place among what runs at the end, not in weakref's: pipelines being closed (closing.py) would wait for
        # requests under way, so this comes before.
        close.atexit = False
        atexit.register(close)

    def close(self) -> None:
        """Gives up what is under way; whatever is asked for later cannot be fetched."""
        self._loop.close()

    def fetch(self, urls: Sequence[str]) -> list[bytes | FetchError | None]:
        """What is behind each URL, or why it cannot be had; None for "", and where there is nothing nor need be."""
        found: dict[str, Any] = {url: self._cache.find(url) for url in urls} if self._cache else {}
        wanted = [url for url in dict.fromkeys(urls) if url and found.get(url) is None]
        fetched = dict(zip(wanted, self._all(self._contents, wanted), strict=True))
        fetched = {url: b"" if is_optional(url) and _is_missing(each) else each for url, each in fetched.items()}
        if self._cache:
            self._cache.keep({url: each for url, each in fetched.items() if isinstance(each, bytes)})
        found.update(fetched)
        # A file that is kept empty stands for none, as the cache has it.
        return [found[url] if url and not (is_optional(url) and found[url] == b"") else None for url in urls]

    def starts(self, urls: Sequence[str], count: int) -> list[bytes | FetchError]:
        """The first `count` bytes of what is behind each URL, or all, or why they cannot be had."""
        return self._all(partial(self._contents, count=count), urls)

    def sizes(self, urls: Sequence[str]) -> list[int | FetchError | None]:
        """Bytes behind each URL, None where the server does not say, or why that cannot be known."""

        async def size(url: str) -> int | None:
            return (await self._system(url)._info(url)).get("size")

        return self._all(size, urls)

    def names(self, folders: Sequence[str]) -> list[set[str]]:
        """The base names in each folder of an object store, which has none where there is no such folder.

        Raises:
            FetchError: a folder cannot be listed.
        """

        async def listing(folder: str) -> set[str]:
            found = await self._system(folder)._ls(folder.rstrip("/"), detail=False)
            return {name.rpartition("/")[2] for name in found}

        found = self._all(listing, folders)
        for each in found:
            if isinstance(each, FetchError) and not each.missing:
                raise each
        return [set() if isinstance(each, FetchError) else each for each in found]

    def forget(self, urls: Iterable[str]) -> None:
        """Drops what the cache keeps of URLs, so that they are fetched anew once they are repaired."""
        if self._cache:
            self._cache.forget(urls)

    async def _contents(self, url: str, count: int | None = None) -> bytes:
        system = self._system(url)
        if count is None:
            return await system._cat_file(url)
        try:
            return await system._cat_file(url, start=0, end=count)
        except Exception as error:
            if _status(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # of an empty file
                return b""
            raise

    def _system(self, url: str) -> Any:
        return self._systems[url.partition("://")[0]]

    def _all(self, ask: Callable[[str], Awaitable[T]], urls: Sequence[str]) -> list[T | FetchError]:
        async def together() -> list[T | FetchError]:
            return await asyncio.gather(*(self._tried(ask, url) for url in urls))

        try:
            return self._loop.run(together) if urls else []
        except Ended:
            return [FetchError.of(url, "the process is ending") for url in urls]

    async def _tried(self, ask: Callable[[str], Awaitable[T]], url: str) -> T | FetchError:
        began, tries = time.monotonic(), self._config.retries + 1
        for done in range(1, tries + 1):
            try:
                async with self._turns:
                    return await asyncio.wait_for(ask(url), self._config.timeout_s)
            except Exception as error:
                failure = error
            if done == tries or not may_pass(failure):
                break
            await asyncio.sleep(pause_s(done))
        often = "tried once" if done == 1 else f"tried {done} times in {time.monotonic() - began:.0f} s"
        return FetchError.of(url, f"{self._reason(failure)}; {often}", _status(failure) == HTTPStatus.NOT_FOUND)

    def _reason(self, error: Exception) -> str:
        status = _status(error)
        if status is not None:
            known = status in set(HTTPStatus)
            said = f"HTTP status {status}{f' ({HTTPStatus(status).phrase})' if known else ''}"
            # What an object store says is of use; others repeat the status.
            return f"{said}: {error}" if isinstance(error.__cause__, Exception) and _response(error.__cause__) else said
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
            return f"no answer within {self._config.timeout_s:g} s"
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def pause_s(tries: int) -> float:
    """How long to wait after so many tries."""
    longest = min(PAUSE_S * 2 ** (tries - 1), LONGEST_PAUSE_S)
    return longest * random.uniform(0.5, 1)


def may_pass(error: Exception) -> bool:
    """Whether a request that failed so may succeed when it is repeated."""
    status = _status(error)
    if status is not None:
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in MAY_PASS
    if isinstance(error, ValueError):  # a URL, or a certificate, that is none
        return False
    lost = LOST & {kind.__name__ for kind in type(error).__mro__}
    return bool(lost) or isinstance(error, (OSError, asyncio.TimeoutError))


def _status(error: Exception) -> int | None:
    """The HTTP status that is behind an error, None where none is."""
    for each in (error, error.__cause__):
        # aiohttp's, gcsfs's, botocore's.
        for status in (getattr(each, "status", None) or getattr(each, "code", None), _response(each)):
            if isinstance(status, int):
                return status
    if isinstance(error, FileNotFoundError):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.FORBIDDEN if isinstance(error, PermissionError) else None


def _response(error: BaseException | None) -> int | None:
    response = getattr(error, "response", None)
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None


def _is_missing(found: object) -> bool:
    return isinstance(found, FetchError) and found.missing


def _file_system(scheme: str, config: Remote) -> Any:
    """fsspec's file system for a scheme, which makes as many requests at once as it is asked to, each once."""
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(
            f"the filelist has {scheme}:// URLs, for which a package is missing ({error}): pip install 'tfpipe[remote]'"
        ) from error
    options = dict(config.options)
    if scheme in ("http", "https"):
        options.setdefault("get_client", _http_client)
    try:
        if scheme == "s3":
            pool = {"max_pool_connections": config.concurrency, "retries": {"max_attempts": 0}}
            options["config_kwargs"] = pool | options.get("config_kwargs", {})
            # More would ask for each file's size first.
            options["max_concurrency"] = 1
        system = kind(asynchronous=True, skip_instance_cache=True, use_listings_cache=False, **options)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"data.remote.options: {scheme}:// cannot be used with these: {error}") from error
    if scheme == "s3":
        system.retries = 1
    return system


async def _http_client(**options: Any) -> Any:
    import aiohttp

    # Without a limit of its own.
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), **options)


async def _close(systems: Iterable[Any]) -> None:
    for system in systems:
        client = getattr(system, "_session", None) or getattr(system, "_s3", None)
        if client is not None:
            await client.close()
