"""A stand-in of OpenCV for profiles/compare/peers.py: its resize and its flip, by Pillow and NumPy."""

import numpy as np
from PIL import Image

INTER_LINEAR = Image.Resampling.BILINEAR


def setNumThreads(_: int) -> None:
    """Does nothing: Pillow has no threads of its own."""


def resize(image: np.ndarray, size: tuple[int, int], interpolation: Image.Resampling) -> np.ndarray:
    """Resizes an image (uint8 [height, width, 3]) to (width, height)."""
    return np.asarray(Image.fromarray(image).resize(size, interpolation))


def flip(image: np.ndarray, code: int) -> np.ndarray:
    """Mirrors an image, as the code 1 has it."""
    assert code == 1
    return image[:, ::-1]
