"""Memory that is used again, but never while an array holds it."""

import pytest

from tfpipe.data.runtime import buffer_pool
from tfpipe.data.runtime.buffer_pool import BufferPool


def test_arrays_are_used_again_once_nobody_holds_them() -> None:
    rooms = BufferPool()
    first = rooms.take((5, 7))
    address = first.ctypes.data
    assert address % 64 == 0
    view = first[2:].reshape(-1)[3:]
    del first
    assert rooms.take((5, 7)).ctypes.data != address
    del view
    assert address in [rooms.take((5, 7)).ctypes.data for _ in range(2)]
    assert rooms.take((50, 7)).shape == (50, 7)


def test_batches_of_one_size_that_are_given_back_take_one_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[tuple[int, ...]] = []
    aligned = buffer_pool.allocate_aligned
    monkeypatch.setattr(buffer_pool, "allocate_aligned", lambda shape: allocated.append(shape) or aligned(shape))
    rooms = BufferPool()
    for _ in range(10):
        rooms.take((5, 7))
    assert allocated == [(35,)]
