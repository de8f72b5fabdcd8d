"""What is wrong with an image file, said without TensorFlow, which of a JPEG says only that it failed."""

import re

import simplejpeg

from tfpipe.data.headers import TOO_LARGE

JPEG = b"\xff\xd8"
NO_HEADER = "a JPEG without a whole header"
PICTURES = {JPEG: "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP"}
# What is found under the name of an image, by its first bytes.
OTHERS = {b"\x1f\x8b": "gzip-compressed", b"PK\x03\x04": "a ZIP archive", b"%PDF": "a PDF", b"II*\0": "a TIFF"}
HTML = re.compile(rb"\s*<(?:!doctype html|html|\?xml|head)", re.IGNORECASE)


def find_damage(contents: bytes, channels: int) -> str | None:
    """What libjpeg-turbo objects to in a JPEG, or that it is none; None if nothing. TensorFlow may read it even so.

    Args:
        contents: of the file, which is decoded whole.
        channels: 1 or 3, to decode to.
    """
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(contents)
        if height * width * channels >= TOO_LARGE:
            return f"{width} x {height} pixels are more than TensorFlow decodes"
        simplejpeg.decode_jpeg(contents, "GRAY" if channels == 1 else "RGB")
    except ValueError as damage:
        said = str(damage)
        return NO_HEADER if contents.startswith(JPEG) and said.startswith("tjDecompressHeader") else said
    return None


def kind_of_picture(contents: bytes) -> str:
    """ "JPEG", "PNG" ..., "" where it begins as none of these does."""
    return next((kind for start, kind in PICTURES.items() if contents.startswith(start)), "")


def kind_of_other(contents: bytes) -> str:
    """What a file is that is no picture, "" where that cannot be said."""
    if HTML.match(contents):
        return "HTML or XML, as a failed download leaves it"
    if contents and not contents.strip(b"\0"):
        return "nothing but zeros"
    return next((kind for start, kind in OTHERS.items() if contents.startswith(start)), "")


def describe(contents: bytes, channels: int, said: str) -> str:
    """Why an image cannot be used, of which TensorFlow said that much."""
    if not contents:
        return "the file is empty"
    if contents.startswith(JPEG):
        return find_damage(contents, channels) or said
    kind = kind_of_other(contents)
    return f"{said}; it is {kind}" if kind else said
