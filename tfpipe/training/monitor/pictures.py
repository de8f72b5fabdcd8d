"""A picture of the first batch of a test pass: what the model is given, and which crops it gets right."""

import math
from typing import Any

import numpy as np

MOST, SIDE_PX, FRAME_PX = 16, 96, 3
RIGHT, WRONG = (0, 158, 115), (213, 94, 0)  # green and orange that colour-blind people tell apart


class TestPicture:
    """The first crops of a test pass as one picture: green frames are right predictions, orange ones wrong."""

    __test__ = False  # no test of pytest's

    def __init__(self) -> None:
        self._pixels: np.ndarray | None = None

    def add(self, images: Any, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Adds a batch, of which the first one since `take` is kept: images [batch, height, width, channels]."""
        if self._pixels is None and len(labels):
            self._pixels = grid(np.asarray(images[:MOST]), (labels == predicted)[:MOST])

    def take(self) -> np.ndarray | None:
        """Returns the picture, uint8 [height, width, 3], and forgets it; None if no pass has run since the last one."""
        pixels, self._pixels = self._pixels, None
        return pixels


def grid(images: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns images in a square grid, each in a frame that says whether its prediction is right.

    Args:
        images: uint8, or floats, whose range becomes [0, 255]; [n, height, width, 1 or 3]. Large ones are thinned out.
        right: bool [n].
    """
    every = -(-max(images.shape[1:3]) // SIDE_PX)
    tiles = np.broadcast_to(images[:, ::every, ::every], (*images[:, ::every, ::every].shape[:3], 3))
    if tiles.dtype != np.uint8:
        low, high = tiles.min(), tiles.max()
        tiles = np.round(255.0 * (tiles.astype(np.float32) - low) / max(high - low, 1e-6)).astype(np.uint8)
    count, height, width, _ = tiles.shape
    columns = math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    cell_height, cell_width = height + 2 * FRAME_PX, width + 2 * FRAME_PX
    result = np.zeros((rows * cell_height, columns * cell_width, 3), np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // columns * cell_height, number % columns * cell_width
        cell = result[top : top + cell_height, left : left + cell_width]
        cell[:] = RIGHT if right[number] else WRONG
        cell[FRAME_PX:-FRAME_PX, FRAME_PX:-FRAME_PX] = tile
    return result
