"""Pixels of packed crops: mirrored without the library in C."""

import numpy as np
import pytest

from tfpipe.data.sources.packed.pixels import mirror_in_place


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("width", [1, 2, 7, 31, 224])
def test_mirroring_in_place_is_exact(width: int, channels: int) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (3, 5, width, channels), np.uint8)
    before = crops.copy()
    mirror_in_place(crops, np.array([False, True, True]))
    assert (crops[0] == before[0]).all() and (crops[1:] == before[1:, :, ::-1]).all()
    mirror_in_place(crops, np.zeros(0, bool))
    assert (crops[1:] == before[1:, :, ::-1]).all()
