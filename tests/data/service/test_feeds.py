"""A feed and servers that fail in every way there is, pretended."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import tensorflow as tf

from tfpipe.data.service import feeds
from tfpipe.data.service.feeds import Feed
from tfpipe.errors import TfpipeError


class Block(NamedTuple):
    number: int


class Pretended:
    """Servers a, b, c ..., each of which takes over from the one before; of 20 blocks, every second."""

    count = 2

    def __init__(self, **faults: str) -> None:
        """Args: by the server's name, what happens to it at block 5."""
        self.faults, self.asked, self.dead, self.begun = faults, iter("abcdef"), set(), []
        self.ended = []

    def find(self, number: int) -> str:
        assert number == 1
        return next(self.asked)

    def lives(self, address: str) -> bool:
        return address not in self.dead

    def give_up(self, address: str) -> None:
        self.dead.add(address)

    def open_at(self, block: int, address: str) -> "Pretended.Source":
        self.begun.append((address, block))
        return self.Source(self, block, address)

    class Source:
        def __init__(self, servers: "Pretended", block: int, address: str) -> None:
            self.servers, self.block, self.address = servers, block, address
            self.cancelled = threading.Event()

        def cancel(self) -> None:
            self.cancelled.set()

        def __iter__(self) -> Iterator[Block]:
            for number in range(self.block, 20, self.servers.count):
                fault = self.servers.faults.get(self.address) if number == 5 else None
                if fault == "dies":
                    self.servers.dead.add(self.address)
                if fault in ("dies", "hangs"):
                    self.cancelled.wait()
                    self.servers.ended.append(self.address)
                    raise tf.errors.CancelledError(None, None, "cancelled")
                if fault == "fails":
                    raise tf.errors.InvalidArgumentError(None, None, "Iterator::Root: a bad image")
                if fault == "breaks":
                    raise KeyError("a mistake in here")
                if fault != "skips":
                    yield Block(number)


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(feeds, "LOOK_S", 0.05)


def taken(servers: Pretended, timeout_s: float = 60.0) -> list[int]:
    feed = Feed(1, servers.open_at, servers, timeout_s)
    found = []
    try:
        for block in range(1, 30, 2):
            got = feed.take(block)
            if got is None:
                return found
            found.append(got.number)
    finally:
        feed.close()
    raise AssertionError("no end")


@pytest.mark.parametrize("fault", ["dies", "hangs", "fails", "skips"])
def test_blocks_go_on_elsewhere(fault: str, caplog) -> None:
    servers, earlier = Pretended(a=fault, b="dies"), set(threading.enumerate())
    assert taken(servers, timeout_s=1.0 if fault == "hangs" else 60.0) == list(range(1, 20, 2))
    assert servers.begun == [("a", 1), ("b", 5), ("c", 5)]
    for thread in set(threading.enumerate()) - earlier:
        if thread.name == "service":
            thread.join()
    assert servers.ended == (["a", "b"] if fault in ("dies", "hangs") else ["b"])
    assert Counter(record.levelname for record in caplog.records) == {"WARNING": 2}
    assert "continues at b with block 5" in caplog.text


def test_a_block_that_ends_every_server_is_told() -> None:
    servers = Pretended(**dict.fromkeys("abcdef", "dies"))
    with pytest.raises(TfpipeError, match=r"worker 2 of 2, at c, is gone, as 2 have before it at the same images"):
        taken(servers)


def test_an_error_that_comes_back_is_the_datas() -> None:
    servers = Pretended(**dict.fromkeys("abcdef", "fails"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a bad image"):
        taken(servers)
    assert [address for address, _ in servers.begun] == ["a", "b"]


def test_a_mistake_in_the_program_is_no_servers_fault() -> None:
    servers = Pretended(a="breaks")
    with pytest.raises(KeyError, match="a mistake"):
        taken(servers)
    assert [address for address, _ in servers.begun] == ["a"]


def test_a_worker_that_never_answers_does_not_keep_a_closed_feeds_thread() -> None:
    servers = Pretended(a="hangs")
    feed = Feed(1, servers.open_at, servers, 60.0)
    assert [feed.take(block).number for block in (1, 3)] == [1, 3]
    feed.close()
    for thread in threading.enumerate():
        if thread.name == "service":
            thread.join()
    assert servers.ended == ["a"] and servers.lives("a")
