"""Ranks that watch each other, as threads of this process with real connections."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.gathers import Gather, on_all
from tfpipe import World
from tfpipe.collectives import rendezvous
from tfpipe.collectives.hub import Hub, Peer
from tfpipe.collectives.protocol import LostRankError
from tfpipe.errors import ConfigError, Stopped, TfpipeError
from tfpipe.training.monitor import peers
from tfpipe.training.monitor.peers import watch_peers

WAIT_S = 30


class Ranks:
    """Three ranks that run a function each; collects the messages by which they end."""

    def __init__(self) -> None:
        self.gather, self.backend = Gather(3), "mpi"
        self.messages: queue.Queue[str] = queue.Queue()

    def world(self, rank: int) -> Any:
        return SimpleNamespace(rank=rank, size=3, backend=self.backend, gather=self.gather.of(rank))

    def run(self, work: Callable[[int], None], limit_s: float | None = None) -> None:
        """Runs `work(rank)` in each rank, inside watch_peers."""

        def rank(number: int) -> None:
            with suppress(ValueError, TfpipeError, Stopped):
                with watch_peers(self.world(number), self.messages.put, limit_s=limit_s):
                    work(number)

        on_all(rank, range(3))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setattr(peers, "GRACE_S", 0.05)
    monkeypatch.setattr(peers, "SHORT_GRACE_S", 0.05)
    monkeypatch.setattr(peers, "NAMED_S", 0.05)
    yield Ranks()


def said(ranks: Ranks, count: int) -> list[str]:
    return sorted(ranks.messages.get(timeout=WAIT_S) for _ in range(count))


def test_ranks_that_end_one_after_the_other_are_not_missed(ranks: Ranks) -> None:
    gone = [threading.Event() for _ in range(3)]

    def work(rank: int) -> None:
        if rank:
            gone[rank - 1].wait(WAIT_S)
        gone[rank].set()

    ranks.run(work)
    ranks.run(lambda rank: None)
    assert ranks.messages.empty()


def test_a_host_whose_name_does_not_resolve_is_watched_by_its_address(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "own_hosts", lambda: ("nowhere.invalid", "127.0.0.1"))
    ranks.run(lambda rank: None)
    assert ranks.messages.empty() and "do not watch" not in caplog.text


def test_ranks_that_are_told_to_stop_are_not_missed(ranks: Ranks) -> None:
    def stop(rank: int) -> None:
        raise Stopped("SIGTERM")

    ranks.run(stop)
    assert ranks.messages.empty()


@pytest.mark.parametrize(
    ("backend", "error", "told"),
    [
        ("mpi", LostRankError("gone"), "has ended without a word; --resume auto continues the run"),
        ("jax", LostRankError("gone"), "has ended without a word; --resume auto continues the run"),
        ("mpi", ValueError("no cat\nat all"), "has failed: ValueError: no cat; --resume auto continues the run"),
        ("jax", ConfigError("rank 1: no /a"), "has failed: no /a; --resume auto continues the run"),
    ],
)
def test_a_rank_that_fails_ends_all_others_which_name_it_its_host_and_its_reason(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, backend: str, error: Exception, told: str
) -> None:
    """Each backend has its own patience with a rank that says nothing."""
    ranks.backend = backend
    if not isinstance(error, LostRankError):
        monkeypatch.setattr(peers, "GRACE_S", 3600)
    elif backend == "mpi":
        monkeypatch.setattr(peers, "SHORT_GRACE_S", 3600)
    over = threading.Event()
    messages = []

    def work(rank: int) -> None:
        if rank == 1:
            raise error
        if rank == 0:
            messages.extend(said(ranks, 2))
            over.set()
        over.wait(WAIT_S)

    ranks.run(work)
    loss = f"rank 1 on host {socket.gethostname()} {told}"
    assert [message.removesuffix(", on the hosts that are left") for message in messages] == [
        f"rank 0: {loss}",
        f"rank 2: {loss}",
    ]


def test_a_rank_whose_collective_fails_waits_for_the_name_of_the_lost_one(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow's collectives fail 10 s after a host is cut off, which is named 80 s later."""
    monkeypatch.setattr(peers, "NAMED_S", WAIT_S)
    messages = []

    def work(rank: int) -> None:
        if rank == 1:
            raise LostRankError("gone")
        if rank == 2:
            time.sleep(0.5)
            raise ValueError("late")
        messages.extend(said(ranks, 2))

    ranks.run(work)
    loss = f"rank 2 on host {socket.gethostname()} has failed: ValueError: late; {peers.RESUME}"
    assert messages == [f"rank 0: {loss}", f"rank 1: {loss}"]


def test_a_rank_that_is_stopped_is_named_by_its_silence_and_a_busy_one_is_not(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1's beats fail, as those of a stopped process do, which holds its connections."""
    monkeypatch.setattr(peers, "BEAT_S", 0.1)
    monkeypatch.setattr(peers, "SILENT_S", 0.5)
    beat = peers._beat
    silent = threading.Event()

    def beats(hub: Hub, over: threading.Event) -> None:
        if hub.rank != 1:
            beat(hub, over)

    monkeypatch.setattr(peers, "_beat", beats)

    def work(rank: int) -> None:
        if rank == 0:
            messages.extend(said(ranks, 2))
            silent.set()
        silent.wait(WAIT_S)

    messages: list[str] = []
    ranks.run(work, limit_s=0.2)
    (first,) = {message.partition(": ")[2] for message in messages}
    assert first.startswith(f"rank 1 on host {socket.gethostname()} has not run for ")
    assert "it is stopped, or hangs; --resume auto" in first


def test_a_host_that_does_not_answer_is_named_at_once_and_to_the_other_ranks() -> None:
    """The kernel ends a connection whose other side has been silent with ETIMEDOUT."""

    class Silent(socket.socket):
        def recv(self, *_: int) -> bytes:
            raise TimeoutError(110, "Connection timed out")

    with socket.create_server(("localhost", 0)) as listener:
        reached = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        ours = [listener.accept()[0] for _ in range(2)]
    silent = Silent(fileno=ours[1].detach())
    reached[1].sendall(b"x")  # there is something to read
    messages: list[str] = []
    hub = Hub(0, [Peer(1, "node1", ours[0]), Peer(2, "node2", silent)])
    peers._watch(hub, "mpi", threading.Event(), messages.append, None)
    loss = f"rank 2 on host node2 is lost: its host does not answer (Connection timed out); {peers.RESUME_ELSEWHERE}"
    assert messages == [f"rank 0: {loss}"]
    assert reached[0].recv(4096).decode() == loss
    for connection in (*reached, ours[0], silent):
        connection.close()


def test_the_kernel_ends_connections_with_a_silent_host(ranks: Ranks) -> None:
    hubs = on_all(lambda rank: peers.connect(ranks.world(rank)), range(3))
    assert sorted(len(hub.peers) for hub in hubs) == [1, 1, 2]
    for hub in hubs:
        for peer in hub.peers:
            assert peer.connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert peer.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 80_000
    for hub in hubs:
        for peer in hub.peers:
            peer.connection.close()


def test_without_a_port_training_goes_on_unwatched(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise PermissionError("no ports")

    monkeypatch.setattr(socket, "create_server", refuse)
    ran = []
    ranks.run(ran.append)
    assert sorted(ran) == [0, 1, 2] and ranks.messages.empty()
    assert "ranks do not watch each other (no ports): " in caplog.text and "data.stall_timeout_s" in caplog.text


def test_one_process_and_ranks_made_by_hand_watch_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "connect", None)  # it would fail
    for world in (World(), World(1, 2)):
        with watch_peers(world, print):
            pass
