"""The rendezvous: rank 0 tells its address, the other ranks connect to it, and each gets its end of a `Hub`.

The address is in a file on the shared file system or, if nothing identifies the launch, told by MPI. The file is named
after the launch, holds a random token that only its owner can read, and is removed when all ranks are connected. One
that an earlier launch left does no harm: its address does not answer, or does not know the token. If the rank 0 of
another launch answers there, or a rank comes twice, nothing tells the two launches apart: both end.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tfpipe.collectives.agreement import name_ranks
from tfpipe.collectives.hub import Hub, Peer
from tfpipe.collectives.launch import IDENTITY, Launch, launch_identity
from tfpipe.errors import ConfigError, counted

logger = logging.getLogger(__name__)

TOKEN_BYTES = 16
HELLO = struct.Struct(">QQ64s")  # rank, size, host name
WELCOME, REFUSED = b"welcome!", b"refused!"
# Ranks may start minutes apart where many import TensorFlow from one file system.
PATIENCE_S, SAY_AFTER_S, CONNECT_S = 180.0, 10.0, 5.0
ALL_MUST_RUN = (
    ": all ranks must run, see this directory, reach each other's hosts, and have the same KERAS_BACKEND and "
    "training.collectives; if this process is meant to be alone, unset the launcher's variables (RANK, WORLD_SIZE, "
    "MASTER_ADDR ...) or give --no-horovod"
)
# A rank 0 that shares its launch's identity with another one tells so to the ranks that come within this time.
REFUSES_S = 10.0


class HubAddress(NamedTuple):
    """Address at which rank 0 listens."""

    hosts: tuple[str, ...]  # its name, and its number for hosts that cannot resolve names
    port: int
    token: bytes


Tell = Callable[[HubAddress | None], HubAddress | None]
"""Returns rank 0's address on every rank; all must call. None if rank 0 cannot listen."""


class Meeting(NamedTuple):
    """Ranks that are to meet."""

    launch: Launch
    size: int
    path: Path | None  # of the file
    until_s: float
    patience_s: float
    tell: Tell | None = None  # passes the address on if there is no file
    advice: str = ALL_MUST_RUN

    def missing(self, reason: str) -> ConfigError:
        """Returns the error for ranks that do not come."""
        where = f" (the address is in {self.path})" if self.path else ""
        return ConfigError(
            f"rank {self.launch.rank} of {self.size}, started by {self.launch.launcher}: {reason} within "
            f"{counted(self.patience_s, 'second')}{where}{self.advice}"
        )

    def launch_clash(self) -> ConfigError:
        """Returns the error of two launches that their variables do not tell apart."""
        return ConfigError(
            f"rank {self.launch.rank} of {self.size}, started by {self.launch.launcher}: the ranks of two launches "
            f"meet in {self.path}, since both have the identity {launch_identity(self.launch)}: give each launch a "
            f"MASTER_PORT of its own, or set {IDENTITY} to a new text, the same for all ranks of a launch"
        )


def connect(launch: Launch, folder: Path, patience_s: float = PATIENCE_S) -> tuple[Hub, int]:
    """Connects this rank with rank 0, or rank 0 with all others; returns the hub and the number of ranks.

    All ranks see `folder`, which is created. Raises ConfigError if nothing identifies the launch, or if ranks do not
    come within `patience_s` seconds.
    """
    identity, size = launch_identity(launch), launch.size
    by_mpi = identity is None or size is None
    if by_mpi:
        size = _mpi_size(launch)
    assert size is not None
    if not 0 <= launch.rank < size:
        raise ConfigError(f"{launch.launcher} started this process as rank {launch.rank} of {size}: no such rank")
    path = None
    if not by_mpi:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f".ranks-{hashlib.sha256(f'{identity} {size}'.encode()).hexdigest()[:16]}"
    tell = _by_mpi if by_mpi else None
    return _meet(Meeting(launch, size, path, time.monotonic() + patience_s, patience_s, tell)), size


def connect_again(rank: int, size: int, tell: Tell, patience_s: float) -> Hub:
    """Connects ranks that reach each other already, by `tell`, with a hub of its own.

    Raises ConfigError if a rank does not come, and OSError if rank 0 cannot listen.
    """
    launch = Launch("its launcher", rank, size)
    return _meet(Meeting(launch, size, None, time.monotonic() + patience_s, patience_s, tell, ""))


def _meet(meeting: Meeting) -> Hub:
    return _lead(meeting) if meeting.launch.rank == 0 else _follow(meeting)


def _lead(meeting: Meeting) -> Hub:
    try:
        listener = socket.create_server(("", 0), backlog=min(meeting.size, 4096))
    except OSError:
        if meeting.tell is not None:
            meeting.tell(None)
        raise
    with listener, contextlib.ExitStack() as told:
        listener.settimeout(1.0)
        address = HubAddress(own_hosts(), listener.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        if meeting.tell is not None:
            meeting.tell(address)
        if meeting.path is not None:
            _check_alone(meeting)
            told.enter_context(_publish(meeting.path, address))
        peers: dict[int, Peer] = {}
        say_s = time.monotonic() + SAY_AFTER_S
        while len(peers) < meeting.size - 1:
            missing = [rank for rank in range(1, meeting.size) if rank not in peers]
            if time.monotonic() > meeting.until_s:
                raise meeting.missing(f"{name_ranks(missing)} did not connect to {address.hosts[0]}:{address.port}")
            if time.monotonic() > say_s:
                say_s += 2 * SAY_AFTER_S
                logger.info("waits for %s of %d", name_ranks(missing), meeting.size)
            if _read(meeting.path) != [address]:
                _check_alone(meeting)
            with contextlib.suppress(OSError):
                if (peer := _accept(listener, address.token, meeting)) is not None:
                    _admit(peer, peers, meeting, partial(_accept, listener, address.token, meeting))
    return Hub(0, [peers[rank] for rank in sorted(peers)])


def _check_alone(meeting: Meeting) -> None:
    """Raises ConfigError if the rank 0 of another launch waits at the address in the file; it is told."""
    for address in _read(meeting.path):
        for host in address.hosts:
            with contextlib.suppress(OSError):
                _reach(host, address, meeting)


def _admit(peer: Peer, peers: dict[int, Peer], meeting: Meeting, accept: Callable[[], Peer | None]) -> None:
    """Adds a rank to `peers`, in the place of one whose connection is over.

    Raises ConfigError if that rank is there already, or is a rank 0: they are of another launch. The ranks of both that
    are there, or come within REFUSES_S, are told.
    """
    if peer.rank and not (peer.rank in peers and _is_there(peers[peer.rank])):
        peer.connection.sendall(WELCOME)
        peers[peer.rank] = peer
        return
    until_s = time.monotonic() + REFUSES_S
    for other in peers.values():
        Hub(0, [other]).fail(str(meeting.launch_clash()))
    stranger: Peer | None = peer
    while time.monotonic() < until_s:
        if stranger is not None:
            with contextlib.suppress(OSError):
                stranger.connection.sendall(REFUSED)
            stranger.connection.close()
        stranger = None
        with contextlib.suppress(OSError):
            stranger = accept()
    raise meeting.launch_clash()


def _is_there(peer: Peer) -> bool:
    peer.connection.settimeout(0)
    try:
        return peer.connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        peer.connection.settimeout(CONNECT_S)


def _accept(listener: socket.socket, token: bytes, meeting: Meeting) -> Peer | None:
    """Accepts a connection; returns the rank at its other end, None for a stranger. Raises OSError if none comes."""
    connection, _ = listener.accept()
    connection.settimeout(CONNECT_S)
    try:
        received = connection.recv(TOKEN_BYTES + HELLO.size, socket.MSG_WAITALL)
        if len(received) == TOKEN_BYTES + HELLO.size and secrets.compare_digest(received[:TOKEN_BYTES], token):
            rank, size, host = HELLO.unpack(received[TOKEN_BYTES:])
            if size == meeting.size and rank < size:
                return Peer(rank, host.rstrip(b"\0").decode(errors="replace"), connection)
    except OSError:
        pass
    connection.close()
    return None


def _follow(meeting: Meeting) -> Hub:
    """Connects to rank 0, whose address may take a while to appear."""
    pause_s, problem = 0.05, "rank 0 did not tell its address"
    told = [] if meeting.tell is None else [meeting.tell(None)]
    while told != [None] and time.monotonic() < meeting.until_s:
        for address in filter(None, told or _read(meeting.path)):
            for host in address.hosts:
                try:
                    return Hub(meeting.launch.rank, [_reach(host, address, meeting)])
                except OSError as error:
                    problem = f"rank 0 did not answer at {host}:{address.port} ({error.strerror or error})"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 2.0)
        if meeting.path is not None and pause_s > 1:
            _refresh(meeting.path)
    raise meeting.missing(problem)


def _reach(host: str, address: HubAddress, meeting: Meeting) -> Peer:
    """Connects to rank 0. Raises OSError if it is not there, or is another program; ConfigError if it refuses."""
    target = "localhost" if host == socket.gethostname() else host
    connection = socket.create_connection((target, address.port), CONNECT_S)
    try:
        hello = HELLO.pack(meeting.launch.rank, meeting.size, socket.gethostname().encode()[:64])
        connection.sendall(address.token + hello)
        answer = connection.recv(len(WELCOME), socket.MSG_WAITALL)
        if answer == REFUSED:
            raise meeting.launch_clash()
        if answer != WELCOME:
            raise ConnectionError("another program answers")
    except BaseException:
        connection.close()
        raise
    return Peer(0, address.hosts[0], connection)


def own_hosts() -> tuple[str, ...]:
    """Returns this host's name, and the address of its default route, if it has one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return socket.gethostname(), probe.getsockname()[0]
    return (socket.gethostname(),)


@contextlib.contextmanager
def _publish(path: Path, address: HubAddress) -> Iterator[None]:
    """Writes the address to `path`, where only this user can read it, and removes it at the end."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w") as text:
            json.dump(address._replace(token=address.token.hex()), text)  # type: ignore[arg-type]
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"rank 0 cannot tell the other ranks its address, in {path}: {error.strerror}") from error
    try:
        yield
    finally:
        if _read(path) == [address]:
            path.unlink(missing_ok=True)


def _read(path: Path | None) -> list[HubAddress]:
    """Returns the address in the file, or nothing if there is none, or not yet."""
    if path is None:
        return []
    try:
        hosts, port, token = json.loads(path.read_text())
        return [HubAddress(tuple(hosts), port, bytes.fromhex(token))]
    except (OSError, ValueError):
        return []


def _refresh(path: Path) -> None:
    """Makes an NFS client look at the directory again, which it remembers for up to a minute: by changing it."""
    with contextlib.suppress(OSError):
        touched = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        touched.touch()
        touched.unlink()


def _mpi_size(launch: Launch) -> int:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"{launch.launcher} started this process as rank {launch.rank} of {launch.size or 'several'}, but its "
            f"variables do not tell one launch from another, and mpi4py, which would, cannot be imported ({error}): "
            f"install tfpipe[mpi], or set {IDENTITY} to a new text, the same for all ranks"
        ) from error
    size: int = MPI.COMM_WORLD.size
    if launch.size not in (None, size):
        raise ConfigError(
            f"{launch.launcher} started this process as rank {launch.rank} of {launch.size}, but mpi4py sees {size}: "
            f"it has another MPI than the launcher; set {IDENTITY} to a new text, the same for all ranks"
        )
    return size


def _by_mpi(address: HubAddress | None) -> HubAddress:
    """Returns rank 0's address, which MPI tells the others."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.bcast(address, root=0)
