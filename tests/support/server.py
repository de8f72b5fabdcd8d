"""A web server that is slow, fails and goes away as told."""

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web


class Server:
    """Serves a folder, with a latency, from a thread of its own."""

    def __init__(self, root: Path, latency_s: float = 0.0) -> None:
        self.root, self.latency_s = root, latency_s
        self.asked: Counter[str] = Counter()
        """Requests by path, failed ones too."""
        self.received: Mapping[str, str] = {}
        """The headers of the latest request."""
        self.fail: Callable[[str], int | None] = lambda path: None
        """Maps a path to the status that a request ends with, 0 to drop the connection, None to answer it."""
        self.answers: int | None = None
        """Requests that are answered at all; the others wait until the server stops."""
        self.breaks: Callable[[str], str] = lambda path: ""
        """Maps a path to "length" or "chunks" for a body that is announced so and breaks off halfway, "garbage" for an
        answer that is no HTTP, "" for a whole one."""
        self.headers: dict[str, str] = {}
        """Headers of the answers."""
        self.endless = False
        """A file is followed by zeros, until the client goes."""
        self.ranges = False
        """Ranges are answered; otherwise they are ignored."""
        self.sent = 0
        """Bytes of the answers."""
        self.together = 0
        """Requests that must be under way at once before any of them is answered."""
        self.most = 0
        """Requests that were under way at once."""
        self._under_way = 0
        # Keeps the port while no process listens.
        self._reserved = self._socket()
        self._reserved.bind(("127.0.0.1", 0))
        self.port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        self._do(self._stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    def fail_some(self, share: float, seed: int = 0) -> None:
        """Half of the failures are a status, half a lost connection. A path fails at most three times in a row."""
        rng, row = random.Random(seed), Counter()

        def fail(path: str) -> int | None:
            row[path] = row[path] + 1 if rng.random() < share and row[path] < 3 else 0
            return (503 if rng.random() < 0.5 else 0) if row[path] else None

        self.fail = fail

    def _do(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _socket(self) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return made

    async def _stop(self) -> None:
        self._stopping.set()
        await self._runner.cleanup()

    async def _start(self) -> None:
        self._stopping, self._all_there = asyncio.Event(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)  # HEAD too
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        listening = self._socket()
        listening.bind(("127.0.0.1", self.port))
        await web.SockSite(self._runner, listening, backlog=512).start()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        self.asked[path] += 1
        self.received = request.headers
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        if self._under_way >= self.together:
            self._all_there.set()
        try:
            await self._all_there.wait()
            silent = self.answers is not None and self.asked.total() > self.answers
            await asyncio.wait_for(self._stopping.wait(), None if silent else self.latency_s)
        except asyncio.TimeoutError:
            pass
        finally:
            self._under_way -= 1
        status = 0 if self._stopping.is_set() else self.fail(path)
        if status == 0:
            if request.transport is not None:  # the client has not gone by itself
                request.transport.abort()
            return web.Response()
        if status is not None:
            return web.Response(status=status, headers=self.headers)
        file = self.root / path
        if self.breaks(path):
            return await self._broken(request, file.read_bytes(), self.breaks(path))
        if not file.is_file():
            return web.Response(status=404)
        if not self.endless:
            body, part = file.read_bytes(), request.http_range if self.ranges else slice(None)
            status = 200 if part == slice(None, None, 1) or not self.ranges else 206
            self.sent += len(body[part])
            first, end, _ = part.indices(len(body))
            own = {"Content-Range": f"bytes {first}-{end - 1}/{len(body)}"} if status == 206 else {}
            return web.Response(status=status, body=body[part], headers=own | self.headers)
        response = web.StreamResponse(headers=self.headers)
        await response.prepare(request)
        await response.write(file.read_bytes())
        while not self._stopping.is_set():
            await response.write(bytes(2**16))
        return response

    async def _broken(self, request: web.Request, body: bytes, how: str) -> web.StreamResponse:
        head = {"length": f"Content-Length: {len(body)}", "chunks": "Transfer-Encoding: chunked"}
        half = body[: len(body) // 2]
        if how == "chunks":
            half = f"{len(half):x}\r\n".encode() + half + b"\r\n"
        start = (
            b"no HTTP at all\r\n\r\n" if how == "garbage" else f"HTTP/1.1 200 OK\r\n{head[how]}\r\n\r\n".encode() + half
        )
        assert request.transport is not None
        request.transport.write(start)
        request.transport.close()
        return web.Response()


@contextmanager
def serving(root: Path, latency_s: float = 0.0) -> Iterator[Server]:
    server = Server(root, latency_s)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def versioned(root: Path) -> Iterator[Server]:
    """Serves the folder by ranges, with an ETag, as object stores do, until the block ends."""
    with serving(root) as server:
        server.ranges, server.headers = True, {"ETag": '"1"'}
        yield server
