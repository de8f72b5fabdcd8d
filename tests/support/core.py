"""The native core on its own: built by `cc`, called by ctypes; JPEGs of all kinds that it decodes."""

import ctypes
import fcntl
import io
import os
import random
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import simplejpeg
from PIL import Image, ImageFile

from tests.support.examples import examples
from tests.support.warm import ADDRESS
from tfpipe import native

SOURCES = Path(__file__).resolve().parents[2] / "tfpipe" / "native"
KERNELS = tuple(native.core().kernels)
REFUSED, DAMAGED, MEMORY, ARGUMENT = 1, 2, 3, 4
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
SAMPLINGS = ("444", "422", "420", "440", "Gray")


def core_sources() -> list[str]:
    """Returns the paths of the core's C files, without TensorFlow's side."""
    return [str(path) for path in sorted(SOURCES.rglob("*.c")) if path.parent.name != "ops"]


def build_core(folder: Path, *options: str) -> Path:
    """Builds the core as a shared library, by default with -O3: in `folder`, or once for all tests of a run."""
    how = options or ("-O3",)
    if ADDRESS in os.environ:
        folder = Path(os.environ[ADDRESS]).parent
    library = folder / f"libcore{''.join(how)}.so"
    with open(f"{library}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            command = ["cc", *WARNINGS, *how, "-fPIC", "-shared", *core_sources(), "-o", f"{library}.new", "-lm"]
            subprocess.run(command, check=True)
            os.rename(f"{library}.new", library)
    return library


class Entries(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t))


class Crop(ctypes.Structure):
    _fields_ = (
        *(("window", ctypes.c_int32 * 4), ("height", ctypes.c_int32), ("width", ctypes.c_int32)),
        *(("mirrored", ctypes.c_int), ("pitch", ctypes.c_size_t), ("out", ctypes.c_void_p)),
        *(("whole", ctypes.c_int64 * 2), ("first", ctypes.c_int64 * 2)),
    )


class Target(ctypes.Structure):
    _fields_ = (
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("level", ctypes.c_int32),
        ("cover", ctypes.c_int32 * 2),
    )


# struct tfpipe_operation of augment/augment.h.
OPERATION = np.dtype(
    [
        *(("kind", "i4"), ("interpolation", "i4"), ("seed", "u8")),
        *(("values", "f8", 6), ("fill", "u1", 4), ("unused", "u1", 4)),
    ]
)


class Core:
    """A scratch of the library at `path`, and its functions."""

    kernel = "bilinear"
    """Kernel of the resize."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.tfpipe_scratch_new.restype = ctypes.c_void_p
        self.library.tfpipe_scratch_free.argtypes = [ctypes.c_void_p]
        self.library.tfpipe_limit_scans.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.library.tfpipe_simd.restype = ctypes.c_char_p
        self.library.tfpipe_crops.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
            *(ctypes.c_void_p, *(ctypes.c_int,) * 3),
        ]
        self.library.tfpipe_place.restype = Crop
        self.library.tfpipe_place.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        ]
        self.library.tfpipe_find_entries.restype = ctypes.c_int64
        self.library.tfpipe_find_entries.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
        ]
        for function in (self.library.tfpipe_store, self.library.tfpipe_unstore):
            function.restype = ctypes.c_int64
            function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64]
        self.library.tfpipe_resize.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, *(ctypes.c_int,) * 3)
        ]
        self.library.tfpipe_operate.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        ]
        self.library.tfpipe_crop_key.restype = ctypes.c_uint64
        self.library.tfpipe_crop_key.argtypes = [ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64]
        self.library.tfpipe_draw.argtypes = [ctypes.c_void_p, ctypes.c_uint64, *(ctypes.c_int,) * 3, ctypes.c_void_p]
        self.scratch = self.library.tfpipe_scratch_new()

    def __del__(self) -> None:
        self.library.tfpipe_scratch_free(self.scratch)

    def crops(
        self,
        jpeg: bytes,
        size: tuple[int, int],
        windows: list[tuple[int, int, int, int]],
        target: tuple[int, int],
        channels: int = 3,
        flips: list[bool] | None = None,
        entries: bytes | None = None,
        cover: tuple[int, int] = (0, 0),
    ) -> np.ndarray | int:
        """Returns crops (uint8 [k, *target, channels]), or the code of a refusal.

        Memory before and after the crops is checked to be as it was.
        """
        found = self.views(jpeg, size, windows, [(*target, -1, cover)] * len(windows), channels, flips, entries)
        return found if isinstance(found, int) else np.array(found, np.uint8).reshape(-1, *target, channels)

    def views(
        self,
        jpeg: bytes,
        size: tuple[int, int],
        windows: list[tuple[int, int, int, int]],
        targets: list[tuple[Any, ...]],
        channels: int = 3,
        flips: list[bool] | None = None,
        entries: bytes | None = None,
    ) -> list[np.ndarray] | int:
        """Returns crops of several sizes; targets: height, width and level of each, and what it covers."""
        points = None if entries is None else ctypes.byref(Entries(entries, len(entries)))
        source = self.library.tfpipe_crops, jpeg, len(jpeg), points, *size
        return self._call(source, windows, targets, channels, flips)

    def resize(
        self,
        pixels: np.ndarray,
        windows: list[tuple[int, int, int, int]],
        target: tuple[int, int],
        flips: list[bool] | None = None,
        level: int = -1,
        cover: tuple[int, int] = (0, 0),
    ) -> np.ndarray | int:
        """Returns the same crops of decoded pixels (uint8 [height, width, channels])."""
        memory = np.ascontiguousarray(pixels)
        source = self.library.tfpipe_resize, memory.ctypes.data, *memory.shape[:2]
        found = self._call(source, windows, [(*target, level, cover)] * len(windows), memory.shape[2], flips)
        return found if isinstance(found, int) else np.array(found, np.uint8).reshape(-1, *target, memory.shape[2])

    def _call(
        self,
        source: tuple,
        windows: list[tuple[int, int, int, int]],
        targets: list[tuple[Any, ...]],
        channels: int,
        flips: list[bool] | None,
    ) -> list[np.ndarray] | int:
        function, *image = source
        guard, sizes = 64, [height * width * channels for height, width, *_ in targets]
        # In the order of the windows, with a guard before and after each.
        starts = guard + np.cumsum([0, *(size + guard for size in sizes)])
        memory = np.full(starts[-1], 0xA5, np.uint8)
        crops = (Crop * len(windows))()
        for i, (window, target) in enumerate(zip(windows, targets, strict=True)):
            place = np.array(window, np.int32)
            mirrored, out = bool(flips and flips[i]), memory.ctypes.data + int(starts[i])
            asked = ctypes.byref(Target(*target))
            crops[i] = self.library.tfpipe_place(asked, place.ctypes.data, mirrored, channels, out)
        kernel = KERNELS.index(self.kernel)
        status = function(self.scratch, *image, ctypes.byref(crops), len(windows), channels, kernel)
        found = []
        for start, size, (height, width, *_) in zip(starts[:-1], sizes, targets, strict=True):
            assert (memory[start - guard : start] == 0xA5).all()
            found.append(memory[start : start + size].reshape(height, width, channels))
        assert (memory[-guard:] == 0xA5).all()
        return status or found

    def entries(self, jpeg: bytes, every: int) -> bytes:
        """Returns the JPEG's entry points, b"" if it has none."""
        return self._fill(self.library.tfpipe_find_entries, jpeg, every)

    def store(self, jpeg: bytes) -> bytes:
        """Returns the JPEG's stored coefficients, b"" if it has none."""
        return self._fill(self.library.tfpipe_store, jpeg)

    def unstore(self, stored: bytes) -> bytes:
        """Returns a JPEG of stored coefficients, b"" if they are damaged."""
        return self._fill(self.library.tfpipe_unstore, stored)

    def _fill(self, function: Any, source: bytes, *arguments: int) -> bytes:
        """Calls a function that says how many bytes it needs; checks that it writes no more, and fewer on request."""
        call = self.scratch, source, len(source), *arguments
        size = function(*call, None, 0)
        memory = np.full(size + 64, 0xA5, np.uint8)
        assert function(*call, memory.ctypes.data, size) == size and (memory[size:] == 0xA5).all()
        return memory[:size].tobytes()

    def whole(self, jpeg: bytes, size: tuple[int, int], channels: int = 3) -> np.ndarray | int:
        """Returns the whole image (uint8 [*size, channels]), or the code of a refusal."""
        crops = self.crops(jpeg, size, [(0, 0, *size)], size, channels)
        return crops if isinstance(crops, int) else crops[0]

    def draw(self, row: np.ndarray, step: int, size: tuple[int, int], seed: int, place: tuple[int, int]) -> np.ndarray:
        """Returns the OPERATIONs that a row of a step, float64 [24], draws for a crop of `size` (height, width).

        `step` is its number, `place` the stream position of the crop's image, and the crop's number in it. Raises
        ValueError if the row is no step.
        """
        operations, row = np.zeros(80, OPERATION), np.ascontiguousarray(row, np.float64)
        key = self.library.tfpipe_crop_key(seed, *place)
        drawn = self.library.tfpipe_draw(row.ctypes.data, key, step, *size, operations.ctypes.data)
        if drawn < 0:
            raise ValueError(f"{row.tolist()} is no step of an augmentation")
        return operations[:drawn]

    def operate(self, pixels: np.ndarray, operations: np.ndarray) -> np.ndarray | int:
        """Returns the crop (uint8 [height, width, channels]) after OPERATIONs, or the code of a refusal, for which
        `pixels` are checked to be as they were; as is memory before and after them.
        """
        guard = 64
        memory = np.full(pixels.size + 2 * guard, 0xA5, np.uint8)
        memory[guard:-guard] = pixels.ravel()
        address = memory.ctypes.data + guard
        arguments = *pixels.shape, operations.ctypes.data, len(operations)
        status = self.library.tfpipe_operate(self.scratch, address, *arguments)
        assert (memory[:guard] == 0xA5).all() and (memory[-guard:] == 0xA5).all()
        crop = memory[guard:-guard].reshape(pixels.shape)
        assert not status or (crop == pixels).all()
        return status or crop


def check_pixels(core: Core, jpeg: bytes, size: tuple[int, int], draw: random.Random) -> None:
    """Compares the whole image, and a window of it, mirrored too, with libjpeg-turbo's pixels."""
    channels = draw.choice((3, 3, 1))
    expected = reference(jpeg, channels)
    assert (core.whole(jpeg, size, channels) == expected).all()
    window = top, left, height, width = window_of(draw, size)
    plain, mirrored = core.crops(jpeg, size, [window] * 2, (height, width), channels, [False, True])
    expected = expected[top : top + height, left : left + width]
    assert (plain == expected).all() and (mirrored == expected[:, ::-1]).all()


def check_damage(core: Core, jpeg: bytes, size: tuple[int, int], draw: random.Random) -> None:
    """Changes bytes of the scans, leaves some out and puts some in: the core has libjpeg-turbo's pixels, or refuses."""
    start, accepted = jpeg.index(b"\xff\xda") + 14, 0
    for _ in range(examples(1000)):
        at = draw.randrange(start, len(jpeg) - 2)
        piece = bytes([draw.randrange(256)]) * draw.randint(0, 2)
        changed = jpeg[:at] + piece + jpeg[at + draw.randint(0, 2) :]
        pixels = core.whole(changed, size)
        if not isinstance(pixels, int):
            assert (pixels == reference(changed)).all()
            accepted += 1
    assert accepted


@cache
def installed() -> Core:
    """Returns a scratch of the library that tfpipe loads."""
    return Core(Path(native.core()._library._name))


def reference(jpeg: bytes, channels: int = 3) -> np.ndarray:
    """Decodes by libjpeg-turbo (uint8 [height, width, channels]). Raises ValueError for whatever it warns of."""
    return simplejpeg.decode_jpeg(jpeg, "RGB" if channels == 3 else "GRAY")


def plain_reference(jpeg: bytes, channels: int = 3) -> np.ndarray:
    """Decodes by libjpeg-turbo's plain C, which a thread uses that finds JSIMD_FORCENONE at its first image."""
    with patch.dict(os.environ, JSIMD_FORCENONE="1"), ThreadPoolExecutor(1) as thread:
        return thread.submit(reference, jpeg, channels).result()


def generated_pixels(draw: random.Random, height: int, width: int) -> np.ndarray:
    """Returns smooth colours, noise, flat areas and edges (uint8 [height, width, 3])."""
    make = np.random.default_rng(draw.getrandbits(32))
    sides = draw.randint(1, 12), draw.randint(1, 12)
    coarse = Image.fromarray(make.integers(0, 256, (*sides, 3), np.uint8))
    image = np.asarray(coarse.resize((width, height), draw.choice((Image.BICUBIC, Image.NEAREST))), np.int16)
    noise = draw.choice((0, 0, 3, 20, 255))
    if noise:
        image = image + make.integers(-noise, noise + 1, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8)


def generated_jpeg(draw: random.Random, side: int = 120) -> tuple[bytes, tuple[int, int]]:
    """Returns a JPEG that the core decodes, of up to `side` pixels a side, and its size; by one of two encoders."""
    size = draw.randint(1, side), draw.randint(1, side)
    pixels, quality = generated_pixels(draw, *size), draw.randint(1, 100)
    sampling, encoder = draw.choice(SAMPLINGS), draw.randrange(2)
    if encoder == 0:
        if sampling == "Gray":
            gray = np.ascontiguousarray(pixels[..., :1])
            jpeg = simplejpeg.encode_jpeg(gray, quality, "GRAY", "Gray")
        else:
            jpeg = simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)
    else:
        jpeg = _by_pillow(draw, pixels, quality, sampling)
    for _ in range(draw.choice((0, 0, 1, 3))):
        jpeg = _with_segment(draw, jpeg)
    return jpeg + draw.choice((b"", b"", bytes(9), b"\xff\xd8\xff\xd9")), size


def progressive_jpeg(draw: random.Random, side: int = 120) -> tuple[bytes, tuple[int, int]]:
    """Returns a progressive JPEG by Pillow, of YCbCr, RGB or gray, of up to `side` pixels a side, and its size."""
    size = draw.randint(1, side), draw.randint(1, side)
    pixels, options = generated_pixels(draw, *size), {"quality": draw.randint(1, 100), "progressive": True}
    ImageFile.MAXBLOCK = max(ImageFile.MAXBLOCK, 8 * pixels.size)
    image = Image.fromarray(pixels)
    kind = draw.randrange(10)
    if kind < 2:
        image = image.convert("L")
    elif kind == 2:
        options["keep_rgb"] = True
    else:
        options["subsampling"] = draw.randrange(3)
    restart = draw.choice(({}, {"restart_marker_blocks": draw.randint(1, 20)}, {"restart_marker_rows": 1}))
    file = io.BytesIO()
    image.save(file, "JPEG", **options, **restart)
    return file.getvalue(), size


def window_of(draw: random.Random, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns a window of an image of that size: top, left, height, width."""
    height, width = draw.randint(1, size[0]), draw.randint(1, size[1])
    return draw.randint(0, size[0] - height), draw.randint(0, size[1] - width), height, width


def _by_pillow(draw: random.Random, pixels: np.ndarray, quality: int, sampling: str) -> bytes:
    image = Image.fromarray(pixels)
    options: dict[str, object] = {"quality": quality, "optimize": draw.random() < 0.5}
    if sampling == "Gray":
        image = image.convert("L")
    else:
        options["subsampling"] = {"444": 0, "422": 1, "420": 2, "440": 2}[sampling]
    if draw.random() < 0.2 and quality == 100:  # tables of 16 bits
        options |= {"qtables": [[draw.randint(1, 2000) for _ in range(64)] for _ in range(2)], "quality": -1}
    elif draw.random() < 0.2:
        options |= {"qtables": [[draw.randint(1, 255) for _ in range(64)] for _ in range(2)], "quality": -1}
    restart = draw.choice(({}, {"restart_marker_blocks": draw.randint(1, 20)}, {"restart_marker_rows": 1}))
    if draw.random() < 0.3:
        exif = Image.Exif()
        thumbnail = io.BytesIO()
        image.resize((16, 16)).save(thumbnail, "JPEG")
        exif[0x010E] = thumbnail.getvalue().decode("latin-1")
        options["exif"] = exif
    if draw.random() < 0.3:
        options["comment"] = bytes(draw.randrange(256) for _ in range(draw.randrange(40)))
    # Pillow's own estimate of how many bytes an optimised JPEG takes is too small for noise.
    ImageFile.MAXBLOCK = max(ImageFile.MAXBLOCK, 4 * pixels.size)
    file = io.BytesIO()
    image.save(file, "JPEG", **options, **restart)
    return file.getvalue()


def _with_segment(draw: random.Random, jpeg: bytes) -> bytes:
    """Puts fill bytes or a comment before a segment of the header."""
    places, at = [], 2
    while True:
        places.append(at)
        while jpeg[at + 1] == 0xFF:
            at += 1
        if jpeg[at + 1] == 0xDA:
            break
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    at = draw.choice(places)
    comment = bytes(draw.randrange(256) for _ in range(draw.randrange(20)))
    piece = draw.choice((b"\xff" * draw.randint(1, 3), b"\xff\xfe" + struct.pack(">H", 2 + len(comment)) + comment))
    return jpeg[:at] + piece + jpeg[at:]
