"""The message about a rank that gets no batch: the next files, and those that do not answer; and who waits for it."""

import gc
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.sample import SampleData
from tfpipe import Cursor, Stream, TfpipeError, World, load_config
from tfpipe.data.failures import stalled
from tfpipe.data.failures.stalled import Taker, pending_files, unreadable_within
from tfpipe.data.runtime.parallelism import READS
from tfpipe.data.sources.registry import load_split


def test_the_next_files_are_those_that_the_rank_reads_next(sample: SampleData, tmp_path: Path) -> None:
    """A file that hangs may be any one of the next batch's, or of those that are decoded together with its last one."""
    config = load_config(sample.config(tmp_path / "config.json"), ["data.batch_size=300"]).data
    world, stream = World(1, 2), Stream.start(2)
    split = load_split(config, "train", world)
    for last, begin in ((None, 1), ((7, 0), 7)):
        paths = pending_files(split, stream, last)
        items = split.order.items(begin + 2 * np.arange(300 + READS), world)
        images = [path for path in paths if not path.endswith(".xml")]
        assert images == [split.catalog.paths[int(item)] for item in items]
        assert {path for path in paths if path.endswith(".xml")} == {
            split.catalog.annotation(int(item)) for item in items
        } - {""}


def test_a_test_pass_ends_where_its_list_does(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "config.json")).data
    split = load_split(config, "test", World())
    stream = Stream.start(1).at([Cursor(len(split.catalog) - 2)])
    paths = pending_files(split, stream, None)
    assert [path for path in paths if not path.endswith(".xml")] == split.catalog.paths[len(split.catalog) - 2 :]


def test_files_that_do_not_answer_are_told_from_those_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    paths = [str(tmp_path / name) for name in ("good", "fifo", "gone")]
    assert unreadable_within(paths, patience_s=0.3) == [
        f"{paths[1]}: no answer in 0.3 s",
        f"{paths[2]}: No such file or directory",
    ]
    assert unreadable_within(paths[:1]) == []


def test_a_file_far_ahead_that_does_not_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled, "TOGETHER", 2)
    paths = [str(tmp_path / name) for name in "abcdefg"]
    for path in paths[:4]:
        Path(path).touch()
    os.mkfifo(paths[4])
    assert unreadable_within(paths, patience_s=0.3) == [
        f"{paths[4]}: no answer in 0.3 s",
        f"{paths[5]}: No such file or directory",
    ]


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
    monkeypatch.setattr(stalled, "NAMING_S", math.inf)
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
