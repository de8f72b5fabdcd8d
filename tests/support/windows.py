"""Random windows by NumPy, one after the other, to compare those of native/sample.c with."""

import math

import numpy as np

from tfpipe.data.images.windows import Ranges
from tfpipe.data.order.permutation import GAMMA, mix

TRIES, COVERING_TRIES = 10, 100
WHOLE = np.array([[0, 0, 1, 1]], np.float32)


def random_window(seed: np.ndarray, size: tuple[int, int], boxes: np.ndarray, how: Ranges) -> list[int]:
    """Returns top, left, height and width of a window of an image, by a seed (int64 [2]).

    It covers the share `how.covered` of one of `boxes` (float32 [n, 4], relative), of the image if there are none.
    """
    height, width = map(int, size)
    tries = COVERING_TRIES if how.covered > 0 else TRIES
    first, second = seed.astype(np.uint64)[:, None]
    keys = mix(mix(first + GAMMA) + GAMMA * second) + np.arange(1, 4 * tries + 1, dtype=np.uint64) * GAMMA
    drawn = (mix(keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    (least, most), (low, high) = how.area, map(math.log, how.aspect)
    for area, aspect, top, left in drawn.reshape(tries, 4).tolist():
        area, aspect = height * width * (least + (most - least) * area), _exponential(low + (high - low) * aspect)
        high_, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= high_ <= height and 1 <= wide <= width:
            window = [math.floor(top * (height - high_ + 1)), math.floor(left * (width - wide + 1)), high_, wide]
            if _covers(window, (height, width), boxes, how.covered):
                return window
    window = _middle(height, width, how.aspect)
    return window if _covers(window, (height, width), boxes, how.covered) else [0, 0, height, width]


def _middle(height: int, width: int, aspect: tuple[float, float]) -> list[int]:
    """Returns the middle of an image, as much of it as the aspect ratios allow."""
    high, wide = height, width
    if width / height < aspect[0]:
        high = min(max(round(width / aspect[0]), 1), height)
    if width / height > aspect[1]:
        wide = min(max(round(height * aspect[1]), 1), width)
    return [(height - high) // 2, (width - wide) // 2, high, wide]


def _covers(window: list[int], size: tuple[int, int], boxes: np.ndarray, covered: float) -> bool:
    if covered <= 0:
        return True
    edges = (boxes if len(boxes) else WHOLE).astype(np.float64) * (size * 2)
    top, left, height, width = window
    both = np.minimum([top + height, left + width], edges[:, 2:]) - np.maximum([top, left], edges[:, :2])
    areas = np.prod(edges[:, 2:] - edges[:, :2], axis=1)
    return bool(((both > 0).all(1) & (np.prod(both, axis=1) >= areas * covered)).any())


def _exponential(x: float) -> float:
    """Returns e^x by sums and products alone, which are the same everywhere."""
    y, power = x * 2.0**-8, 1 / math.factorial(7)
    for number in range(6, -1, -1):
        power = 1 / math.factorial(number) + y * power
    for _ in range(8):
        power *= power
    return power
