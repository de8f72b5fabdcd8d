"""The hub, as threads of this process with real connections: values, ranks that end, and strangers."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gathers import on_all
from tfpipe.collectives import hub as hub_module
from tfpipe.collectives import rendezvous
from tfpipe.collectives.hub import Hub
from tfpipe.collectives.launch import Launch
from tfpipe.collectives.protocol import LostRankError
from tfpipe.errors import ConfigError

WAIT_S = 30


def run(size: int, work: Callable[[Hub], Any], folder: Path) -> list[Any]:
    """Returns what `work` returned or raised on each rank."""

    def rank(number: int) -> Any:
        try:
            hub, seen = rendezvous.connect(Launch("torchrun", number, size), folder, WAIT_S)
            assert seen == size
            try:
                return work(hub)
            finally:
                for peer in hub.peers:
                    peer.connection.close()
        except Exception as error:
            return error

    return on_all(rank, range(size))


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFPIPE_LAUNCH", "one")


def test_every_rank_gets_every_value_by_rank_and_the_file_goes(tmp_path: Path) -> None:
    """Values of a few bytes and of several reads, one after the other."""

    def work(hub: Hub) -> list[Any]:
        small = hub.exchange({"rank": hub.rank}, list)
        large = hub.exchange(bytes([hub.rank]) * (3 << 20), list)
        return [small, [len(set(part)) == 1 and (part[0], len(part)) for part in large], hub.exchange(hub.rank, sum)]

    wanted = [[{"rank": rank} for rank in range(4)], [(rank, 3 << 20) for rank in range(4)], 6]
    assert run(4, work, tmp_path / "new") == [wanted] * 4
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_ends_is_named_on_all_others(tmp_path: Path, gone: int) -> None:
    def work(hub: Hub) -> Any:
        hub.exchange(None, list)
        if hub.rank == gone:
            raise ValueError("has its own reason")
        return hub.exchange(None, list)

    results = run(3, work, tmp_path)
    assert isinstance(results.pop(gone), ValueError)
    for result in results:
        assert isinstance(result, LostRankError)
        assert f"rank {gone} on host {socket.gethostname()} has ended" in str(result)


def test_a_rank_that_does_not_come_to_an_exchange_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(hub_module, "LIMIT_S", 1.0)

    def work(hub: Hub) -> Any:
        if hub.rank == 1:
            over.wait(WAIT_S)
            return None
        try:
            return hub.exchange(None, list)
        finally:
            over.set()

    first, _, last = run(3, work, tmp_path)
    assert "has waited 1 second for rank 1 on host" in str(first)
    assert isinstance(last, LostRankError)


def test_ranks_that_do_not_start_are_named_with_the_way_out(tmp_path: Path) -> None:
    for rank, reason in ((0, "ranks 1, 2 did not connect to"), (2, "rank 0 did not tell its address")):
        with pytest.raises(ConfigError) as caught:
            rendezvous.connect(Launch("torchrun", rank, 3), tmp_path, 0.3)
        assert f"rank {rank} of 3, started by torchrun: {reason}" in str(caught.value)
        assert "unset the launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR ...)" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_an_earlier_launch_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program listens there by now; and rank 0 starts last."""
    monkeypatch.setattr(rendezvous, "CONNECT_S", 0.5)
    found = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        old = rendezvous.HubAddress(("127.0.0.1",), other.getsockname()[1], b"0" * 16)
        launches = [Launch("torchrun", rank, 2) for rank in range(2)]
        run(2, lambda hub: None, tmp_path)  # only to learn the file's name
        with pytest.raises(ConfigError) as caught:
            rendezvous.connect(launches[1], tmp_path, 0)
        path = Path(str(caught.value).partition("the address is in ")[2].partition(")")[0])
        with rendezvous._publish(path, old):
            assert path.stat().st_mode & 0o777 == 0o600

            def refuse() -> None:
                connection, _ = other.accept()
                found.append(connection.recv(16))
                connection.close()

            stranger = threading.Thread(target=refuse)
            stranger.start()
            follower = threading.Thread(target=lambda: found.append(rendezvous.connect(launches[1], tmp_path, WAIT_S)))
            follower.start()
            stranger.join(WAIT_S)
            leader, _ = rendezvous.connect(launches[0], tmp_path, WAIT_S)
            follower.join(WAIT_S)
    assert found[0] == b"0" * 16 and isinstance(found[1][0], Hub)
    leader.peers[0].connection.close()


def test_a_name_that_does_not_resolve_is_named_unless_the_address_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "own_hosts", lambda: ("nowhere.invalid", "127.0.0.1"))
    assert run(2, lambda hub: hub.exchange(hub.rank, list), tmp_path) == [[0, 1]] * 2
    launch = Launch("torchrun", 1, 2)
    with pytest.raises(ConfigError) as caught:
        rendezvous.connect(launch, tmp_path, 0)
    path = Path(str(caught.value).partition("the address is in ")[2].partition(")")[0])
    with rendezvous._publish(path, rendezvous.HubAddress(("nowhere.invalid",), 1, b"0" * 16)):
        with pytest.raises(ConfigError, match=r"rank 0 did not answer at nowhere\.invalid:1 \(.*[Nn]ame"):
            rendezvous.connect(launch, tmp_path, 0.1)


def test_a_stranger_and_a_rank_of_another_size_are_not_let_in(tmp_path: Path) -> None:
    address = rendezvous.HubAddress(("localhost",), 0, os.urandom(16))
    for token, size, let_in in ((address.token, 3, True), (address.token, 2, False), (b"1" * 16, 3, False)):
        meeting = rendezvous.Meeting(Launch("x", 0, 3), 3, tmp_path / "file", 0, 0)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with socket.create_connection(listener.getsockname()) as connection:
                connection.sendall(token + rendezvous.HELLO.pack(1, size, b"node-1"))
                peer = rendezvous._accept(listener, address.token, meeting)
                assert (peer is not None) == let_in
                if peer is not None:
                    assert str(peer) == "rank 1 on host node-1"
                    peer.connection.close()


@pytest.mark.parametrize("again", [0, 1])
def test_two_launches_of_one_identity_are_refused_on_all_their_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """The second launch's rank 0 or rank 1 comes while the first one waits for its last rank, which comes later."""
    monkeypatch.setattr(rendezvous, "REFUSES_S", 3.0)
    errors: list[Exception] = []

    def rank(number: int) -> None:
        try:
            hub, _ = rendezvous.connect(Launch("a launcher of PyTorch", number, 3), tmp_path, WAIT_S)
            hub.exchange(None, list)
        except Exception as error:
            errors.append(error)

    def started(number: int) -> threading.Thread:
        thread = threading.Thread(target=rank, args=(number,))
        thread.start()
        return thread

    admitted = threading.Event()
    admit = rendezvous._admit
    monkeypatch.setattr(rendezvous, "_admit", lambda *args: (admit(*args), admitted.set()))
    threads = [started(0), started(1)]
    assert admitted.wait(WAIT_S)
    second = started(again)
    second.join(WAIT_S)
    for thread in [*threads, second, started(2)]:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(errors) == 4 and all(
        "both have the identity one: give each launch a MASTER_PORT" in str(e) for e in errors
    )
    assert sum(isinstance(error, LostRankError) for error in errors) == 1, "the rank that was admitted"
    assert list(tmp_path.iterdir()) == []


def test_a_launch_that_nothing_identifies_is_refused_without_mpi4py(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFPIPE_LAUNCH")
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"rank 1 of 2, but its variables do not tell .* or set TFPIPE_LAUNCH"):
        rendezvous.connect(Launch("mpirun (MVAPICH2)", 1, 2), tmp_path, 1)
