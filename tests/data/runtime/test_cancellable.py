"""An iterator that is dropped while TensorFlow takes its time to end the pipeline."""

import threading

import pytest
import tensorflow as tf

from tfpipe.data.runtime import shutdown
from tfpipe.data.runtime.cancellable import Cancellable


class Slow:
    """Something that ends only when it is allowed to."""

    def __init__(self) -> None:
        self.allowed, self.ended = threading.Event(), threading.Event()

    def __del__(self) -> None:
        self.allowed.wait()
        self.ended.set()


def test_a_pipeline_that_ends_slowly_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "END_S", 0.05)
    elements, slow = Cancellable(tf.data.Dataset.range(3)), Slow()
    allowed, ended = slow.allowed, slow.ended
    assert [int(element) for element in elements] == [0, 1, 2]
    elements.iterator = slow
    del slow, elements
    assert not ended.is_set(), "it still ends, in a thread"
    allowed.set()
    assert ended.wait(60)


def test_a_pipeline_that_ends_at_once_has_ended_when_it_is_dropped() -> None:
    slow = Slow()
    slow.allowed.set()
    ended, elements = slow.ended, Cancellable(tf.data.Dataset.range(3))
    elements.iterator = slow
    del slow, elements
    assert ended.is_set()
