"""Marks in the pipeline, which record when each sample is read and decoded while a trace is recorded.

Only a pipeline that is built inside `marking` has them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tfpipe.native import EventKind, native

_wanted: ContextVar[bool] = ContextVar("marks wanted", default=False)


@contextmanager
def marking() -> Iterator[None]:
    """Lets pipelines that are built inside `with`, or by a function that it decorates, have marks."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def mark(kind: EventKind, positions: tf.Tensor, through: tf.Tensor) -> tf.Tensor:
    """Returns `through` (int64); with marks, a copy, made when the samples at `positions` (int64) reach `kind`."""
    if not _wanted.get():
        return through
    return tf.ensure_shape(native().mark(positions, through, kind=int(kind)), through.shape)


def mark_reads(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `read`, in graph from SamplePaths to Encoded, in the marks READ and READ_END."""

    @tf.autograph.experimental.do_not_convert
    def marked_read(samples: Any) -> Any:
        positions = mark(EventKind.READ, samples.visit.position, samples.visit.position)
        with tf.control_dependencies([positions]):
            result = read(samples._replace(visit=samples.visit._replace(position=positions)))
        with tf.control_dependencies(tf.nest.flatten(result)):
            ended = mark(EventKind.READ_END, positions, result.visit.position)
            return result._replace(visit=result.visit._replace(position=ended))

    return marked_read if _wanted.get() else read
