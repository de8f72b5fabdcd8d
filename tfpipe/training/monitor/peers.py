"""Ranks that watch each other: when a host is lost, all ranks end within a bounded time, and name the host.

In an allreduce a rank waits for a lost host for as long as TCP repeats its packets, often a quarter of an hour. Here
each rank holds a connection to the next rank, on which nothing is sent; the kernels keep asking each other whether they
are there. So it costs no thread that runs, no collective, and no false alarm from a process that is busy or stopped.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tfpipe.distributed import World
from tfpipe.errors import Stopped
from tfpipe.training.monitor.stalls import end_process

logger = logging.getLogger(__name__)

# A host is lost when it has been silent for QUIET_S and has not answered PROBES questions, EVERY_S apart: 90 s in all,
# more than the 60 s of jobs/common.sh, since Open MPI's mpirun ends quickly only if it notices the loss first.
QUIET_S, EVERY_S, PROBES = 30, 10, 6
# Time for the launcher, or Horovod's own error, to end a rank after another one has ended.
GRACE_S = 30.0
CONNECT_S = 20.0
ENDED = b"ended"
TOKEN_BYTES = 16
ADVICE = "--resume auto continues the run, on the hosts that are left"


class Address(NamedTuple):
    """Address at which a rank listens for the one that watches it."""

    host: str
    port: int  # 0: it cannot listen
    token: bytes  # what the watching rank sends first


class Links(NamedTuple):
    """A rank's connections."""

    ahead: socket.socket  # to the next rank, which this one watches
    watcher: socket.socket  # from the rank that watches this one
    watched: str  # name of the next rank, for messages


@contextmanager
def watch_peers(world: World, end: Callable[[str], None] = lambda message: end_process(message)) -> Iterator[None]:
    """Ends this process if another rank is lost inside `with`. Every rank must call.

    A rank that leaves without an error, or by Stopped, is not missed. If ranks cannot connect, a warning says so, and
    only the launcher and `data.stall_timeout_s` end ranks that wait for a lost one. `end` ends the process.
    """
    links = connect(world) if world.size > 1 and world.backend != "none" else None
    if links is None:
        yield
        return
    over = threading.Event()
    # A daemon thread, so that it cannot keep the process alive.
    threading.Thread(target=_watch, args=(links, world.rank, over, end), name="peers", daemon=True).start()
    farewell = b""
    try:
        yield
        farewell = ENDED
    except Stopped:
        farewell = ENDED
        raise
    finally:
        over.set()
        with suppress(OSError):
            links.watcher.sendall(farewell)
        links.watcher.close()
        with suppress(OSError):
            links.ahead.shutdown(socket.SHUT_RDWR)


def connect(world: World) -> Links | None:
    """Connects this rank with the next one and with the one before; None on all ranks if one of them cannot."""
    host, token, listener, port = socket.gethostname(), secrets.token_bytes(TOKEN_BYTES), None, 0
    with suppress(OSError):
        listener = socket.create_server(("", 0))
        port = listener.getsockname()[1]
    addresses = world.gather(Address(host, port, token))
    following = (world.rank + 1) % world.size
    address = addresses[following]
    watched = f"rank {following} on host {address.host}"
    links, failure = None, ""
    try:
        if listener is None:
            raise OSError("cannot listen on any port")
        target = "localhost" if address.host == host else address.host
        ahead = socket.create_connection((target, address.port), CONNECT_S)
        ahead.sendall(address.token)
        links = Links(ahead, _accept(listener, token), watched)
    except OSError as error:
        failure = f"rank {world.rank} cannot watch {watched} ({error})"
    if listener is not None:
        listener.close()
    failures = list(filter(None, world.gather(failure)))
    if failures:
        if world.rank == 0:
            logger.warning("%s: a lost host is noticed by the launcher, or after data.stall_timeout_s", failures[0])
        return None
    assert links is not None, "no rank has failed"
    for number, value in (
        (socket.TCP_KEEPIDLE, QUIET_S),
        (socket.TCP_KEEPINTVL, EVERY_S),
        (socket.TCP_KEEPCNT, PROBES),
    ):
        links.ahead.setsockopt(socket.IPPROTO_TCP, number, value)
    links.ahead.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    links.ahead.settimeout(None)
    return links


def _accept(listener: socket.socket, token: bytes) -> socket.socket:
    """Returns the connection of the rank that knows the token; others are closed."""
    listener.settimeout(CONNECT_S)
    until_s = time.monotonic() + CONNECT_S
    while time.monotonic() < until_s:
        connection, _ = listener.accept()
        connection.settimeout(CONNECT_S)
        with suppress(OSError):
            if connection.recv(TOKEN_BYTES, socket.MSG_WAITALL) == token:
                return connection
        connection.close()
    raise TimeoutError("no rank has connected")


def _watch(links: Links, rank: int, over: threading.Event, end: Callable[[str], None]) -> None:
    """Waits for a message of the next rank, or for its loss; passes the message on and ends this process."""
    message, loss = b"", ""
    try:
        while part := links.ahead.recv(4096):
            message += part
    except ConnectionResetError:
        pass
    except OSError as error:
        loss = f"{links.watched} is lost: its host does not answer ({error.strerror})"
    if message == ENDED or over.is_set():
        return
    if not message and not loss:
        if over.wait(GRACE_S):
            return
        loss = f"{links.watched} has ended without a word"
    loss = loss or message.decode()
    with suppress(OSError):
        links.watcher.sendall(loss.encode())
        links.watcher.shutdown(socket.SHUT_WR)
    end(f"rank {rank}: {loss}; {ADVICE}")
