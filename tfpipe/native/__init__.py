"""The JPEG decoder in C (crops.h) and its ways to Python: a TensorFlow op, and a function for whole JPEGs of a batch.

It also records the times of single samples, for a trace.

It is built with the package where a C compiler is. Without it, tfpipe decodes by simplejpeg and OpenCV.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["EVENT", "HANDLE", "OFF", "Kind", "Native", "decoder_name", "missing", "native"]

logger = logging.getLogger(__name__)

# The environment variable that switches the decoder off, for comparisons: TFPIPE_NATIVE=0.
OFF = "TFPIPE_NATIVE"
FILES = "_crops*.so"
# Elements of a handle of an array, as op_column.c takes it; more than the 128 that TensorFlow copies into a graph.
HANDLE = 256
# struct tfpipe_event of record.h.
EVENT = np.dtype(
    [
        *(("when_ns", "i8"), ("sample", "i8"), ("call", "u8"), ("thread", "u8")),
        *(("header_ns", "i8"), ("decode_ns", "i8"), ("resize_ns", "i8")),
        *(("kind", "i4"), ("refused", "i4")),
    ]
)


class Kind(IntEnum):
    """Kinds of EVENTs."""

    IMAGE = 0  # an image was decoded: `sample` is its number in the call, the parts have their times
    READ, READ_END = 1, 2  # the read of the sample at position `sample` begins, ends
    CROP, CROP_END = 3, 4  # a call that parses, decodes and resizes the sample, among others, begins, ends
    DECODE = 5  # the sample is handed to the decoder: the IMAGE events of the same `call` are in the samples' order
    CALL = 6  # the decoder's op has ended: the parts are to allocate the crops, to decode, and to free the JPEGs


VERSION = 6  # tfpipe_native_version() of op.c
BUILD = "install tfpipe again, with a C compiler (cc) on PATH"
WITHOUT = "simplejpeg + OpenCV"


class Native(NamedTuple):
    """The loaded library."""

    crops: Callable[..., tuple[Any, Any]]
    """The op, in graph: (jpegs (string [n]), sizes (int32 [n, 2]: height, width), images (int64 [k]: number of the
    JPEG, ascending), windows (int32 [k, 4]), flips (bool [k], or [0]), height, width, channels) -> crops (uint8 [k,
    height, width, channels]), refused (bool [n]). The crops of a refused JPEG are undefined: decode it otherwise."""
    sizes: Callable[..., Any]
    """The op, in graph: (images (string [n]), sizes (int32 [n, 2])) -> sizes (int32 [n, 2]: height, width), those that
    are 0 replaced by what a JPEG's header says; 0 stays for other formats and unusual headers."""
    read: Callable[[Any], Any]
    """The op, in graph: (path of a file (string [])) -> its contents (string []), "" for the path "". Its errors are
    those of tf.io.read_file; a file of more than 2^30 bytes is one."""
    rows: Callable[..., Any]
    """The op, in graph: (handle of an array (int64 [HANDLE]), items (int64 [...]), T=the array's dtype) -> its rows T
    [...], or [..., elements]. Raises tf.errors.FailedPreconditionError in another process than the array's."""
    lines: Callable[[Any, Any, Any], Any]
    """The op, in graph: (handle of a text (uint8 [m]), handle of where its lines start (int64 [n + 1]), items (int64
    [...])) -> lines (string [...]), without their ends. Raises as `rows`."""
    origin: int
    """Number of this process in handles."""
    whole: Callable[..., None]
    """(addresses of JPEGs (uintp [k]), their lengths (int64 [k]), flips (bool [k], or [0]), crops (uint8 [k, height,
    width, channels], written), refused (bool [k], written)). Releases the GIL. The JPEGs must stay in memory."""
    copy: Callable[[np.ndarray, np.ndarray], None]
    """(addresses of records (uintp [k]), crops (uint8 [k, ...], written)): copies a record into each crop, past the
    cache. Releases the GIL. The records must stay in memory."""
    simd: str
    """Instructions that it uses: "avx2", "sse2" or "plain"."""
    mark: Callable[..., Any]
    """The op, in graph: (positions (int64), through (int64), kind (above 0)) -> a copy of `through`. While events are
    recorded, adds one for each position."""
    record: Callable[[int], None]
    """(capacity). Begins to record EVENTs, the newest `capacity` of them. Raises ValueError below 1, MemoryError."""
    recorded: Callable[[], np.ndarray]
    """() -> EVENTs, in their order. Ends recording."""


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
        ops = tf.load_op_library(str(file))
        library = ctypes.CDLL(str(file))
        if library.tfpipe_native_version() != VERSION:
            return f"{file} was built from another version of tfpipe: {BUILD}"
    except (OSError, AttributeError, tf.errors.OpError) as error:
        return f"{file} cannot be loaded ({error}): {BUILD}"
    library.tfpipe_native_simd.restype = ctypes.c_char_p
    simd = library.tfpipe_native_simd().decode()
    whole, copy = _whole(library), _copy(library)
    library.tfpipe_native_origin.restype = ctypes.c_int64
    in_graph = ops.tfpipe_crops, ops.tfpipe_sizes, ops.tfpipe_read, ops.tfpipe_rows, ops.tfpipe_lines
    return Native(*in_graph, library.tfpipe_native_origin(), whole, copy, simd, ops.tfpipe_mark, *_recording(library))


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


def _recording(library: ctypes.CDLL) -> tuple[Callable[[int], None], Callable[[], np.ndarray]]:
    library.tfpipe_native_record_start.argtypes = (ctypes.c_int64,)
    library.tfpipe_native_record_stop.restype = ctypes.c_int64
    library.tfpipe_native_record_take.argtypes = (ctypes.c_void_p,)

    def record(capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a capacity of {capacity} events cannot be recorded: give 1 or more")
        if library.tfpipe_native_record_start(capacity):
            raise MemoryError(f"no memory to record {capacity} events of {EVENT.itemsize} bytes")

    def recorded() -> np.ndarray:
        events = np.empty(library.tfpipe_native_record_stop(), EVENT)
        library.tfpipe_native_record_take(events.ctypes.data)
        return events

    return record, recorded
