"""Columns: large arrays of the catalog, whose rows a graph looks up where they are.

A graph that captures the arrays as tensors costs each process 66 bytes an image where TensorFlow uses oneDNN: when an
iterator is made, tf.data rewrites the graph with zeros of each tensor's shape, and the allocator keeps them. Here a
graph captures handles of 2 kB, which keep the arrays in memory for as long as any graph or iterator holds them.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.data.runtime.buffer_pool import allocate_aligned
from tfpipe.native import HANDLE, native


class GraphColumn:
    """An array [rows] or [rows, elements], looked up by row, in graph."""

    def __init__(self, array: np.ndarray, tensor: tf.Tensor, *, sent: bool) -> None:
        """Looks up rows of `array` in `tensor`: the array itself if the graph is `sent`, otherwise its handle."""
        self.tensor, self._sent = tensor, sent
        self._type, self._row = tf.as_dtype(array.dtype), array.shape[1:]

    def at(self, items: tf.Tensor) -> tf.Tensor:
        """Returns the rows of `items` (int64 [...]) as a tensor [...] or [..., elements]."""
        if self._sent:
            return tf.gather(self.tensor, items)
        rows = native().rows(self.tensor, items, T=self._type)
        rows.set_shape(items.shape.concatenate(self._row))
        return rows


class Lines:
    """Lines of a text, looked up by number, in graph."""

    def __init__(self, text: GraphColumn, starts: GraphColumn) -> None:
        """Looks up lines of `text` (uint8 [m]), each with its end; `starts` (int64 [n + 1]) has each one's first byte,
        and the last one's end."""
        self._text, self._starts = text.tensor, starts.tensor

    def at(self, items: tf.Tensor) -> tf.Tensor:
        """Returns the lines of `items` (int64 [...]) as strings [...], without their ends."""
        lines = native().lines(self._text, self._starts, items)
        lines.set_shape(items.shape)
        return lines


def columns(*arrays: np.ndarray, sent: bool) -> list[GraphColumn]:
    """Returns a column for each of `arrays`, [rows] or [rows, elements], which must not change from now on.

    If graphs are `sent` to other processes, they hold the arrays themselves.
    """
    tensors = adopt(*(arrays if sent else (handle(array, native().origin) for array in arrays)))
    return [GraphColumn(array, tensor, sent=sent) for array, tensor in zip(arrays, tensors, strict=True)]


def adopt(*arrays: np.ndarray) -> list[tf.Tensor]:
    """Returns tensors that share the memory of `arrays`, which must not change from now on.

    An array whose memory does not start at a multiple of 64 bytes, or is not contiguous, is copied. The tensors are
    eager and on the CPU, where tf.data runs: a graph under construction holds them by reference.
    """
    types = [tf.as_dtype(array.dtype) for array in arrays]
    # tf.constant copies. DLPack refuses read-only arrays, and writable mappings count as memory where the system does
    # not overcommit. What numpy_function returns within a graph is taken as it is.
    inputs = [arrays]  # TensorFlow keeps the function below as long as the process lives, and with it the list
    with tf.init_scope(), tf.device("CPU"):
        take = tf.function(lambda: tf.numpy_function(inputs.pop, [], types), autograph=False)
        # A concrete function: calls of others are counted, and many new ones are warned of.
        return list(take.get_concrete_function()())


def handle(array: np.ndarray, origin: int) -> np.ndarray:
    """Returns the handle of an array, int64 [HANDLE], as ops/column.c takes it; its memory keeps `array`."""
    return np.asarray(_Handle(np.ascontiguousarray(array), origin))


class _Handle:
    def __init__(self, array: np.ndarray, origin: int) -> None:
        self._array = array
        self._fields = allocate_aligned((8 * HANDLE,)).view(np.int64)
        row_bytes = array.itemsize * int(np.prod(array.shape[1:]))
        fields = (origin, array.ctypes.data, len(array), array.shape[1] if array.ndim > 1 else 0, row_bytes)
        self._fields[:] = [*fields, *[0] * (HANDLE - len(fields))]
        # An array made of this holds a reference to this object, not only to the fields.
        self.__array_interface__: dict[str, Any] = self._fields.__array_interface__
