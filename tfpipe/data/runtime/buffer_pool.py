"""Recycles memory for batches."""

import math
import weakref
from collections import deque
from contextlib import suppress

import numpy as np

# TensorFlow adopts an array at such an address without a copy.
ALIGNMENT = 64


class BufferPool:
    """A pool of batch buffers, reused once no array refers to them: allocating one costs as much as filling it."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """Returns an uninitialised uint8 array of that shape, aligned to ALIGNMENT bytes."""
        size = math.prod(shape)
        if size == 0:
            return np.empty(shape, np.uint8)
        room = None
        with suppress(IndexError):  # another thread may take the last one
            room = self._free.pop()
        if room is None or len(room) < size:
            room = allocate_aligned((size,))
        # Every view, even a view of a view, keeps `base` alive: its base is a memoryview, which ends NumPy's chain.
        base = np.frombuffer(room.data[:size], np.uint8)
        weakref.finalize(base, self._free.append, room).atexit = False
        return base.reshape(shape)


def allocate_aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Returns an uninitialised uint8 array of that shape, aligned to ALIGNMENT bytes."""
    size = math.prod(shape)
    buffer = np.empty(size + ALIGNMENT - 1, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size].reshape(shape)
