"""Marks in the pipeline, which record when each sample is read and cropped while a trace is recorded.

Only a pipeline that is built inside `marking` has them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import tensorflow as tf

from tfpipe.native import EventKind, native

T = TypeVar("T")
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


def mark_read(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `read`, SamplePaths -> Encoded in graph, in the marks READ and READ_END."""

    @tf.autograph.experimental.do_not_convert
    def marked_read(image: Any) -> Any:
        position = mark(EventKind.READ, image.visit.position, image.visit.position)
        with tf.control_dependencies([position]):
            encoded = read(image._replace(visit=image.visit._replace(position=position)))
        with tf.control_dependencies(tf.nest.flatten(encoded)):
            visit = encoded.visit._replace(position=mark(EventKind.READ_END, position, encoded.visit.position))
        return encoded._replace(visit=visit)

    return marked_read if _wanted.get() else read


def mark_crop(crop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `crop`, Encoded -> Crops in graph, in the marks CROP and CROP_END."""

    @tf.autograph.experimental.do_not_convert
    def marked_crop(encoded: Any) -> Any:
        positions = mark(EventKind.CROP, encoded.visit.position, encoded.visit.position)
        with tf.control_dependencies([positions]):
            crops = crop(encoded._replace(visit=encoded.visit._replace(position=positions)))
        with tf.control_dependencies(tf.nest.flatten(crops)):
            return crops._replace(positions=mark(EventKind.CROP_END, positions, crops.positions))

    return marked_crop if _wanted.get() else crop


def mark_decode(windows: T, positions: tf.Tensor) -> T:
    """Puts the mark DECODE before a call of the decoder that gets `windows` of the images at `positions`."""
    return windows._replace(images=mark(EventKind.DECODE, positions, windows.images))  # type: ignore[attr-defined]
