"""Explains damage in an image file without TensorFlow, which says of a JPEG only that decoding failed."""

import re

import simplejpeg

from tfpipe.data.images.headers import TOO_LARGE

JPEG = b"\xff\xd8"
NO_HEADER = "a JPEG without a whole header"
PICTURES = {JPEG: "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP"}
# Other content found in files with an image's name, by first bytes.
OTHERS = {b"\x1f\x8b": "gzip-compressed", b"PK\x03\x04": "a ZIP archive", b"%PDF": "a PDF", b"II*\0": "a TIFF"}
HTML = re.compile(rb"\s*<(?:!doctype html|html|\?xml|head)", re.IGNORECASE)


def check_size(contents: bytes, channels: int) -> None:
    """Raises ValueError if a JPEG has no header, or TensorFlow refuses to decode as many pixels as it states."""
    height, width, *_ = simplejpeg.decode_jpeg_header(contents)
    if height * width * channels >= TOO_LARGE:
        raise ValueError(f"{width} x {height} pixels are more than TensorFlow decodes")


def find_damage(contents: bytes, channels: int) -> str | None:
    """Returns libjpeg-turbo's first complaint about a file, None if there is none. TensorFlow may still decode it.

    Decodes the whole file to 1 or 3 `channels`.
    """
    try:
        check_size(contents, channels)
        simplejpeg.decode_jpeg(contents, "GRAY" if channels == 1 else "RGB")
    except ValueError as damage:
        message = str(damage)
        return NO_HEADER if contents.startswith(JPEG) and message.startswith("tjDecompressHeader") else message
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
    if contents.startswith(JPEG):
        return find_damage(contents, channels) or message
    kind = kind_of_other(contents)
    return f"{message}; it is {kind}" if kind else message
