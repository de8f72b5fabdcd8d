"""The hub: rank 0 holds a TCP connection to each other rank, over which ranks exchange small Python values.

It needs no MPI. A rank that has ended, or whose host is lost, is noticed by its connection, and named.
"""

import logging
import pickle
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tfpipe.collectives.protocol import LostRankError
from tfpipe.errors import counted

logger = logging.getLogger(__name__)

# A lost host is noticed after 90 s, as in training.monitor.peers.
KEEPALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
LENGTH = struct.Struct(">Q")
# A rank may be busy for long while the others wait, e.g. parse a list, so the limit is only a last resort.
WARN_AFTER_S, LIMIT_S, ANSWER_S = 60.0, 3600.0, 60.0


class Peer(NamedTuple):
    """Another rank."""

    rank: int
    host: str
    connection: socket.socket

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host}"


class _Failure(NamedTuple):
    """Message of rank 0 in the place of a result."""

    message: str


def bracket(address: str) -> str:
    """Returns an address as it stands before a port, e.g. [::1]."""
    return f"[{address}]" if ":" in address else address


class Hub:
    """Connections between rank 0 and the others: on rank 0 to each other rank, by rank; elsewhere to rank 0 only."""

    def __init__(self, rank: int, peers: Sequence[Peer]) -> None:
        self.rank, self.peers = rank, peers
        for peer in peers:
            for level, option, value in KEEPALIVE:
                peer.connection.setsockopt(level, option, value)
            peer.connection.settimeout(None)

    def exchange(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Returns `combine(values)` of every rank's value, by rank, on every rank; rank 0 computes it.

        Raises LostRankError if a rank has ended, or has not come after LIMIT_S; the message names it.
        """
        if self.rank:
            (leader,) = self.peers
            self._send(leader, value)
            (result,) = self._receive()
            if isinstance(result, _Failure):
                raise LostRankError(f"rank {self.rank}: {result.message}")
            return result
        try:
            result = combine([value, *self._receive()])
            for peer in self.peers:
                self._send(peer, result)
        except LostRankError as error:
            self.fail(str(error).removeprefix("rank 0: "))
            raise
        return result

    def fail(self, message: str) -> None:
        """Lets the next exchange of each other rank raise LostRankError with a message; on rank 0."""
        for peer in self.peers:
            with suppress(LostRankError):
                self._send(peer, _Failure(message))

    def own_address(self) -> str:
        """Returns this rank's end of its connection with rank 0; empty on rank 0."""
        return bracket(self.peers[0].connection.getsockname()[0]) if self.rank else ""

    def leader_address(self) -> str:
        """Returns rank 0's end of this rank's connection with it; empty on rank 0."""
        return bracket(self.peers[0].connection.getpeername()[0]) if self.rank else ""

    def _send(self, peer: Peer, value: Any) -> None:
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        try:
            peer.connection.settimeout(LIMIT_S)
            peer.connection.sendall(LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise self._lost(peer, error) from error

    def _receive(self) -> list[Any]:
        """Returns a value of each peer, in their order; all are awaited at once, so that a lost one is noticed."""
        received = {peer.rank: bytearray() for peer in self.peers}
        # Rank 0 knows which rank is missing, so it gives up first.
        limit_s = LIMIT_S + (ANSWER_S if self.rank else 0)
        began_s, warned_s = time.monotonic(), WARN_AFTER_S
        with selectors.DefaultSelector() as selector:
            for peer in self.peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while waiting := list(selector.get_map().values()):
                for key, _ in selector.select(1.0):
                    if self._read(key.data, received[key.data.rank]):
                        selector.unregister(key.fileobj)
                waited_s = time.monotonic() - began_s
                names = ", ".join(str(key.data) for key in waiting[:5]) + (" ..." if len(waiting) > 5 else "")
                if waited_s > limit_s:
                    raise LostRankError(f"rank {self.rank}: has waited {counted(limit_s, 'second')} for {names}")
                if waited_s > warned_s:
                    warned_s *= 2
                    logger.warning("rank %d: has waited %s for %s", self.rank, counted(waited_s, "second"), names)
        return [pickle.loads(bytes(received[peer.rank][LENGTH.size :])) for peer in self.peers]

    def _read(self, peer: Peer, content: bytearray) -> bool:
        """Reads what is there, never more than one value; returns whether the value is whole."""
        wanted = LENGTH.size
        if len(content) >= wanted:
            wanted += LENGTH.unpack(content[:wanted])[0]
        try:
            part = peer.connection.recv(min(wanted - len(content), 1 << 20))
        except OSError as error:
            raise self._lost(peer, error) from error
        if not part:
            raise self._lost(peer)
        content += part
        if len(content) == LENGTH.size:
            return LENGTH.unpack(content)[0] == 0
        return len(content) > LENGTH.size and len(content) == wanted

    def _lost(self, peer: Peer, error: OSError | None = None) -> LostRankError:
        ended = error is None or isinstance(error, ConnectionError)
        reason = "has ended" if ended else f"does not answer ({error})"
        return LostRankError(f"rank {self.rank}: {peer} {reason}")
