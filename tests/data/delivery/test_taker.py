"""The thread that takes batches: its limit of time, what it takes ahead, and its end."""

import gc
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tfpipe import Stream, TfpipeError
from tfpipe.data.batch import Batch
from tfpipe.data.delivery.delivery import Delivery
from tfpipe.data.delivery.taker import Taker
from tfpipe.data.order.progress import Progress
from tfpipe.data.runtime.meter import Meter


class Source(Iterator[Batch]):
    """Batches that count up, as far as `work` lets them."""

    def __init__(self, work: Callable[["Source"], None]) -> None:
        self.work, self.taken, self.failing, self.cancelled = work, 0, False, threading.Event()

    def __next__(self) -> Batch:
        self.work(self)
        self.taken += 1
        return Batch(self.taken, np.zeros((1, 2), np.int64))

    def open(self) -> None: ...

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_failure_may_be_named_for_longer_than_a_batch_may_take() -> None:
    def name(source: Source) -> None:
        source.cancelled.wait(0.5)
        raise TfpipeError("cannot use it")

    source = Source(name)
    source.failing = True
    taker = Taker(source, 1, 0.05)
    for _ in range(2):
        assert str(taker.peek(1).error) == "cannot use it", "it stays, too"


def test_a_batch_stays_until_a_later_one_is_asked_for() -> None:
    taker = Taker(Source(lambda _: None), 7)
    assert [taker.peek(number).batch.data for number in (7, 7, 8, 8, 9)] == [1, 1, 2, 2, 3]
    assert [answer.number for answer in taker._kept] == [9]
    taker.close()


def test_as_many_are_taken_ahead_as_asked_for_and_in_order() -> None:
    third = threading.Event()
    source = Source(lambda source: third.set() if source.taken == 2 else None)
    taker = Taker(source, 1, 60, lambda batches: (batch._replace(data=10 * batch.data) for batch in batches), ahead=2)
    assert taker.peek(1).batch.data == 10 and third.wait(60)
    assert [taker.peek(number).batch.data for number in (2, 3, 4)] == [20, 30, 40]
    taker.close()
    assert source.taken <= 6


def test_a_meter_counts_no_build_as_the_wait_for_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    built, meter, source = Taker.wait_until_built, Meter(), Source(lambda _: None)
    opened: list[object] = []

    def wait_until_built(taker: Taker) -> None:
        opened.append(meter.open)
        built(taker)

    monkeypatch.setattr(Taker, "wait_until_built", wait_until_built)
    progress = Progress(Stream.start(1), 0)
    nothing: Any = Mock()
    delivery = Delivery(lambda _: Taker(source, 1), progress, nothing, meter)
    assert delivery.take(lambda batch: batch.data, []) == 1
    assert opened[0] is None and meter.open is not None
    delivery.release()


def test_a_wait_ends_with_its_taker_unless_storage_hangs() -> None:
    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, 1, math.inf, ahead=1)
    taker.close()
    assert source.cancelled.is_set() and not taker._thread.is_alive()

    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, 1, 0.05)
    assert taker.peek(1) is None
    taker.close()
    assert not source.cancelled.is_set()
    source.cancel()
    taker._thread.join(60)
    assert not taker._thread.is_alive()


def test_a_batch_that_came_too_late_is_there_the_next_time() -> None:
    late = threading.Event()
    taker = Taker(Source(lambda _: late.wait()), 1, 0.05)
    assert taker.peek(1) is None
    late.set()
    taker._limit_s = 60
    assert taker.peek(1).batch.data == 1 and taker.peek(2).batch.data == 2
    taker.close()


def test_only_a_failure_may_be_named_for_longer_than_a_batch_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of infinite seconds would raise an OverflowError."""
    monkeypatch.setattr("tfpipe.data.delivery.taker.NAMING_S", math.inf)
    source = Source(lambda source: source.cancelled.wait())
    assert Taker(source, 1, 0.05).peek(1) is None
    source.cancel()


def test_a_taker_that_has_given_up_cancels_nothing_when_it_is_dropped() -> None:
    source = Source(lambda source: source.cancelled.wait())
    taker = Taker(source, 1, 0.05)
    thread = taker._thread
    assert taker.peek(1) is None
    del taker
    gc.collect()
    assert not source.cancelled.is_set()
    source.cancel()
    thread.join(60)
    assert not thread.is_alive()
