"""The thread that takes batches: its limit of time, what it takes ahead, and its end."""

import gc
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tfpipe import TfpipeError
from tfpipe.data.delivery.taker import Taker


class Source(Iterator[int]):
    """Batches that count up, as far as `work` lets them."""

    def __init__(self, work: Callable[["Source"], None]) -> None:
        self.work, self.taken, self.failing, self.cancelled = work, 0, False, threading.Event()

    def __next__(self) -> int:
        self.work(self)
        self.taken += 1
        return self.taken

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_failure_may_be_named_for_longer_than_a_batch_may_take() -> None:
    def name(source: Source) -> None:
        source.failing = True
        source.cancelled.wait(0.5)
        raise TfpipeError("cannot use it")

    with pytest.raises(TfpipeError, match="cannot use it"):
        Taker(Source(name), 0.05).take()


def test_as_many_are_taken_ahead_as_asked_for_and_in_order() -> None:
    third = threading.Event()
    source = Source(lambda source: third.set() if source.taken == 2 else None)
    taker = Taker(source, 60, lambda batches: (10 * batch for batch in batches), ahead=2)
    assert taker.take() == 10 and third.wait(60)
    assert [taker.take() for _ in range(3)] == [20, 30, 40]
    taker.close()
    assert source.taken <= 6


def test_a_wait_ends_with_its_taker_unless_storage_hangs() -> None:
    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, math.inf, ahead=1)
    taker.close()
    assert source.cancelled.is_set() and not taker._thread.is_alive()

    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, 0.05)
    with pytest.raises(TimeoutError):
        taker.take()
    taker.close()
    assert not source.cancelled.is_set()
    source.cancel()
    taker._thread.join(60)
    assert not taker._thread.is_alive()


def test_only_a_failure_may_be_named_for_longer_than_a_batch_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of infinite seconds would raise an OverflowError."""
    monkeypatch.setattr("tfpipe.data.delivery.taker.NAMING_S", math.inf)
    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, 0.05)
    with pytest.raises(TimeoutError):
        taker.take()
    source.cancel()


def test_a_taker_that_has_given_up_cancels_nothing_when_it_is_dropped() -> None:
    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, 0.05)
    thread = taker._thread
    with suppress(TimeoutError):
        taker.take()
    del taker
    gc.collect()
    assert not source.cancelled.is_set()
    source.cancel()
    thread.join(60)
    assert not thread.is_alive()
