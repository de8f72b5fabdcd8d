"""Memory for batches, used again and again."""

import math
import weakref
from collections import deque

import numpy as np

from tfpipe.data.decoders import ALIGNMENT


class Rooms:
    """Arrays that are used again once nobody holds them: fresh memory costs as much as the copy into it."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """uint8 of that shape, aligned, of any content."""
        size = math.prod(shape)
        if size == 0:
            return np.empty(shape, np.uint8)
        room = self._reuse(size)
        if room is None:
            room = np.empty(size + ALIGNMENT - 1, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        # The base of all views of it, whoever makes them, since it is not the array itself that it is made from.
        base = np.frombuffer(room.data[start : start + size], np.uint8)
        weakref.finalize(base, self._free.append, room).atexit = False
        return base.reshape(shape)

    def _reuse(self, size: int) -> np.ndarray | None:
        try:
            room = self._free.pop()
        except IndexError:
            return None
        return room if len(room) >= size + ALIGNMENT - 1 else None
