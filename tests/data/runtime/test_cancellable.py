"""An iterator that is dropped while TensorFlow takes its time to end the pipeline."""

import gc
import threading
import weakref

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
    elements._held[0] = slow
    del slow, elements
    assert not ended.is_set(), "it still ends, in a thread"
    allowed.set()
    assert ended.wait(60)


def test_a_pipeline_that_ends_at_once_has_ended_when_it_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "END_S", 60.0)
    slow = Slow()
    slow.allowed.set()
    ended, elements = slow.ended, Cancellable(tf.data.Dataset.range(3))
    elements._held[0] = slow
    del slow, elements
    assert ended.is_set()


@pytest.mark.parametrize("message", ["", "too odd"], ids=["the end", "an error"])
def test_an_error_does_not_hold_the_pipeline(message: str) -> None:
    """Not even as long as nothing collects its cycles: the pipeline would end in whatever thread drops the error."""

    def check(number: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(tf.logical_or(message == "", number < 2), [message])]):
            return tf.identity(number)

    elements = Cancellable(tf.data.Dataset.range(3).map(check))
    resource = weakref.ref(elements.iterator._iterator_resource)
    gc.disable()
    try:
        with pytest.raises((StopIteration, tf.errors.InvalidArgumentError), match=message or None) as caught:
            for _ in range(4):
                next(elements)
        assert resource() is not None and caught.value.__context__ is None
        elements._held.clear()
        assert resource() is None
    finally:
        gc.enable()
