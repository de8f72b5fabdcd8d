"""CPU time of small files behind HTTP, by client: tfpipe's, and others at their best.

    pip install obstore urllib3 s3fs && apt-get install nginx-light
    python profiles/remote.py --kb 10 100

nginx serves random files to this process, under their names and as objects of a bucket; it has the last CPU and the
clients the first. Each turn fetches all files once by each client, in calls of 32 URLs from 4 threads, as the pipeline
does. Printed are medians: microseconds of this process's CPU time a file, and files/s; and the ratio of the CPU times
turn by turn to those of aiohttp alone.
Clients that are not installed are left out.
"""

import argparse
import asyncio
import atexit
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from needs import lacking, need_programs

THREADS, BATCH = 4, 32
CONFIG = """
worker_processes 1; daemon off; pid {0}/pid; error_log {0}/log; events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; open_file_cache max=10000;
  server {{ listen 127.0.0.1:{1}; root {0}/files; location /bucket/ {{ alias {0}/files/; }} }} }}
"""
BUCKET = "s3://bucket"
Fetch = Callable[[Sequence[str]], Sequence[bytes]]


@contextmanager
def served(files: int, size: int, cpu: int) -> Iterator[str]:
    """Yields the address of nginx, which serves random files with the names 0, 1, 2 ... from a CPU."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "files").mkdir()
        for number in range(files):
            (root / f"files/{number}").write_bytes(os.urandom(size))
        (root / "conf").write_text(CONFIG.format(root, port))
        server = subprocess.Popen(["taskset", "-c", str(cpu), "nginx", "-c", str(root / "conf")])
        try:
            wait_for(server, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Waits until a server takes connections; raises SystemExit if it ends before."""
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit(f"nginx has ended with {server.returncode}")


def fetchers(size: int, address: str) -> dict[str, Fetch]:
    """Returns tfpipe's ways, of whole files and of ranges, and of objects if s3fs is installed."""
    from tfpipe.config import Remote
    from tfpipe.data.sources.remote.fetcher import ByteRange, Fetcher

    client = Fetcher(Remote(), ["http://"])
    ranges = lambda urls: client.ranges([ByteRange(url, 0, size) for url in urls])  # noqa: E731
    ways = {"tfpipe": client.fetch, "tfpipe, ranges": ranges}
    if not lacking(sys.executable, {"s3fs"}):
        objects = Fetcher(Remote(options={"endpoint_url": address, "key": "a", "secret": "b"}), [BUCKET])
        ways["tfpipe, S3"] = lambda urls: objects.fetch([f"{BUCKET}/{url.rpartition('/')[2]}" for url in urls])
    return ways


def in_loop(address: str) -> dict[str, Fetch]:
    """Returns the ways of clients with asyncio: all in one loop, in a thread of its own."""
    import aiohttp
    import fsspec

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def together(get: Callable) -> Fetch:
        async def all_of(urls: Sequence[str]) -> list[bytes]:
            return await asyncio.gather(*map(get, urls))

        return lambda urls: asyncio.run_coroutine_threadsafe(all_of(urls), loop).result()

    async def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64))

    client = asyncio.run_coroutine_threadsafe(session(), loop).result()

    async def end() -> None:
        await client.close()
        await (await system.set_session()).close()

    system = fsspec.filesystem("http", asynchronous=True, loop=loop, skip_instance_cache=True)
    atexit.register(lambda: asyncio.run_coroutine_threadsafe(end(), loop).result())
    stores = obstores_at(address)

    async def by_aiohttp(url: str) -> bytes:
        async with client.get(url) as response:
            return await response.read()

    async def by_obstore(store: Any, url: str) -> bytes:
        return bytes(await (await store.get_async(url.rpartition("/")[2])).bytes_async())

    ways = {"fsspec": together(system._cat_file), "aiohttp": together(by_aiohttp)}
    return ways | {f"{name}, asyncio": together(partial(by_obstore, store)) for name, store in stores.items()}


def obstores_at(address: str) -> dict[str, Any]:
    """Returns obstore's stores of the server, of files and of objects, as LitData opens the latter; {} without it."""
    if lacking(sys.executable, {"obstore"}):
        return {}
    from obstore.store import HTTPStore, S3Store

    options = {"allow_http": True}
    objects = S3Store.from_url(
        BUCKET, endpoint=address, access_key_id="a", secret_access_key="b", client_options=options
    )
    return {"obstore": HTTPStore.from_url(address, client_options=options), "obstore, S3": objects}


def in_threads(address: str) -> dict[str, Fetch]:
    """Returns the ways of clients that wait: a URL is one call, in a thread of four."""
    import urllib3

    pool, here = ThreadPoolExecutor(THREADS), threading.local()
    manager, stores = urllib3.PoolManager(maxsize=THREADS), obstores_at(address)

    def by_http_client(url: str) -> bytes:
        if not hasattr(here, "connection"):
            here.connection = http.client.HTTPConnection(address.rpartition("/")[2])
        here.connection.request("GET", f"/{url.rpartition('/')[2]}")
        return here.connection.getresponse().read()

    gets = {
        "urllib3, threads": lambda url: manager.request("GET", url).data,
        "http.client, threads": by_http_client,
    }
    for name, store in stores.items():
        gets[f"{name}, threads"] = lambda url, store=store: bytes(store.get(url.rpartition("/")[2]).bytes())
    return {name: lambda urls, get=get: list(pool.map(get, urls)) for name, get in gets.items()}


def main(args: argparse.Namespace) -> None:
    """Prints a line for each client and size."""
    need_programs("nginx", "taskset", advice="apt-get install nginx-light util-linux")
    if missing := lacking(sys.executable, {"obstore", "s3fs"}):
        print(f"left out, since not installed: {', '.join(missing)}", file=sys.stderr)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    callers = ThreadPoolExecutor(THREADS)
    for kb in args.kb:
        size = kb * 1024
        with served(args.files, size, max(cpus)) as address:
            urls = [f"{address}/{number}" for number in range(args.files)]
            calls = [urls[start : start + BATCH] for start in range(0, len(urls), BATCH)]
            ways = {**fetchers(size, address), **in_loop(address), **in_threads(address)}
            spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for turn in range(args.turns + 1):  # the first one connects
                for name, fetch in ways.items():
                    began, cpu = time.perf_counter(), time.process_time()
                    got = sum(len(data) for some in callers.map(fetch, calls) for data in some)
                    assert got == len(urls) * size, f"{name}: {got} bytes"
                    if turn:
                        spent[name].append((time.process_time() - cpu, time.perf_counter() - began))
            base = [cpu for cpu, _ in spent["aiohttp"]]
            for name, turns in spent.items():
                cpu, wall = (median(some) / len(urls) for some in zip(*turns, strict=True))
                ratio = median(before / now for before, (now, _) in zip(base, turns, strict=True))
                print(f"{kb:4} kB  {name:24} {cpu * 1e6:6.0f} us  {1 / wall:7.0f} files/s  x {ratio:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kb", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=7)
    main(parser.parse_args())
