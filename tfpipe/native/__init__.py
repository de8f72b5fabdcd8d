"""The library in C (crops.h) as Python calls it, and its TensorFlow ops. It is loaded when it is first used."""

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.native.version import REMEDY, VERSION
from tfpipe.util.process import load_for_all

CORE, OPS = "_core*.so", "_ops*.so"
MOST_MEMBERS, NAME_BYTES = 4096, 64  # of a tar file that are listed in a call; memory for a name, on average
OUTPUT_BYTES = 1 << 16  # for which memory is taken at once
HANDLE = 256  # elements of a handle of an array (ops/column.c): more than the 128 that TensorFlow copies into a graph


class EventKind(IntEnum):
    """Kinds of events; record.h has those of the decoder."""

    IMAGE = 0  # an image was decoded: `sample` is its number in the call, the parts have their times
    READ, READ_END = 1, 2  # the read of the sample at position `sample` begins, ends
    DECODE = 3  # the sample is handed to the decoder: the IMAGE events of the same `call` are in the samples' order


class Core:
    """The functions of the library that need no TensorFlow. They release the GIL."""

    simd: str
    """Instructions in use: "avx2", "neon" or "plain"."""
    kernels: dict[str, int]
    """Numbers of the kernels of a resize, which crops.h describes, by their names in a config."""
    operations: dict[str, int]
    """Numbers of the kinds of operations of a crop; augment.h has their values."""
    steps: dict[str, int]
    """Numbers of the kinds of steps, which draw.h describes, by their names in a config."""
    columns: int
    """Numbers of a step."""
    full_weight: int
    """Weight of a crop that `mix` leaves as it is."""
    event: np.dtype
    """Type of a recorded event, which record.h describes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        address, number, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        library.tfpipe_native_whole.argtypes = (*(address,) * 3, count, *(number,) * 3, *(address,) * 2)
        library.tfpipe_native_damaged.argtypes = (ctypes.c_char_p, count, number, number)
        library.tfpipe_read_header.argtypes = (ctypes.c_char_p, count, address)
        library.tfpipe_native_copy.argtypes = (address, address, count, *(number,) * 3, address)
        library.tfpipe_scratch_take.restype = address
        library.tfpipe_scratch_give.argtypes = (address,)
        library.tfpipe_find_entries.argtypes = (address, ctypes.c_char_p, count, number, address, count)
        for written in (library.tfpipe_store, library.tfpipe_unstore):
            written.argtypes = (address, ctypes.c_char_p, count, address, count)
            written.restype = count
        library.tfpipe_find_entries.restype = count
        library.tfpipe_native_tar.argtypes = (number, address, count, address, count, address, count, address)
        library.tfpipe_native_tar.restype = count
        library.tfpipe_record_start.argtypes = (count,)
        library.tfpipe_record_stop.restype = count
        library.tfpipe_record_take.argtypes = (address,)
        self._library = library
        self.simd = _text(library.tfpipe_simd)
        lists = library.tfpipe_native_kernels, library.tfpipe_native_operations, library.tfpipe_native_steps
        kernels, operations, steps = (enumerate(_text(names).split()) for names in lists)
        self.kernels = {name.lower(): kind for kind, name in kernels}
        self.operations, self.steps = ({name: kind for kind, name in names} for names in (operations, steps))
        self.columns = number.in_dll(library, "tfpipe_native_columns").value
        self.full_weight = number.in_dll(library, "tfpipe_native_full_weight").value
        members = [line.split() for line in _text(library.tfpipe_native_event).splitlines()]
        fields = [(name, kind.removesuffix("_t")) for kind, *names in members for name in names]
        self.event = np.dtype(fields, align=True)

    def whole(
        self, addresses: np.ndarray, lengths: np.ndarray, flips: np.ndarray, crops: np.ndarray, refused: np.ndarray
    ) -> None:
        """Decodes JPEGs of one size as a whole; they must stay in memory.

        Args:
            addresses: of the JPEGs, uintp [k].
            lengths: in bytes, int64 [k].
            flips: which to mirror, bool [k], or [0] for none.
            crops: uint8 [k, height, width, channels], written.
            refused: bool [k], written: JPEGs that are to be decoded otherwise.
        """
        mirror = flips.ctypes.data if len(flips) else None
        jpegs = addresses.ctypes.data, lengths.ctypes.data, mirror
        self._library.tfpipe_native_whole(*jpegs, len(crops), *crops.shape[1:], crops.ctypes.data, refused.ctypes.data)

    def is_damaged(self, jpeg: bytes, height: int, width: int) -> bool | None:
        """Decodes a JPEG of that size; returns whether it is damaged, None if it is of a kind that is refused."""
        damaged = self._library.tfpipe_native_damaged(jpeg, len(jpeg), height, width)
        return None if damaged < 0 else bool(damaged)

    def header(self, start: bytes) -> tuple[int, int, int, int] | None:
        """Returns height, width, components and EXIF's orientation of a JPEG, or of stored coefficients.

        None if the `start` of its file does not have the frame, or libjpeg might find another (crops.h).
        """
        numbers = (ctypes.c_int32 * 4)()
        is_there = self._library.tfpipe_read_header(start, len(start), numbers)
        return tuple(numbers) if is_there else None

    def entries(self, jpeg: bytes, every: int) -> bytes:
        """Returns the entry points of a JPEG, one for every `every` MCUs (1 to 255) of each row.

        b"" for a file that has restart intervals instead, or several scans, and for what the decoder refuses.

        Raises MemoryError.
        """
        return self._fill(self._library.tfpipe_find_entries, jpeg, every)

    def store(self, jpeg: bytes) -> bytes:
        """Returns a JPEG's coefficients (codec/stored.c), of which the decoder takes crops without reading codes.

        b"" for what the decoder refuses. Raises MemoryError.
        """
        return self._fill(self._library.tfpipe_store, jpeg)

    def unstore(self, stored: bytes) -> bytes:
        """Returns a JPEG of the same coefficients as `stored`; b"" if that is damaged. Raises MemoryError."""
        return self._fill(self._library.tfpipe_unstore, stored)

    def _fill(self, function: Callable[..., int], source: bytes, *arguments: int) -> bytes:
        """Calls a function that writes up to as many bytes as there is room for, and says how many it needs."""
        size, scratch = max(OUTPUT_BYTES, 2 * len(source)), self._library.tfpipe_scratch_take()
        try:
            while scratch and size >= 0:
                memory, room = np.empty(size, np.uint8), size
                size = function(scratch, source, len(source), *arguments, memory.ctypes.data, room)
                if 0 <= size <= room:
                    return memory[:size].tobytes()
        finally:
            self._library.tfpipe_scratch_give(scratch)
        raise MemoryError(f"no memory to parse an image of {len(source)} bytes")

    def tar(self, file: int, at: int, end: int) -> tuple[bytes, np.ndarray, int]:
        """Lists members of a tar file from byte `at` on, up to byte `end`, while their headers are ordinary.

        Ordinary ones are of regular files, with a name in the header and a size in octal digits, and match their
        checksum. Returns the names, each with a zero byte after it; offsets and lengths in bytes (int64 [n, 2]); and
        the byte of the header after them.
        """
        place, written = np.array([at], np.int64), np.zeros(1, np.int64)
        extents, names = np.empty((MOST_MEMBERS, 2), np.int64), np.empty(MOST_MEMBERS * NAME_BYTES, np.uint8)
        count = self._library.tfpipe_native_tar(
            file, place.ctypes.data, end, extents.ctypes.data, len(extents), names.ctypes.data, len(names),
            written.ctypes.data,
        )  # fmt: skip
        return names[: int(written[0])].tobytes(), extents[:count], int(place[0])

    def copy(self, addresses: np.ndarray, flips: np.ndarray, crops: np.ndarray) -> None:
        """Copies pixels at `addresses` (uintp [k]), which must stay in memory, into `crops` (uint8 [k, height, width, 1
        or 3]), past the cache; mirrors those that `flips` (bool [k], or [0] for none) selects.

        Raises MemoryError.
        """
        mirror, count = flips.ctypes.data if len(flips) else None, len(crops)
        if self._library.tfpipe_native_copy(addresses.ctypes.data, mirror, count, *crops.shape[1:], crops.ctypes.data):
            raise MemoryError("no memory to mirror crops")

    def pop_unturned(self) -> bool:
        """Returns whether a JPEG was decoded, since this was last asked, that EXIF turns and `data.exif` does not."""
        return bool(self._library.tfpipe_unturned())

    def record(self, capacity: int) -> None:
        """Begins to record events, the newest `capacity` of them. Raises ValueError below 1, MemoryError."""
        if capacity < 1:
            raise ValueError(f"a capacity of {capacity} events cannot be recorded: give 1 or more")
        if self._library.tfpipe_record_start(capacity):
            raise MemoryError(f"no memory to record {capacity} events of {self.event.itemsize} bytes")

    def end_recording(self) -> np.ndarray:
        """Ends recording; returns the events (`event` [n]) in their order."""
        events = np.empty(self._library.tfpipe_record_stop(), self.event)
        self._library.tfpipe_record_take(events.ctypes.data)
        return events


class Native(Core):
    """The whole library: the functions of Core, and ops for graphs, in which `crops` is TfpipeCrops, and so on."""

    crops: Callable[..., tuple[Any, Any]]
    """(jpegs (string [n]), entries (string [n]: their entry points, "" for none; or [0]), sizes (int32 [n, 2]: height,
    width), images (int64 [k]: number of the JPEG, ascending), windows (int32 [k, 4 * views]), flips (bool [k * views],
    or [0]), span (int64 [2]: the first crop to write and their end; or [0]: all), crops (a list of uint8 [k, height,
    width, channels], which are changed in their own memory), targets (struct tfpipe_target of crops.h: 5 numbers of
    each view, in a list), channels, kernel (of `kernels`), scans (the most that a JPEG may have; 0: any number),
    turn (1: images are turned as EXIF says, and sizes and windows are those of turned ones)) -> crops, refused (bool
    [n]). The crops of a refused JPEG are undefined: decode it otherwise."""
    resize: Callable[..., Any]
    """(image (uint8 [h, w, 1 or 3]), windows (int32 [k, 4]), flips (bool [k], or [0]), rows (int64 [k]: the crop that
    each gives), crops (uint8 [m, height, width, channels], changed in their own memory), level, cover_height,
    cover_width, kernel) -> crops, resized as by `crops`. Raises tf.errors.InvalidArgumentError for a window beyond the
    image."""
    augment: Callable[..., Any]
    """(crops (uint8 [k, height, width, 1 or 3]), positions (int64 [k, 2]), seed (int64), steps (float64 [steps,
    columns], as draw.h describes them), span (as of `crops`)) -> crops, changed in their own memory."""
    arrive: Callable[..., Any]
    """(calls (int64 [1]: how many have come, counted in its own memory), of (their number)) -> last (int64 []: 1 for
    the last of them, else 0), which sees what the others have written."""
    sizes: Callable[..., Any]
    """(images (string [n]), sizes (int32 [n, 2]), turn) -> sizes (int32 [n, 2]: height, width), those that are 0
    replaced by what a JPEG's header says, with `turn` 1 of the turned image; 0 stays for others."""
    read: Callable[[Any], Any]
    """(path of a file (string [])) -> its contents (string []), "" for the path "". Its errors are those of
    tf.io.read_file; a file of more than 2^30 bytes is one."""
    stamp: Callable[[Any], Any]
    """(path of a file (string [])) -> its size in bytes and time of change in ns since 1970 (int64 [2]), -1 for both if
    it cannot be reached."""
    range: Callable[[Any, Any, Any, Any], Any]
    """(paths of files (string [n]), number of one (int32 []), offset and length (int64 []), in bytes) -> these bytes of
    the file (string []). Keeps files open. Its errors are those of tf.io.read_file, and
    tf.errors.FailedPreconditionError for a file that ends before."""
    rows: Callable[..., Any]
    """(handle of an array (int64 [HANDLE]), items (int64 [...]), T=the array's dtype) -> its rows T [...], or [...,
    elements]. Raises tf.errors.FailedPreconditionError in another process than the array's."""
    lines: Callable[[Any, Any, Any], Any]
    """(a text (uint8 [m]), where its lines start (int64 [n + 1]), items (int64 [...])) -> lines (string [...]), without
    their ends. Text and starts are both arrays, or both handles of arrays; raises as `rows`."""
    mark: Callable[..., Any]
    """(positions (int64), through (int64), kind (above 0)) -> a copy of `through`. While events are recorded, adds one
    for each position."""
    mix: Callable[..., Any]
    """(crops (uint8 [n, height, width, channels]), box (int32 [4]: top, left, height, width), weight (int32 [], in [0,
    full_weight])) -> crops mixed, in the same memory if no other op uses it: see tfpipe_mix of crops.h."""
    floats: Callable[..., Any]
    """(crops (uint8 [n, height, width, channels]), table (float32, float16 or bfloat16 [channels, 256])) -> the table's
    value of each level, [n, height, width, channels]."""
    windows: Callable[..., Any]
    """(sizes (int32 [n, 2]: height, width), boxes (float32 [b, 4], relative), spans (int64 [k, 2]: first of each crop's
    boxes, and their end), images (int64 [k]: number of each crop's image), seeds (int64 [k, views, 2]), ranges (float64
    [views, 7], as struct tfpipe_range of crops.h)) -> random windows (int32 [k, views, 4])."""
    origin: int
    """Number of this process in handles."""

    def __init__(self, library: ctypes.CDLL, ops: Any, origin: int) -> None:
        """Takes the loaded libraries: the core, TensorFlow's module of the ops, and the number of this process."""
        super().__init__(library)
        self.origin = origin
        for name in Native.__annotations__.keys() - {"origin"}:
            setattr(self, name, getattr(ops, f"tfpipe_{name}"))


@functools.cache
def core() -> Core:
    """Returns the part of the library that needs no TensorFlow, which is not loaded.

    Raises ConfigError if the library is not built, or cannot be loaded.
    """
    return Core(_library())


@functools.cache
def native() -> Native:
    """Returns the whole library. Raises ConfigError as `core` does, and if TensorFlow does not take its ops."""
    library, file = _library(), _library_path(OPS)
    import tensorflow as tf

    from tfpipe.util.tensorflow_api import make_symbols_global

    make_symbols_global()
    try:
        ops = tf.load_op_library(str(file))
        functions = ctypes.CDLL(str(file))
        version, functions.tfpipe_native_origin.restype = functions.tfpipe_native_ops_version(), ctypes.c_int64
        failure, origin = _text(functions.tfpipe_native_failure), functions.tfpipe_native_origin()
    except (OSError, AttributeError, tf.errors.OpError) as error:
        raise ConfigError(f"{file} cannot be loaded ({error}): {REMEDY}") from error
    _check_version(file, version)
    if failure:
        raise ConfigError(f"TensorFlow {tf.__version__} does not take the ops of {file} ({failure}): {REMEDY}")
    return Native(library, ops, origin)


def decoder_name() -> str:
    """Returns the name of the decoder of JPEGs that `data.decoder` "native" stands for."""
    return f"tfpipe's own in C ({core().simd})"


@functools.cache
def _library() -> ctypes.CDLL:
    file = _library_path(CORE)
    try:
        library = load_for_all(str(file))  # the ops use it
        version = library.tfpipe_native_version()
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be loaded ({error}): {REMEDY}") from error
    _check_version(file, version)
    return library


def _library_path(name: str) -> Path:
    """Returns the path of a library that setup.py builds. Raises ConfigError if it is not there."""
    if (file := next(Path(__file__).parent.glob(name), None)) is None:
        raise ConfigError(f"tfpipe's library in C ({name}) is not built, and nothing runs without it: {REMEDY}")
    return file


def _check_version(file: Path, version: int) -> None:
    if version != VERSION:
        raise ConfigError(f"{file} was built from another version of tfpipe: {REMEDY}")


def _text(function: Any) -> str:
    function.restype = ctypes.c_char_p
    return function().decode()
