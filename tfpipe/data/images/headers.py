"""Reads an image's size, components and format from the file's header, without decoding it."""

import io
import re
import struct
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

from PIL import Image

from tfpipe.native import core
from tfpipe.util.files import read_whole

# The formats that TensorFlow decodes.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
# Size in bytes from which TensorFlow refuses to decode an image: a forged header cannot trigger a huge allocation.
TOO_LARGE = 2**29
# Bytes to read of a file: a JPEG's size lies within them unless a thumbnail or a colour profile precedes it.
START = 4096
START_OF_IMAGE = b"\xff\xd8"
# Beginning of a JPEG's stored coefficients (native/codec/stored.c), and the place of the frame's payload.
STORED, STORED_FRAME = b"\0tpc", 8
# Regular expressions of bytes with EXIF's orientation by which a viewer swaps height and width, in either byte order:
# Python's, to be searched, and TensorFlow's of all bytes, whose \C is any byte.
TURNED = rb"(?s)Exif\0\0(MM\0\*.*\x01\x12\0\x03\0\0\0\x01\0[\x05-\x08]|II\*\0.*\x12\x01\x03\0\x01\0\0\0[\x05-\x08])"
WITH_TURNED = TURNED.decode().replace("\\0", "\\x00").replace(".", "\\C").replace("(?s)", "(?s)\\C*") + "\\C*"
IS_TURNED = (
    "size stated with the boxes is the image's turned by EXIF, and so are the boxes, but pixels are read as they are "
    "stored: turn these (ImageMagick's mogrify -auto-orient IMAGE)"
)
# Header of a JPEG segment: 0xFF, marker code, and length in bytes from the length field on.
SEGMENT = struct.Struct(">BBH")
# Start of a frame's payload: bits per component, height, width, number of components.
FRAME = struct.Struct(">BHHB")
START_OF_FRAME = frozenset((0xC0, 0xC1, 0xC2))  # baseline, extended, progressive
# Segments that may precede the frame: Huffman and quantisation tables, restart interval, comment, APP0 to APP15.
BEFORE_FRAME = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))


class Header(NamedTuple):
    """Size in pixels, number of components and format of an image."""

    height: int
    width: int
    components: int
    format: str  # one of FORMATS


def read_header(path: str, stamps: list[int | None] | None = None) -> Header:
    """Returns the header of the image at `path`; appends the file's stamp (files.Stamp) to `stamps`.

    Raises:
        ValueError: the file is not an image in one of FORMATS.
        OSError: the file cannot be read.
    """
    return jpeg_header(read_whole(path, stamps, START)) or pillow_header(path, path)


def header_of(contents: bytes, path: str) -> Header:
    """Returns the header of an image from the file's `contents`; errors name `path`.

    Raises ValueError if the contents are not an image in one of FORMATS.
    """
    return jpeg_header(contents[:START]) or pillow_header(io.BytesIO(contents), path)


def as_file(contents: bytes) -> bytes:
    """Returns an image's file; of a JPEG's stored coefficients, a JPEG of these.

    Raises ValueError if they are damaged.
    """
    if not contents.startswith(STORED):
        return contents
    jpeg = core().unstore(contents)
    if not jpeg:
        raise ValueError("no image from stored coefficients: they are damaged")
    return jpeg


def jpeg_header(start: bytes) -> Header | None:
    """Returns a JPEG's header from the `start` of its file, or of its stored coefficients, much faster than Pillow.

    None if the frame lies beyond `start`, or the file is not a JPEG of 8 bits and 1, 3 or 4 components. Also if
    anything but an ordinary segment precedes the frame: a fill byte or a marker without a length would lead to another
    frame than libjpeg finds.
    """
    if start.startswith(STORED) and len(start) >= STORED_FRAME + FRAME.size:
        return _frame_header(start, STORED_FRAME)
    at, last = len(START_OF_IMAGE), len(start) - SEGMENT.size - FRAME.size
    while at <= last and start.startswith(START_OF_IMAGE):
        mark, kind, length = SEGMENT.unpack_from(start, at)
        if mark == 0xFF and kind in START_OF_FRAME:
            return _frame_header(start, at + SEGMENT.size)
        if mark != 0xFF or kind not in BEFORE_FRAME:
            return None
        at += 2 + length
    return None


def _frame_header(start: bytes, at: int) -> Header | None:
    depth, height, width, components = FRAME.unpack_from(start, at)
    ordinary = depth == 8 and height and width and components in (1, 3, 4)
    return Header(height, width, components, "JPEG") if ordinary else None


def check_turned(stated: Sequence[float], real: Sequence[float], path: str, start: Callable[[], bytes]) -> None:
    """Raises ValueError if the height and width that the annotation at `path` states are those of its turned image.

    `real` are the height and width of the image's pixels, and `start` returns the beginning of its file.
    """
    height, width = real
    if height != width and (stated[0], stated[1]) == (width, height) and re.search(TURNED, start()):
        raise ValueError(f"{path}: the {IS_TURNED}")


def pillow_header(file: str | IO[bytes], path: str) -> Header:
    """Returns the header of an image in any of FORMATS, which Pillow reads from a path or an open file.

    Raises:
        ValueError: the file is not an image in one of FORMATS, or one too large to decode; the message names `path`.
        OSError: the file cannot be read.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            assert image.format is not None, "Pillow sets the format of every image that it opens"
            kind = "JPEG" if image.format == "MPO" else image.format  # an MPO is a JPEG followed by further JPEGs
            return Header(image.height, image.width, len(image.getbands()), kind)
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path} is too large: {error}") from error
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the file system, not of the contents
            raise
        raise ValueError(f"{path} is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image") from error
