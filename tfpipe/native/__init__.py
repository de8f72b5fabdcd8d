"""The JPEG decoder in C (crops.h) and its ways to Python: a TensorFlow op, and a function for whole JPEGs of a batch.

It is built with the package where a C compiler is. Without it, tfpipe decodes by simplejpeg and OpenCV.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["OFF", "Native", "decoder_name", "missing", "native"]

logger = logging.getLogger(__name__)

# The environment variable that switches the decoder off, for comparisons: TFPIPE_NATIVE=0.
OFF = "TFPIPE_NATIVE"
FILES = "_crops*.so"
VERSION = 2  # tfpipe_native_version() of op.c
BUILD = "install tfpipe again, with a C compiler (cc) on PATH"
WITHOUT = "simplejpeg + OpenCV"


class Native(NamedTuple):
    """The loaded library."""

    crops: Callable[..., tuple[Any, Any]]
    """The op, in graph: (jpegs (string [n]), sizes (int32 [n, 2]: height, width), images (int64 [k]: number of the
    JPEG, ascending), windows (int32 [k, 4]), flips (bool [k], or [0]), height, width, channels) -> crops (uint8 [k,
    height, width, channels]), refused (bool [n]). The crops of a refused JPEG are undefined: decode it otherwise."""
    whole: Callable[..., None]
    """(addresses of JPEGs (uintp [k]), their lengths (int64 [k]), flips (bool [k], or [0]), crops (uint8 [k, height,
    width, channels], written), refused (bool [k], written)). Releases the GIL. The JPEGs must stay in memory."""
    copy: Callable[[np.ndarray, np.ndarray], None]
    """(addresses of records (uintp [k]), crops (uint8 [k, ...], written)): copies a record into each crop, past the
    cache. Releases the GIL. The records must stay in memory."""
    simd: str
    """Instructions that it uses: "avx2", "sse2" or "plain"."""


@functools.cache
def native() -> Native | None:
    """Returns the decoder in C, None if it cannot be used; the first call then logs why, and what that costs."""
    loaded = _loaded()
    if isinstance(loaded, str):
        logger.warning("%s; the other decoders take 1.6 times the CPU time", loaded)
        return None
    return loaded


def missing() -> str:
    """Returns why the decoder in C cannot be used, and what to do; "" if it can be."""
    loaded = _loaded()
    return loaded if isinstance(loaded, str) else ""


def decoder_name() -> str:
    """Returns the name of the decoder of JPEGs that `data.decoder` "native" stands for, with the reason."""
    loaded = _loaded()
    return f"{WITHOUT}; {loaded}" if isinstance(loaded, str) else f"tfpipe's own in C ({loaded.simd})"


@functools.cache
def _loaded() -> Native | str:
    if os.environ.get(OFF) == "0":
        return f"{OFF}=0 switches tfpipe's own decoder in C off"
    file = next(Path(__file__).parent.glob(FILES), None)
    if file is None:
        return f"tfpipe's own decoder in C is not built: {BUILD}"
    import tensorflow as tf

    try:
        op = tf.load_op_library(str(file)).tfpipe_crops
        library = ctypes.CDLL(str(file))
        if library.tfpipe_native_version() != VERSION:
            return f"{file} was built from another version of tfpipe: {BUILD}"
    except (OSError, AttributeError, tf.errors.OpError) as error:
        return f"{file} cannot be loaded ({error}): {BUILD}"
    library.tfpipe_native_simd.restype = ctypes.c_char_p
    return Native(op, _whole(library), _copy(library), library.tfpipe_native_simd().decode())


def _whole(library: ctypes.CDLL) -> Callable[..., None]:
    function, address = library.tfpipe_native_whole, ctypes.c_void_p
    function.argtypes = (*(address,) * 3, ctypes.c_int64, *(ctypes.c_int,) * 3, *(address,) * 2)
    function.restype = None

    def whole(
        addresses: np.ndarray, lengths: np.ndarray, flips: np.ndarray, crops: np.ndarray, refused: np.ndarray
    ) -> None:
        mirror = flips.ctypes.data if len(flips) else None
        where = addresses.ctypes.data, lengths.ctypes.data, mirror
        function(*where, len(crops), *crops.shape[1:], crops.ctypes.data, refused.ctypes.data)

    return whole


def _copy(library: ctypes.CDLL) -> Callable[[np.ndarray, np.ndarray], None]:
    function, address = library.tfpipe_native_copy, ctypes.c_void_p
    function.argtypes = (address, ctypes.c_int64, ctypes.c_int64, address)
    function.restype = None

    def copy(addresses: np.ndarray, crops: np.ndarray) -> None:
        function(addresses.ctypes.data, len(crops), crops.nbytes // max(1, len(crops)), crops.ctypes.data)

    return copy
