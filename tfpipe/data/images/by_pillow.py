"""Images that Pillow opens, of every format, and EXIF's orientation, by which a viewer turns them."""

import io
import logging
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from typing import IO

import numpy as np
from PIL import Image, PngImagePlugin

logger = logging.getLogger(__name__)

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM", "HEIF")
# Those that not every installation opens: the ends of their files' names, and what to install.
OPTIONAL = {"HEIF": ((".heic", ".heif"), "tfpipe[heic]"), "AVIF": ((".avif",), "pillow>=11.3")}
# What Pillow raises for damaged files, besides OSError.
DAMAGED = (ValueError, SyntaxError, EOFError, LookupError, TypeError, ArithmeticError, struct.error)
NO_IMAGE = "it is no "  # begins the message on contents that are none
ORIENTATION = 0x0112  # EXIF's tag
# Bytes of a PNG's text or colour profile: Pillow's own limit, 1 MB, refuses whole images for their profile.
MOST_TEXT_BYTES = 2**24


@cache
def formats() -> tuple[str, ...]:
    """Returns those of FORMATS that are opened here."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, MOST_TEXT_BYTES)
    return tuple(name for name in FORMATS if name in Image.OPEN)


def turn_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns pixels [height, width, ...] as EXIF turns them."""
    pixels = pixels.swapaxes(0, 1) if orientation > 4 else pixels
    pixels = pixels[::-1] if orientation in (3, 4, 7, 8) else pixels
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def open_image(file: str | IO[bytes], path: str) -> Image.Image:
    """Opens an image in one of FORMATS, which a path or an open file has; the caller closes it.

    Raises ValueError, which names `path`, if it is none, or too large to decode; OSError if it cannot be read.
    """
    try:
        return Image.open(file, formats=formats())
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path} is too large: {error}") from error
    except (OSError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the file system, not of the contents
            raise
        raise ValueError(f"{path} is no {', '.join(formats()[:-1])} or {formats()[-1]} image") from error


def orientation_of(image: Image.Image) -> int:
    """Returns the orientation, 1 to 8, of an image that was just opened, by its EXIF or else its XMP.

    Pillow turns a TIFF and a HEIF itself.
    """
    try:
        # PNG's own method would decode the image.
        exif = {} if image.format in ("TIFF", "HEIF") else Image.Image.getexif(image)
    except (OSError, *DAMAGED):
        return 1
    orientation = exif.get(ORIENTATION)
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


class ByPillow:
    """A decoder that logs how many images it decodes, and in what time: the first one, and each tenfold number."""

    def __init__(self) -> None:
        self._lock, self._count, self._seconds = threading.Lock(), Counter[str](), 0.0

    def decode(self, contents: bytes, channels: int, turn: bool) -> np.ndarray:
        """Decodes as `decode` does, and returns the same."""
        begun_s = time.thread_time()
        pixels, kind = decode(contents, channels, turn)
        with self._lock:
            self._count[kind] += 1
            self._seconds += time.thread_time() - begun_s
            count = self._count.total()
            if count == 10 ** (len(str(count)) - 1):
                kinds = ", ".join(f"{number} {kind}" for kind, number in self._count.most_common())
                mean_ms = 1000 * self._seconds / count
                logger.info("Pillow decodes what no faster decoder does: %s so far, %.1f ms each", kinds, mean_ms)
        return pixels


def decode(contents: bytes, channels: int, turn: bool = False) -> tuple[np.ndarray, str]:
    """Returns an image, uint8 [height, width, channels], and its format; with `turn` the image as EXIF turns it.

    It is the first of several images; its alpha is left out, and the lower 8 of 16 bits. Raises ValueError for damage,
    and for levels of 32 bits or of floats, of which the file does not say which is white.
    """
    with open_image(io.BytesIO(contents), "it") as image:
        kind, orientation = image.format or "", orientation_of(image)
        try:
            image.load()
        except (OSError, *DAMAGED) as error:
            raise ValueError(f"a damaged {kind}: {error}") from error
        is_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and kind == "PPM")  # stretched to 65535
        if image.mode in ("I", "F") and not is_16_bits:
            raise ValueError(f"a {kind} of mode {image.mode}, whose levels have no stated range")
        # Pillow makes white of most levels of 16 bits.
        plain = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if is_16_bits else image
        pixels = np.asarray(plain.convert("RGB").convert("RGB" if channels == 3 else "L"))
        pixels = pixels.reshape(*plain.size[::-1], channels)
        # An AVIF's orientation is part of its format, and no wish of its EXIF.
        return turn_pixels(pixels, orientation) if turn or kind == "AVIF" else pixels, kind
