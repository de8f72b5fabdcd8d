"""An HTTP client for many requests at once: libcurl, whose requests take a fraction of the CPU time of Python's."""

import os
import re
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from tfpipe.config import Remote
from tfpipe.data.sources.remote import file_systems
from tfpipe.data.sources.remote.file_systems import VERSIONS, ByteRange, TooLong, check_part, ends_early
from tfpipe.data.sources.remote.request_errors import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientPayloadError,
    ServerDisconnectedError,
    StatusError,
)
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp
from tfpipe.util.process import own_symbols

REDIRECTS, NOWHERE, MOVED = 10, "about:", (b"301", b"302", b"303", b"307", b"308")
# URLs that need no quoting.
PLAIN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/[A-Za-z0-9/._~?&=+,-]*")
# Characters that are left as they are in others; a percent sign, if it does not begin an escape, is none.
SAFE, PERCENT = "%:/?#[]@!$&'()*+,;=~", re.compile("%(?![0-9A-Fa-f]{2})")

Result = bytes | Stamp | Exception


class _Batch:
    """Requests of one call, and their results as far as they have come."""

    def __init__(self, requests: Sequence[ByteRange]) -> None:
        self.requests, self.future = requests, Future[list[Any]]()
        self._results: list[Result | None] = [None] * len(requests)
        self._missing = len(requests)

    def add(self, number: int, result: Result) -> None:
        """Stores a result; the last one ends the wait for them, unless it was given up."""
        self._results[number] = result
        self._missing -= 1
        if not self._missing and self.future.set_running_or_notify_cancel():
            self.future.set_result(self._results)


class _Transfer:
    """A handle of libcurl, and the response that it receives."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.request, self.batch, self.number, self.hops = ByteRange(""), _Batch(()), 0, 0
        self._chunks: list[bytes] = []
        self._headers: dict[str, str] = {}
        self._size = self._most = 0
        self._moved = False  # whether the body is that of a redirection, which is nothing that was asked for

    def start(self, batch: _Batch, number: int) -> None:
        """Takes the request `number` of a batch."""
        self.batch, self.number, self.hops = batch, number, 0
        self._ask(batch.requests[number])

    def follow(self, url: str) -> None:
        """Asks for the same at another URL, as the server says."""
        self.hops += 1
        self._ask(self.request._replace(url=url))

    def _ask(self, request: ByteRange) -> None:
        self.request, self._chunks, self._size = request, [], 0
        self._most = file_systems.MAX_BYTES if request.end is None else request.end - request.start
        self._headers, self._moved = {}, False

    def write(self, chunk: bytes) -> int | None:
        """Takes a part of the response; returns another number than its length if there is more than was asked for."""
        if self._moved:
            return None
        self._chunks.append(chunk)
        self._size += len(chunk)
        return None if self._size <= self._most else -1

    def add_header(self, line: bytes) -> None:
        """Takes a line of a response's head; a new head, after a redirection, takes the place of the one before."""
        name, _, value = line.decode("latin-1").partition(":")
        if line.startswith(b"HTTP/"):
            self._headers, self._moved = {}, line.partition(b" ")[2][:3] in MOVED
        elif name.lower() in ("location", *file_systems.OF_PARTS):
            self._headers[name.lower()] = value.strip()

    @property
    def target(self) -> str | None:
        """The URL to which the server sends the request on; None if it does not, or to none of HTTP."""
        try:
            url = urljoin(self.request.url, self._headers.get("location", NOWHERE)) if self._moved else NOWHERE
        except ValueError:  # no URL
            return None
        return url if url.startswith(("http://", "https://")) else None

    def result(self, status: int, failure: Exception | None) -> Result:
        """Returns the content, or the error, once libcurl has ended with `failure`."""
        _, start, end, stamp, exact, *_ = self.request
        is_cut = self._size > self._most
        if failure is not None and not is_cut:
            return failure
        # A part is an answer only to a request for one; other successes, e.g. 202, have no file yet.
        answers = {HTTPStatus.OK} if end is None else {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}
        if status not in answers and (exact or status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
            return StatusError(status)
        if self.request.what == "stamp":
            return self._stamp(status)
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # an empty file
            return b""
        if end is not None and exact and status != HTTPStatus.PARTIAL_CONTENT:
            return ValueError("the server ignores ranges, by which parts of large files are read: copy them first")
        if end is None and is_cut:
            return TooLong(f"the response has more than {file_systems.MAX_BYTES / 1e6:.0f} MB")
        if end is not None and status == HTTPStatus.PARTIAL_CONTENT:
            try:
                check_part(self._headers, start, end, stamp)
            except ValueError as error:
                return error
        data = b"".join(self._chunks)[: self._most]
        return ends_early(start + len(data), end) if end is not None and exact and start + len(data) != end else data

    def _stamp(self, status: int) -> Stamp:
        """Returns the size of the file and its ETag or time of change, as far as the answer states them."""
        sent = "0" if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE else self._headers.get("content-length", "")
        size = self._headers.get("content-range", f"/{sent}").rpartition("/")[2]
        version = next((self._headers[name] for name in VERSIONS if name in self._headers), None)
        return Stamp(int(size) if size.isdecimal() else None, version)


class HttpClient:
    """A thread that makes HTTP requests, at most `data.remote.concurrency` at once; each is tried once.

    It starts with the first request. Connections stay open.
    """

    def __init__(self, config: Remote, *, objects: bool = False) -> None:
        """Opens no connection; raises ConfigError if pycurl is missing, or `data.remote.options` cannot be used.

        `objects` is whether it is for signed requests to an object store, which follow no redirection.
        """
        self._curl, self._objects = _import_curl(), objects
        self._options, self._proxies = _options(self._curl, config, objects=objects)
        self._headers = _headers(config)  # which only the origins of the URLs get
        self._lock, self._closed = threading.Lock(), False
        self._waiting: deque[tuple[_Batch, int]] = deque()
        self._running: dict[Any, _Transfer] = {}  # by their handles
        try:
            self._idle = [self._new_transfer()]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"data.remote.options: http:// cannot be used with these: {error}") from error
        self._limit = config.concurrency
        self._watched: set[int] = set()  # files of connections
        self._due_s: float | None = None  # when libcurl wants to be called, by time.monotonic
        self._thread: threading.Thread | None = None
        self._wake = -1

    def submit(self, requests: Sequence[ByteRange]) -> Future[list[Any]]:
        """Makes requests; the future has their results, and is cancelled if the client is closed, or will be."""
        batch = _Batch(requests)
        with self._lock:
            if self._closed:
                batch.future.cancel()
            elif not requests:
                batch.future.set_result([])
            else:
                self._waiting.extend((batch, number) for number in range(len(requests)))
                if self._thread is None:
                    self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                    self._thread = threading.Thread(target=self._work, name="tfpipe-http", daemon=True)
                    self._thread.start()
                os.eventfd_write(self._wake, 1)
        return batch.future

    def close(self) -> None:
        """Gives up the requests in flight and ends the thread."""
        with self._lock:
            thread, self._closed = None if self._closed else self._thread, True
            if thread is not None:
                os.eventfd_write(self._wake, 1)
        if thread is not None and threading.current_thread() is not thread:
            thread.join()

    def _work(self) -> None:
        multi, self._epoll = self._curl.CurlMulti(), select.epoll()
        multi.setopt(self._curl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(self._curl.M_TIMERFUNCTION, self._set_timer)
        multi.setopt(self._curl.M_MAXCONNECTS, self._limit)
        self._epoll.register(self._wake, select.EPOLLIN)
        try:
            while not self._closed:
                self._start_waiting(multi)
                self._step(multi)
                self._collect(multi)
        finally:
            self._end(multi)

    def _step(self, multi: Any) -> None:
        """Waits for events of connections, or until libcurl's time has come, and lets it work."""
        pause_s = None if self._due_s is None else max(self._due_s - time.monotonic(), 0)
        for file, events in self._epoll.poll(pause_s):
            if file == self._wake:
                os.eventfd_read(file)
            else:
                multi.socket_action(file, self._flags(events))
        if self._due_s is not None and self._due_s <= time.monotonic():
            self._due_s = None
            multi.socket_action(self._curl.SOCKET_TIMEOUT, 0)

    def _start_waiting(self, multi: Any) -> None:
        while self._waiting and len(self._running) < self._limit:
            batch, number = self._waiting.popleft()
            transfer = self._idle.pop() if self._idle else self._new_transfer()
            transfer.start(batch, number)
            self._begin(multi, transfer)

    def _begin(self, multi: Any, transfer: _Transfer) -> None:
        try:
            self._prepare(transfer)
        except Exception as error:  # the quoting's or libcurl's about the URL
            self._idle.append(transfer)
            transfer.batch.add(transfer.number, error if isinstance(error, ValueError) else ValueError(str(error)))
            return
        self._running[transfer.handle] = transfer
        multi.add_handle(transfer.handle)

    def _prepare(self, transfer: _Transfer) -> None:
        handle, request = transfer.handle, transfer.request
        url, start, end, *_ = request
        if request.what == "names":
            raise ValueError("web servers list no folders")
        handle.setopt(self._curl.URL, url if PLAIN.fullmatch(url) else quote(PERCENT.sub("%25", url), SAFE))
        if self._proxies is not None:
            parts = urlsplit(url)
            # Python reads a port in no_proxy, libcurl ranges of addresses.
            is_near = proxy_bypass(parts.netloc.rpartition("@")[2], self._proxies)
            handle.setopt(self._curl.PROXY, "" if is_near else self._proxies.get(parts.scheme, ""))
        if end is None:
            handle.unsetopt(self._curl.RANGE)
        else:
            handle.setopt(self._curl.RANGE, f"{start}-{end - 1}")
        handle.setopt(self._curl.FRESH_CONNECT, request.fresh)
        if self._headers:
            if _origin(url) == _origin(transfer.batch.requests[transfer.number].url):
                handle.setopt(self._curl.HTTPHEADER, self._headers)
            else:
                handle.unsetopt(self._curl.HTTPHEADER)  # an empty list would leave them
        for name, value in request.signing:
            handle.setopt(getattr(self._curl, name), value)

    def _new_transfer(self) -> _Transfer:
        handle = self._curl.Curl()
        transfer = _Transfer(handle)
        for option, value in self._options.items():
            handle.setopt(option, value)
        handle.setopt(self._curl.HTTPHEADER, self._headers)
        handle.setopt(self._curl.WRITEFUNCTION, transfer.write)
        handle.setopt(self._curl.HEADERFUNCTION, transfer.add_header)
        return transfer

    def _collect(self, multi: Any) -> None:
        """Hands over the results of requests that have ended."""
        more = 1
        while more:
            more, ended, failed = multi.info_read()
            for handle, *failure in [*((handle,) for handle in ended), *failed]:
                transfer = self._running.pop(handle)
                multi.remove_handle(handle)
                error = _error(self._curl, *failure) if failure else None
                if transfer.target and not self._objects:
                    if transfer.hops < REDIRECTS:
                        transfer.follow(transfer.target)
                        self._begin(multi, transfer)
                        continue
                    error = ValueError(f"{REDIRECTS} redirects followed")
                result = transfer.result(handle.getinfo(self._curl.RESPONSE_CODE), error)
                self._idle.append(transfer)
                transfer.batch.add(transfer.number, result)

    def _watch(self, what: int, file: int, _multi: Any, _data: Any) -> None:
        """Called by libcurl: says which events of a connection it waits for."""
        if what == self._curl.POLL_REMOVE:
            self._watched.discard(file)
            self._epoll.unregister(file)
            return
        events = select.EPOLLIN if what & self._curl.POLL_IN else 0
        events |= select.EPOLLOUT if what & self._curl.POLL_OUT else 0
        if file in self._watched:
            self._epoll.modify(file, events)
        else:
            self._watched.add(file)
            self._epoll.register(file, events)

    def _flags(self, events: int) -> int:
        flags = self._curl.CSELECT_IN if events & select.EPOLLIN else 0
        flags |= self._curl.CSELECT_OUT if events & select.EPOLLOUT else 0
        return flags | (self._curl.CSELECT_ERR if events & (select.EPOLLERR | select.EPOLLHUP) else 0)

    def _set_timer(self, pause_ms: int) -> None:
        """Called by libcurl: says when to call it though nothing happens; -1 is never."""
        self._due_s = None if pause_ms < 0 else time.monotonic() + pause_ms / 1000

    def _end(self, multi: Any) -> None:
        """Ends all batches without results, and closes the connections."""
        with self._lock:  # no batch comes after it
            self._closed = True
            os.close(self._wake)
        for handle in self._running:
            multi.remove_handle(handle)
        multi.close()
        self._epoll.close()
        for batch in {*(transfer.batch for transfer in self._running.values()), *(batch for batch, _ in self._waiting)}:
            batch.future.cancel()


def _import_curl() -> Any:
    """Imports pycurl so that it uses its own libcurl and OpenSSL: TensorFlow exports others under the same names."""
    try:
        with own_symbols():
            import pycurl
    except ImportError as error:
        raise ConfigError(
            f"http:// and https:// URLs need a package that is missing ({error}): pip install 'tfpipe[remote]'"
        ) from error
    return pycurl


def _headers(config: Remote) -> list[bytes]:
    headers = {**config.options.get("client_kwargs", {}).get("headers", {}), **config.options.get("headers", {})}
    # A semicolon ends a header without a value.
    return [(f"{name}: {value}" if value else f"{name};").encode() for name, value in headers.items()]


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Returns scheme, host and port of a URL; raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _options(curl: Any, config: Remote, *, objects: bool) -> tuple[dict[int, Any], dict[str, str] | None]:
    """Returns libcurl's options for all requests, and the proxies by scheme; None for no proxies.

    Those of `objects` have the environment's proxies and certificates, but no password of a file. Raises ConfigError if
    `data.remote.options` has another option than libcurl serves.
    """
    about = config.options.get("client_kwargs", {})
    other = [*(config.options.keys() - {"headers", "client_kwargs"}), *(about.keys() - {"headers", "trust_env"})]
    if other:
        raise ConfigError(
            f'data.remote.options: received "{other[0]}"; accepted for http:// and https://: headers, and in '
            "client_kwargs headers and trust_env"
        )
    trusted, bundle = ssl.get_default_verify_paths(), os.environ.get("AWS_CA_BUNDLE") if objects else None
    options: dict[int, Any] = {
        curl.NOSIGNAL: 1,
        curl.FOLLOWLOCATION: 0,  # the client itself follows, and takes no header to another origin
        curl.COOKIEFILE: "",  # cookies are sent back, and no file is read
        curl.PROTOCOLS: curl.PROTO_HTTP | curl.PROTO_HTTPS,
        # Each request has its connection: of HTTP/2, all would share one.
        curl.HTTP_VERSION: curl.CURL_HTTP_VERSION_1_1,
        curl.TIMEOUT_MS: max(round(config.timeout_s * 1000), 1),
        # The bytes as they are stored, whatever encoding is stated.
        curl.ACCEPT_ENCODING: "identity",
        curl.HTTP_CONTENT_DECODING: 0,
        curl.PROXY: "",  # without, libcurl takes it from the environment
    }
    files: dict[int, str | None] = {curl.CAINFO: bundle or trusted.cafile, curl.CAPATH: trusted.capath}
    proxies = getproxies() if objects or about.get("trust_env") else None
    if proxies is not None:
        files[curl.NOPROXY] = proxies.get("no")
        if not objects:
            options[curl.NETRC], files[curl.NETRC_FILE] = curl.NETRC_OPTIONAL, os.environ.get("NETRC")
    return options | {name: path for name, path in files.items() if path}, proxies


def _error(curl: Any, code: int, text: str) -> Exception:
    """Returns the error for one of libcurl's; a ValueError if the request would fail again."""
    if code == curl.E_OPERATION_TIMEDOUT:
        return TimeoutError()
    no_host = (curl.E_COULDNT_RESOLVE_PROXY, curl.E_COULDNT_RESOLVE_HOST)
    if code in (*no_host, curl.E_COULDNT_CONNECT, curl.E_SSL_CONNECT_ERROR):
        return ClientConnectorError(text)
    if code in (curl.E_PEER_FAILED_VERIFICATION, curl.E_SSL_CACERT_BADFILE):
        return ClientConnectorCertificateError(text)
    if code in (curl.E_GOT_NOTHING, curl.E_SEND_ERROR, curl.E_RECV_ERROR):
        return ServerDisconnectedError(text)
    return ValueError(text) if code == curl.E_URL_MALFORMAT else ClientPayloadError(text)
