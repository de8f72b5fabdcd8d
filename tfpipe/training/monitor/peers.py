"""Ranks that watch each other: when a host is lost, all ranks end within a bounded time, and name the host.

In an allreduce a rank waits for a lost host for as long as TCP repeats its packets, often a quarter of an hour. Here
each rank holds a connection to the next rank, and the kernels keep asking each other whether they are there. Over it a
rank also says why it fails, and every 10 seconds that it runs. So it costs no collective, and a busy process is not
taken for a lost one.
"""

import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tfpipe.collectives.protocol import is_lost
from tfpipe.collectives.rendezvous import own_hosts
from tfpipe.distributed import World
from tfpipe.errors import Stopped, TfpipeError
from tfpipe.training.monitor.stalls import end_process

logger = logging.getLogger(__name__)

# A host is lost when it has been silent for QUIET_S and has not answered PROBES questions, EVERY_S apart: 90 s in all,
# more than the 60 s of jobs/common.sh, since Open MPI's mpirun ends quickly only if it notices the loss first.
QUIET_S, EVERY_S, PROBES = 30, 10, 6
# Time for the launcher to end a rank after another one has ended. Without Horovod or MPI it may know nothing of the
# others, and a rank that has said why it fails is not awaited for long either.
GRACE_S, SHORT_GRACE_S = 30.0, 5.0
# Ranks pass a loss on, from one to the next.
PASSED_ON_S = 5.0
# A rank says this often that it runs; a silence that is shorter than SILENT_S does not end a run.
BEAT_S, SILENT_S = 10.0, 20.0
CONNECT_S = 20.0
BEAT, ENDED, FAILED = b"\0", b"ended", b"failed: "
TOKEN_BYTES = 16
RESUME = "--resume auto continues the run"
ADVICE = f"{RESUME}, on the hosts that are left"


class Address(NamedTuple):
    """Address at which a rank listens for the one that watches it."""

    hosts: tuple[str, ...]  # its host's name, and its number for hosts that cannot resolve names
    port: int  # 0: it cannot listen
    token: bytes  # what the watching rank sends first


class Links(NamedTuple):
    """A rank's connections."""

    ahead: socket.socket  # to the next rank, which this one watches
    watcher: socket.socket  # from the rank that watches this one
    watched: str  # name of the next rank, for messages


@contextmanager
def watch_peers(
    world: World, end: Callable[[str], None] = lambda message: end_process(message), *, limit_s: float | None = None
) -> Iterator[None]:
    """Ends this process if another rank is lost, fails, or is stopped for `limit_s` seconds, inside `with`.

    Every rank must call. A rank that leaves without an error, or by Stopped, is not missed. An error because another
    rank has ended waits until that rank is named. If ranks cannot connect, a warning says so, and only the launcher and
    `data.stall_timeout_s` end ranks that wait for a lost one. `end` ends the process; `limit_s` None is no limit.
    """
    links = connect(world) if world.size > 1 and world.backend != "none" else None
    if links is None:
        yield
        return
    over = threading.Event()
    limit_s = None if limit_s is None else max(limit_s, SILENT_S)
    # Daemon threads, so that they cannot keep the process alive.
    watch = threading.Thread(target=_watch, args=(links, world, over, end, limit_s), name="peers", daemon=True)
    for thread in (watch, threading.Thread(target=_beat, args=(links, over), name="beat", daemon=True)):
        thread.start()
    farewell = b""
    try:
        yield
        farewell = ENDED
    except Stopped:
        farewell = ENDED
        raise
    except BaseException as error:
        if is_lost(error):
            watch.join(GRACE_S + PASSED_ON_S)
        else:
            farewell = FAILED + _reason(error, world.rank).encode()
        raise
    finally:
        over.set()
        with suppress(OSError):
            links.watcher.sendall(farewell)
        links.watcher.close()
        with suppress(OSError):
            links.ahead.shutdown(socket.SHUT_RDWR)


def _reason(error: BaseException, rank: int) -> str:
    """Returns what another rank is told of an error on this one."""
    told = isinstance(error, TfpipeError | OSError)
    text = str(error) if told else f"{type(error).__name__}: {error}".partition("\n")[0]
    return text.removeprefix(f"rank {rank}: ")


def _beat(links: Links, over: threading.Event) -> None:
    """Tells the rank that watches this one, again and again, that this process runs."""
    while not over.wait(BEAT_S):
        with suppress(OSError):
            links.watcher.send(BEAT, socket.MSG_DONTWAIT)


def connect(world: World) -> Links | None:
    """Connects this rank with the next one and with the one before; None on all ranks if one of them cannot."""
    token, listener, port = secrets.token_bytes(TOKEN_BYTES), None, 0
    with suppress(OSError):
        listener = socket.create_server(("", 0))
        port = listener.getsockname()[1]
    addresses = world.gather(Address(own_hosts(), port, token))
    following = (world.rank + 1) % world.size
    address = addresses[following]
    watched = f"rank {following} on host {address.hosts[0]}"
    links, failure = None, ""
    try:
        if listener is None:
            raise OSError("cannot listen on any port")
        ahead = _reach(address)
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


def _reach(address: Address) -> socket.socket:
    """Connects to a rank, by its host's name or else by its number. Raises OSError if it is not reached."""
    if address.hosts[0] == socket.gethostname():
        return socket.create_connection(("localhost", address.port), CONNECT_S)
    for host in address.hosts[:-1]:
        with suppress(OSError):
            return socket.create_connection((host, address.port), CONNECT_S)
    return socket.create_connection((address.hosts[-1], address.port), CONNECT_S)


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


def _watch(
    links: Links, world: World, over: threading.Event, end: Callable[[str], None], limit_s: float | None
) -> None:
    """Waits for a message of the next rank, or for its loss; passes the message on and ends this process."""
    message, loss = _receive(links, limit_s)
    if message == ENDED or over.is_set():
        return
    failed = message.startswith(FAILED)
    if not loss and (failed or not message):
        long = world.backend in ("mpi", "horovod") and not failed
        if over.wait(GRACE_S if long else SHORT_GRACE_S):
            return
        reason = message.removeprefix(FAILED).decode()
        loss = f"has failed: {reason}; {RESUME}" if failed else f"has ended without a word; {ADVICE}"
    loss = f"{links.watched} {loss}" if loss else message.decode()
    with suppress(OSError):
        links.watcher.sendall(loss.encode())
        links.watcher.shutdown(socket.SHUT_WR)
    end(f"rank {world.rank}: {loss}")


def _receive(links: Links, limit_s: float | None) -> tuple[bytes, str]:
    """Returns the last message of the next rank, empty if it has ended without one; and how it is lost, else "".

    Silence is counted in turns of this loop, so that a job that is suspended as a whole has none.
    """
    message, silent_s = b"", 0.0
    try:
        while True:
            if not select.select([links.ahead], [], [], BEAT_S)[0]:
                silent_s += BEAT_S
                if limit_s is not None and silent_s >= limit_s:
                    told = f"has not run for {silent_s:.0f} seconds (data.stall_timeout_s): it is stopped, or hangs"
                    return b"", f"{told}; {RESUME}"
                continue
            silent_s = 0.0
            if not (part := links.ahead.recv(4096)):
                break
            message += part.replace(BEAT, b"")
    except ConnectionResetError:
        pass
    except OSError as error:
        return b"", f"is lost: its host does not answer ({error.strerror}); {ADVICE}"
    return message, ""
