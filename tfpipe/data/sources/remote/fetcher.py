"""Fetches URLs by libcurl or fsspec, many at once; retries requests whose failure may be temporary."""

import asyncio
import atexit
import random
import threading
import time
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from http import HTTPStatus
from typing import Any

from tfpipe.config import Remote
from tfpipe.data.catalog.layout import is_optional
from tfpipe.data.sources.remote.cache import Cache
from tfpipe.data.sources.remote.file_systems import (
    VERSIONS,
    ByteRange,
    check_version,
    ends_early,
    event_loop,
    open_file_system,
)
from tfpipe.data.sources.remote.http_client import HttpClient
from tfpipe.data.sources.remote.objects import S3Objects, open_client
from tfpipe.data.sources.remote.request_errors import may_pass, reason, status_of
from tfpipe.errors import TfpipeError
from tfpipe.util.files import Stamp
from tfpipe.util.forks import per_process, unless_forked

# Seconds before the first retry. Each further pause is twice as long, at most 60 s, and is shortened at random by up to
# a half, so that requests that failed together are not repeated together. Eight pauses take at least 32 s.
PAUSE_S = 0.25
LONGEST_PAUSE_S = 60.0
HTTP, WEB = ("http://", "https://"), {"http", "https"}
# Start of a FetchError's message, "cannot fetch URL: REASON".
CANNOT_FETCH = "cannot fetch "
# Seconds after which the version of a file that is read by parts is asked for again, if answers do not state it.
LOOK_S = 60.0


class FetchError(TfpipeError):
    """A URL that cannot be fetched; the message has the URL, the status or reason, and the number of tries."""

    missing = False
    """True if the server says that the file does not exist."""

    @classmethod
    def of(cls, url: str, reason: str, missing: bool = False) -> "FetchError":
        """Makes the error of a URL. The constructor takes the message alone, so that ranks can pickle the error."""
        error = cls(f"{CANNOT_FETCH}{url}: {reason}")
        error.missing = missing
        return error


class Fetcher:
    """A thread-safe client for URLs; at most `data.remote.concurrency` requests of all its callers run at once.

    libcurl makes those over HTTP and for objects of S3, in a thread that ends with this object or the process; fsspec
    all others.
    """

    def __init__(self, config: Remote, urls: Iterable[str]) -> None:
        """Opens a file system for each scheme among `urls`, which may be URLs of files or folders.

        Raises ConfigError if a package is missing, or `data.remote.options` or the cache's folder cannot be used.
        """
        self.config = config
        self._turns = asyncio.Semaphore(config.concurrency)
        self._look_s: dict[str, float] = {}  # when to ask for a file's version again, by time.monotonic
        schemes = sorted({url.partition("://")[0] for url in urls})
        self._systems = {scheme: open_file_system(scheme, config) for scheme in schemes if scheme not in WEB}
        self._cache = None if config.cache is None else Cache(config)
        self._http = None if WEB.isdisjoint(schemes) else HttpClient(config)
        self._objects: S3Objects | None = None
        if self._http is None and "s3" in self._systems:
            self._http, self._objects = open_client(config), S3Objects(self._systems["s3"])
        self._closing, self._pending = threading.Event(), set[Future[Any]]()
        self.close = unless_forked(partial(_close, self._closing, self._pending, self._http))
        """Cancels the requests in flight; later requests fail."""
        close = weakref.finalize(self, self.close)
        # By atexit, whose order is known, not by weakref: requests must be cancelled before pipelines are closed
        # (shutdown.py), which would wait for them.
        close.atexit = False
        atexit.register(close)

    def fetch(self, urls: Sequence[str]) -> list[bytes | FetchError | None]:
        """Returns each URL's content or error; None for the URL "" and for a missing file that is optional."""
        contents: dict[str, Any] = {url: self._cache.find(url) for url in urls} if self._cache else {}
        missing = [url for url in dict.fromkeys(urls) if url and contents.get(url) is None]
        fetched = dict(zip(missing, self._data(list(map(ByteRange, missing))), strict=True))
        for url, data in fetched.items():
            if is_optional(url) and isinstance(data, FetchError) and data.missing:
                fetched[url] = b""
        if self._cache:
            self._cache.keep({url: data for url, data in fetched.items() if isinstance(data, bytes)})
        contents.update(fetched)
        # As in the cache, b"" stands for an optional file that does not exist.
        return [contents[url] if url and not (is_optional(url) and contents[url] == b"") else None for url in urls]

    def starts(self, urls: Sequence[str], count: int) -> list[bytes | FetchError]:
        """Returns the first `count` bytes of each URL's content, fewer if it is shorter, or the error."""
        return self._data([ByteRange(url, 0, count, exact=False) for url in urls])

    def stamps(self, urls: Sequence[str]) -> list[Stamp | FetchError]:
        """Returns each URL's size in bytes and its ETag or time of change, as far as stated, or the error."""
        return self._data([ByteRange(url, 0, 1, exact=False, what="stamp") for url in urls])

    def listings(self, folders: Sequence[str]) -> list[list[tuple[str, bool]]]:
        """Returns the base names in each folder of an object store, and whether each is a folder; [] if there is none.

        Raises FetchError if a folder cannot be listed.
        """
        results = self._data([ByteRange(url, what="names") for url in folders])
        for result in results:
            if isinstance(result, FetchError) and not result.missing:
                raise result
        return [[] if isinstance(result, FetchError) else result for result in results]

    def ranges(self, byte_ranges: Sequence[ByteRange]) -> list[bytes | FetchError]:
        """Returns the bytes of each range, or the error, also if the file has another version; none is cached.

        Each answer over HTTP states the version. Other file systems are asked for it every LOOK_S.
        """
        return self._data(byte_ranges)

    async def _look_at(self, url: str, stamp: Stamp) -> None:
        """Raises ValueError if a file has another version than `stamp`; asks for it if the last time is LOOK_S ago."""
        if time.monotonic() >= self._look_s.get(url, 0):
            # Until it is known, each request asks: none takes bytes of a version that another one is about to refuse.
            now = await self._stamp(url)
            check_version([] if now.changed is None else [str(now.changed)], now.size, stamp)
            self._look_s[url] = time.monotonic() + LOOK_S

    async def _stamp(self, url: str) -> Stamp:
        info = {name.lower(): value for name, value in (await self._system(url)._info(url)).items()}
        return Stamp(info.get("size"), next((str(info[name]) for name in VERSIONS if info.get(name)), None))

    async def _names(self, url: str) -> list[tuple[str, bool]]:
        system = self._system(url)
        folder = system._strip_protocol(url).rstrip("/")  # stores may list the folder itself as an empty object
        entries = await system._ls(url.rstrip("/"), detail=True)
        pairs = ((entry["name"].rstrip("/"), entry["type"] == "directory") for entry in entries)
        return [(name.rpartition("/")[2], is_folder) for name, is_folder in pairs if name != folder]

    async def _contents(self, request: ByteRange) -> Any:
        """Returns the bytes, the stamp or the names that a request asks fsspec for."""
        url, start, end, stamp, exact, *_ = request
        if request.what != "bytes":
            return await (self._stamp(url) if request.what == "stamp" else self._names(url))
        system = self._system(url)
        try:
            data = await (system._cat_file(url) if end is None else system._cat_file(url, start=start, end=end))
        except Exception as error:
            if not exact and status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # an empty file
                return b""
            raise
        if end is not None and exact and len(data) != end - start:
            raise ends_early(start + len(data), end)
        if stamp is not None:
            await self._look_at(url, stamp)
        return data

    def _system(self, url: str) -> Any:
        return self._systems[url.partition("://")[0]]

    def _data(self, requests: Sequence[ByteRange]) -> list[Any]:
        """Returns what each request asks for, or the error; those whose failure may pass are repeated together."""
        began_s, done, pending = time.monotonic(), 0, list(range(len(requests)))
        results: list[Any] = [None] * len(requests)
        try:
            while pending:
                if done and self._closing.wait(pause_s(done)):
                    raise CancelledError
                again = [requests[number]._replace(fresh=True) for number in pending] if done else requests
                for number, answer in zip(pending, self._try_once(again), strict=True):
                    results[number] = answer
                done += 1
                failed = [number for number in pending if isinstance(results[number], Exception)]
                pending = [number for number in failed if done <= self.config.retries and may_pass(results[number])]
                for number in set(failed).difference(pending):
                    results[number] = self._error(results[number], requests[number].url, done, began_s)
        except CancelledError:
            return [FetchError.of(request.url, "the process is ending") for request in requests]
        return results

    def _try_once(self, requests: Sequence[ByteRange]) -> list[Any]:
        """Makes requests once, together; raises CancelledError if the client is closed, or was closed meanwhile."""
        if self._http is not None and not self._systems:
            return self._http.submit(requests).result()
        results = self._by_libcurl(requests)
        # s3fs may get what libcurl did not, e.g. from another region, or tells the store's reason.
        again = () if self._objects is None else (Exception,)
        others = [at for at, got in enumerate(results) if got is None or (isinstance(got, again) and not may_pass(got))]
        answers = self._in_loop(self._together([requests[number] for number in others])) if others else []
        for number, answer in zip(others, answers, strict=True):
            if self._objects is not None and results[number] is not None and not isinstance(answer, Exception):
                self._objects.learn(requests[number].url, results[number])
            results[number] = answer
        return results

    def _by_libcurl(self, requests: Sequence[ByteRange]) -> list[Any]:
        """Returns the results of those requests that libcurl makes, None for the others."""
        results: list[Any] = [None] * len(requests)
        if self._http is None:
            return results
        made: Sequence[ByteRange | None] = [each if each.url.startswith(HTTP) else None for each in requests]
        if self._objects is not None:
            made = self._in_loop(self._objects.over_http(requests))
        asked = {number: request for number, request in enumerate(made) if request is not None}
        for number, result in zip(asked, self._http.submit(list(asked.values())).result(), strict=True):
            results[number] = result
            if self._objects is not None and not isinstance(result, Exception):
                self._objects.learn(requests[number].url, None)
        return results

    def _in_loop(self, work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        future = asyncio.run_coroutine_threadsafe(work, event_loop())
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._closing.is_set():
            future.cancel()
        return future.result()

    async def _together(self, requests: Sequence[ByteRange]) -> list[Any]:
        async def limited(request: ByteRange) -> Any:
            async with self._turns:
                return await asyncio.wait_for(self._contents(request), self.config.timeout_s)

        return await asyncio.gather(*map(limited, requests), return_exceptions=True)

    def _error(self, failure: Exception, url: str, done: int, began_s: float) -> FetchError:
        effort = "tried once" if done == 1 else f"tried {done} times in {time.monotonic() - began_s:.0f} s"
        why = f"{reason(failure, self.config.timeout_s)}; {effort}"
        return FetchError.of(url, why, status_of(failure) == HTTPStatus.NOT_FOUND)


def _close(closing: threading.Event, pending: Iterable[Future[Any]], client: HttpClient | None) -> None:
    closing.set()
    for future in [*pending]:
        future.cancel()
    if client is not None:
        client.close()


def pause_s(tries: int) -> float:
    """Returns the seconds to wait after `tries` failed tries, partly random."""
    longest = min(PAUSE_S * 2 ** (tries - 1), LONGEST_PAUSE_S)
    return longest * random.SystemRandom().uniform(0.5, 1)  # the seeded generator is the user's


def shared_fetcher(config: Remote, folders: Iterable[str]) -> Fetcher:
    """Returns this process's Fetcher for URLs in these folders; equal settings and schemes share its connections.

    Raises ConfigError as Fetcher does.
    """
    from tfpipe.data.runtime.shutdown import register_exit

    # Exit handlers run in reverse order: the fetcher must close before iterators, which would wait for its requests.
    register_exit()
    schemes = sorted({folder.partition("://")[0] for folder in folders})
    return _fetcher(config.model_dump_json(), tuple(schemes))


# TensorFlow never releases a Python function or what it references: a Fetcher per pipeline would leak its thread.
@per_process
def _fetcher(config: str, schemes: tuple[str, ...]) -> Fetcher:
    return Fetcher(Remote.model_validate_json(config), [f"{scheme}://" for scheme in schemes])
