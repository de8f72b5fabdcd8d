"""What an image file says of itself, without decoding it."""

import io
import struct
from typing import IO, NamedTuple

from PIL import Image

from tfpipe.data.files import read_start

# Those that TensorFlow decodes.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
# Bytes of a picture that TensorFlow refuses to decode; a few bytes of a header must not make anybody ask for so many.
TOO_LARGE = 2**29
# Enough of a JPEG to hold its size, unless a thumbnail or a colour profile comes first.
START = 4096
START_OF_IMAGE = b"\xff\xd8"
# Its mark, kind and length, which counts itself but not what is before it.
SEGMENT = struct.Struct(">BBH")
# Behind that, of a frame: its depth, height, width and components.
FRAME = struct.Struct(">BHHB")
SEQUENTIAL = frozenset((0xC0, 0xC1))  # baseline, extended
START_OF_FRAME = SEQUENTIAL | {0xC2}  # progressive


class Header(NamedTuple):
    """Size, in pixels, components and format of an image."""

    height: int
    width: int
    components: int
    format: str  # one of FORMATS


def read_header(path: str) -> Header:
    """The header of the image at `path`.

    Raises:
        ValueError: it is no image that TensorFlow could decode.
        OSError: it cannot be read.
    """
    return jpeg_header(read_start(path, START)) or pillow_header(path, path)


def header_of(contents: bytes, path: str) -> Header:
    """The header of the image at `path`, given the whole file.

    Raises:
        ValueError: as read_header.
    """
    return jpeg_header(contents[:START]) or pillow_header(io.BytesIO(contents), path)


def jpeg_header(start: bytes) -> Header | None:
    """Of the JPEG that begins so, many times as fast as Pillow; None where that does not tell, or is out of the
    ordinary."""
    frame = find_frame(start)
    if frame is None:
        return None
    depth, height, width, components = FRAME.unpack_from(start, frame.at)
    ordinary = depth == 8 and height and width and components in (1, 3, 4)
    return Header(height, width, components, "JPEG") if ordinary else None


class Frame(NamedTuple):
    """What a JPEG has of its image's size."""

    kind: int  # of START_OF_FRAME
    at: int  # where FRAME is


def find_frame(start: bytes) -> Frame | None:
    """The frame of the JPEG that begins so; None where that is not enough to hold it, or out of the ordinary."""
    if not start.startswith(START_OF_IMAGE):
        return None
    at = len(START_OF_IMAGE)
    last = len(start) - SEGMENT.size - FRAME.size
    while at <= last:
        mark, kind, length = SEGMENT.unpack_from(start, at)
        if mark != 0xFF:
            return None
        if kind in START_OF_FRAME:
            return Frame(kind, at + SEGMENT.size)
        at += 2 + length
    return None


def pillow_header(file: str | IO[bytes], path: str) -> Header:
    """The header of any image, of that path or in a file that is open.

    Raises:
        ValueError: as read_header.
        OSError: it cannot be read.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            assert image.format is not None, "it is of a file"
            kind = "JPEG" if image.format == "MPO" else image.format  # a JPEG with further ones behind it
            return Header(image.height, image.width, len(image.getbands()), kind)
    except (Image.UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise ValueError(f"{path} is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image") from error
