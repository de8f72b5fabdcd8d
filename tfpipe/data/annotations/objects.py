"""The objects that an annotation states, as plain values, and the rules that all formats share.

Creating an array for each of a million files would take as long as reading them.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# A typical annotation has a few hundred bytes; one with a thousand objects, a few hundred thousand.
MAX_BYTES = 1_000_000
# How far beyond 1 a relative edge may reach: rounding makes 1.0000001 of 1.
TOLERANCE = 0.01
# Exclusive upper bound of all numbers, in pixels: no image is so large.
MAX_EDGE_PX = 1e9
# Smaller numbers count as 0: divided by an image's size they may be denormal, which TensorFlow's threads take as 0.
MIN_MAGNITUDE = 1e-20
NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
IS_NUMBER = re.compile(NUMBER, re.ASCII).fullmatch


class Objects(NamedTuple):
    """The objects of one image, as columns."""

    names: list[str | int]  # class names of the objects, or the numbers of their classes
    edges: list[float]  # ymin, xmin, ymax, xmax of each object in turn, in pixels, as annotated
    size: list[float]  # height and width of the image in pixels, as annotated; 0 if not stated, 1 if edges are relative

    @property
    def boxes(self) -> np.ndarray:
        """The edges as float32 [objects, 4]."""
        return np.array(self.edges, np.float32).reshape(-1, 4)


NOTHING = Objects([], [], [0.0, 0.0])


def composed_form(name: str) -> str:
    """Returns a class name in NFC: macOS and Linux write é as one character or as two, which look alike."""
    return unicodedata.normalize("NFC", name)


def are_relative(edges: Sequence[float]) -> bool:
    """Returns whether edges that should be in pixels are relative to the image's size.

    That is if all are from 0 to 1 and some is no whole number; [0, 0, 1, 1] may be the first pixel.
    """
    within = len(edges) > 0 and max(edges) <= 1 + TOLERANCE and min(edges) >= -TOLERANCE
    return within and any(edge != round(edge) for edge in edges)
