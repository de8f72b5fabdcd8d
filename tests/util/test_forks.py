"""What a process has made stays its own: a forked child makes another, and ends none of its parent's."""

import os
import threading
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tfpipe.util.forks import per_process, unless_forked


def in_child(work: Callable[[], bytes]) -> bytes:
    """Returns what `work` does in a fork of this process, which ends at once after it."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, work())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=6))
def test_each_process_makes_one_for_the_same_arguments(calls: list[tuple[bool, int]]) -> None:
    makers: list[tuple[int, int]] = []

    @per_process
    def make(number: int) -> object:
        makers.append((os.getpid(), number))
        return object()

    def take(number: int) -> bytes:
        return b"same" * (make(number) is make(number)) + b"%d" % makers.count((os.getpid(), number))

    for forked, number in calls:
        assert (in_child(lambda number=number: take(number)) if forked else take(number)) == b"same1"
    own = {number for forked, number in calls if not forked}
    assert sorted(makers) == [(os.getpid(), number) for number in sorted(own)]


def test_a_child_does_not_wait_for_a_lock_that_its_parent_holds() -> None:
    lock = per_process(threading.Lock)
    with lock():
        assert in_child(lambda: b"free" * lock().acquire(timeout=60)) == b"free"
        assert not lock().acquire(blocking=False)


def test_a_child_keeps_what_its_parent_made_without_ending_it() -> None:
    class Connection:
        def __del__(self) -> None:
            ended.append(os.getpid())

    ended: list[int] = []
    connect = per_process(Connection)
    connect()
    assert in_child(lambda: b"%d" % (connect() is None or len(ended))) == b"0"
    assert not ended


def test_an_end_is_of_the_process_alone_that_registered_it() -> None:
    ends: list[int] = []
    end = unless_forked(ends.append)
    assert in_child(lambda: end(1) or b"%d" % len(ends)) == b"0"
    end(2)
    assert ends == [2]
