"""Explains damage in an image file without TensorFlow, which says of a JPEG only that decoding failed."""

import io
import re
from typing import NamedTuple

import simplejpeg
from PIL import Image

from tfpipe.data.images.headers import TOO_LARGE, jpeg_header, pillow_header

JPEG = b"\xff\xd8"
NO_HEADER = "a JPEG without a whole header"
COMPONENTS = {"Gray": 1, "CMYK": 4, "YCCK": 4}  # of simplejpeg's colour spaces; 3 for others
# simplejpeg's message on sampling factors that TurboJPEG has no name for, though libjpeg-turbo decodes them.
RARE_SAMPLING = "Could not determine subsampling"
PICTURES = {JPEG: "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP"}
# Other content found in files with an image's name, by first bytes.
OTHERS = {b"\x1f\x8b": "gzip-compressed", b"PK\x03\x04": "a ZIP archive", b"%PDF": "a PDF", b"II*\0": "a TIFF"}
HTML = re.compile(rb"\s*<(?:!doctype html|html|\?xml|head)", re.IGNORECASE)

# Start of a scan's header: the marker, and the first byte of a length below 256.
SCAN = b"\xff\xda\0"
# Messages of files beyond `data.max_pixels` and `data.max_scans`, between which the limit stands.
TOO_MANY_PIXELS = " pixels are more than data.max_pixels, "
TOO_MANY_SCANS = " scans are more than data.max_scans, "
REMEDY = ": raise it if the file is as it should be, or leave the file out"


class Limits(NamedTuple):
    """The most of an image file that is decoded."""

    pixels: int
    scans: int

    def excess(self, contents: bytes, pixels: int) -> str:
        """Returns why a file, whose header states `pixels`, is not decoded; "" if it is."""
        scans = contents.count(SCAN) if contents.startswith(JPEG) else 0
        if pixels > self.pixels:
            return f"{pixels}{TOO_MANY_PIXELS}{self.pixels}{REMEDY}"
        return f"{scans}{TOO_MANY_SCANS}{self.scans}{REMEDY}" if scans > self.scans else ""


def check_size(contents: bytes) -> None:
    """Raises ValueError if a file is no JPEG, has no header, or states more pixels than TensorFlow decodes."""
    header = jpeg_header(contents)
    if header is not None:
        height, width, components, _ = header
    else:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(contents)
            components = COMPONENTS.get(colours, 3)
        except KeyError:  # of a sampling, 4:4:1, whose name simplejpeg lacks
            height, width, components, _ = pillow_header(io.BytesIO(contents), "it")
    if height * width * components >= TOO_LARGE:
        raise ValueError(f"{width} x {height} pixels are more than TensorFlow decodes")


def find_damage(contents: bytes, channels: int) -> str | None:
    """Returns libjpeg-turbo's first complaint about a file, None if there is none. TensorFlow may still decode it.

    Decodes the whole file to 1 or 3 `channels`.
    """
    try:
        check_size(contents)
        simplejpeg.decode_jpeg(contents, "GRAY" if channels == 1 else "RGB")
    except ValueError as damage:
        message = str(damage)
        if RARE_SAMPLING in message:
            return _find_cut(contents)
        return NO_HEADER if contents.startswith(JPEG) and message.startswith("tjDecompressHeader") else message
    return None


def _find_cut(contents: bytes) -> str | None:
    """Returns Pillow's complaint about a JPEG whose sampling simplejpeg cannot tell; it finds fewer damages."""
    try:
        image = Image.open(io.BytesIO(contents), formats=["JPEG"])
    except Image.DecompressionBombError:
        return None  # too large for Pillow, not for TensorFlow
    except (OSError, SyntaxError):
        return NO_HEADER
    with image:
        if not image.tile:  # no scan
            return NO_HEADER
        try:
            image.load()
        except (OSError, SyntaxError) as error:
            return str(error)
    return None


def kind_of_picture(contents: bytes) -> str:
    """Returns the image format ("JPEG", "PNG", "GIF" or "WebP") by the first bytes, "" for any other."""
    return next((kind for start, kind in PICTURES.items() if contents.startswith(start)), "")


def kind_of_other(contents: bytes) -> str:
    """Describes a file that is no image, e.g. "a PDF"; "" if its content is not recognized."""
    if HTML.match(contents):
        return "HTML or XML, as a failed download leaves it"
    if contents and not contents.strip(b"\0"):
        return "nothing but zeros"
    return next((kind for start, kind in OTHERS.items() if contents.startswith(start)), "")


def describe(contents: bytes, channels: int, message: str) -> str:
    """Explains why an image cannot be used; `message` is TensorFlow's error."""
    if not contents:
        return "the file is empty"
    if TOO_MANY_PIXELS in message or TOO_MANY_SCANS in message:
        return message
    if contents.startswith(JPEG):
        return find_damage(contents, channels) or message
    kind = kind_of_other(contents)
    return f"{message}; it is {kind}" if kind else message
