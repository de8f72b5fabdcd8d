"""Ranks that watch each other: when a host is lost, all ranks end within a bounded time, and name the host.

In an allreduce a rank waits for a lost host for as long as TCP repeats its packets, often a quarter of an hour. Here
rank 0 holds a connection to each other rank, in a second hub. Over it ranks say why they fail and, every 10 seconds,
that they run, and their kernels answer. So it costs no collective, and a busy process is not taken for a lost one. Rank
0 tells the other ranks which rank is lost.
"""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tfpipe.collectives.hub import Hub, Peer
from tfpipe.collectives.protocol import is_lost
from tfpipe.collectives.rendezvous import connect_again
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, Stopped, TfpipeError, counted
from tfpipe.util.open_files import allow_open

logger = logging.getLogger(__name__)

# A host is lost when it has not acknowledged a beat for UNANSWERED_S, at most 90 s after its end: more than the 60 s of
# jobs/common.sh, since Open MPI's mpirun ends quickly only if it notices the loss first.
UNANSWERED_S = 80
# Time for the launcher to end a rank after another one has ended. Without Horovod or MPI it may know nothing of the
# others, and a rank that has said why it fails is not awaited for long either.
GRACE_S, SHORT_GRACE_S = 30.0, 5.0
# A rank says this often that it runs; a silence that is shorter than SILENT_S does not end a run.
BEAT_S, SILENT_S = 10.0, 20.0
# A rank whose collective has failed waits until rank 0 has named the lost one: if it ended first, it would be named.
NAMED_S = UNANSWERED_S + BEAT_S + 5
CONNECT_S = 20.0
BEAT, ENDED, FAILED = b"\0", b"ended", b"failed: "
RESUME = "--resume auto continues the run"
RESUME_ELSEWHERE = f"{RESUME}, on the hosts that are left"


@contextmanager
def watch_peers(world: World, end: Callable[[str], None], *, limit_s: float | None = None) -> Iterator[None]:
    """Ends this process if another rank is lost, fails, or is stopped for `limit_s` seconds, inside `with`.

    Every rank must call. A rank that leaves without an error, or by Stopped, is not missed. An error because another
    rank has ended waits until that rank is named. If ranks cannot connect, a warning says so, and only the launcher and
    `data.stall_timeout_s` end ranks that wait for a lost one. `end` ends the process; `limit_s` None is no limit.
    """
    hub = connect(world) if world.size > 1 and world.backend != "none" else None
    if hub is None:
        yield
        return
    over = threading.Event()
    limit_s = None if limit_s is None else max(limit_s, SILENT_S)
    # Daemon threads, so that they cannot keep the process alive.
    args = (hub, world.backend, over, end, limit_s)
    watch = threading.Thread(target=_watch, args=args, name="peers", daemon=True)
    for thread in (watch, threading.Thread(target=_beat, args=(hub, over), name="beat", daemon=True)):
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
            watch.join(NAMED_S)
        else:
            farewell = FAILED + _reason(error, world.rank).encode()
        raise
    finally:
        over.set()
        _leave(hub, farewell)


def _reason(error: BaseException, rank: int) -> str:
    """Returns what another rank is told of an error on this one."""
    told = isinstance(error, TfpipeError | OSError)
    text = str(error) if told else f"{type(error).__name__}: {error}".partition("\n")[0]
    return text.removeprefix(f"rank {rank}: ")


def connect(world: World) -> Hub | None:
    """Connects rank 0 with each other rank; None on all ranks if one of them cannot."""
    hub, failure = None, ""
    with suppress(ConfigError):
        allow_open(world.size)
    try:
        hub = connect_again(world.rank, world.size, lambda address: world.gather(address)[0], CONNECT_S)
    except (OSError, ConfigError) as error:
        failure = str(error)
    failures = list(filter(None, world.gather(failure)))
    if failures:
        if world.rank == 0:
            message = "ranks do not watch each other (%s): a lost host is noticed by the launcher, or after %s"
            logger.warning(message, failures[0], "data.stall_timeout_s")
        return None
    assert hub is not None, "no rank has failed"
    for peer in hub.peers:
        # Keepalive does not count while a beat is unacknowledged.
        peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNANSWERED_S)
    return hub


def _beat(hub: Hub, over: threading.Event) -> None:
    """Tells the ranks at the other ends, again and again, that this process runs."""
    while not over.wait(BEAT_S):
        for peer in hub.peers:
            with suppress(OSError):
                peer.connection.send(BEAT, socket.MSG_DONTWAIT)


def _leave(hub: Hub, message: bytes) -> None:
    """Sends the last message of this rank, after which nothing is read either."""
    for peer in hub.peers:
        with suppress(OSError):
            peer.connection.sendall(message)
            peer.connection.shutdown(socket.SHUT_RDWR)


def _watch(hub: Hub, backend: str, over: threading.Event, end: Callable[[str], None], limit_s: float | None) -> None:
    """Waits for the loss of another rank, or for rank 0's message of it, and ends this process."""
    peer, message, loss = _receive(hub, limit_s)
    if peer is None or over.is_set():
        return
    failed = message.startswith(FAILED)
    if not loss and (failed or not message):
        long = backend in ("mpi", "horovod") and not failed
        if over.wait(GRACE_S if long else SHORT_GRACE_S):
            return
        reason = message.removeprefix(FAILED).decode()
        loss = f"has failed: {reason}; {RESUME}" if failed else f"has ended without a word; {RESUME_ELSEWHERE}"
    loss = f"{peer} {loss}" if loss else message.decode()
    _leave(hub, loss.encode() if hub.rank == 0 else b"")
    end(f"rank {hub.rank}: {loss}")


def _receive(hub: Hub, limit_s: float | None) -> tuple[Peer | None, bytes, str]:
    """Returns the first rank that is lost, or that tells of one, its message and how it is lost, "" if it tells.

    The rank is None if all have ended. Silence is counted in turns of this loop, each of at most BEAT_S, so that a job
    that is suspended as a whole has none.
    """
    messages, heard_s = dict.fromkeys(hub.peers, b""), dict.fromkeys(hub.peers, 0.0)
    now_s = looked_s = 0.0
    with selectors.DefaultSelector() as selector:
        for peer in hub.peers:
            selector.register(peer.connection, selectors.EVENT_READ, peer)
        while heard_s:
            began_s = time.monotonic()
            ready = selector.select(BEAT_S)
            now_s += min(time.monotonic() - began_s, BEAT_S)
            for key, _ in ready:
                peer, part = key.data, b""
                try:
                    part = peer.connection.recv(4096)
                except ConnectionError:
                    pass
                except OSError as error:
                    return peer, b"", f"is lost: its host does not answer ({error.strerror}); {RESUME_ELSEWHERE}"
                messages[peer] += part.replace(BEAT, b"")
                heard_s[peer] = now_s
                if not part:
                    if messages[peer] != ENDED:
                        return peer, messages[peer], ""
                    selector.unregister(peer.connection)
                    del heard_s[peer]
            if limit_s is not None and heard_s and now_s >= looked_s + BEAT_S:
                looked_s, peer = now_s, min(heard_s, key=heard_s.__getitem__)
                if (silent_s := now_s - heard_s[peer]) >= limit_s:
                    told = f"has not run for {counted(silent_s, 'second')} (data.stall_timeout_s): it is stopped"
                    return peer, b"", f"{told}, or hangs; {RESUME}"
    return None, b"", ""
