"""Reads an image's size, components and format from the file's header, without decoding it."""

import io
from collections.abc import Sequence
from typing import IO, NamedTuple

from tfpipe.data.images.by_pillow import open_image, orientation_of
from tfpipe.native import core
from tfpipe.util.files import read_whole

# Size in bytes from which TensorFlow refuses to decode an image: a forged header cannot trigger a huge allocation.
TOO_LARGE = 2**29
# Bytes to read of a file: a JPEG's size lies within them unless a thumbnail or a colour profile precedes it.
START = 4096
START_OF_IMAGE = b"\xff\xd8"
# Beginning of a JPEG's stored coefficients (native/codec/stored.c).
STORED = b"\0tpc"
IS_TURNED = (
    "size stated with the boxes is the image's turned by EXIF, or its own, and so are the boxes, but pixels are the "
    'other: set data.exif to "apply" instead of "ignore", or the reverse'
)


class Header(NamedTuple):
    """Size in pixels, number of components and format of an image."""

    height: int  # as stored
    width: int
    components: int  # of the pixels: three if they come from a palette; alpha counts
    format: str  # one of FORMATS
    orientation: int = 1  # EXIF's, 1 to 8

    def turned(self, turn: bool) -> "Header":
        """Returns the header with the height and width of the image as EXIF turns it, if `turn`."""
        return self._replace(height=self.width, width=self.height) if turn and self.orientation > 4 else self


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
    if not (jpeg := core().unstore(contents)):
        raise ValueError("no image from stored coefficients: they are damaged")
    return jpeg


def jpeg_header(start: bytes) -> Header | None:
    """Returns a JPEG's header as native.Core.header reads it, much faster than Pillow; None as there."""
    numbers = core().header(start)
    return numbers and Header(*numbers[:3], "JPEG", numbers[3])


def check_turned(stated: Sequence[float], real: Sequence[float], path: str, swaps: bool) -> None:
    """Raises ValueError if the annotation at `path` states the height and width of an image that EXIF turns otherwise.

    `real` are the height and width of the image's pixels, as `data.exif` has them; `swaps` is whether the turned image
    has them in the other order.
    """
    height, width = real
    if swaps and height != width and (stated[0], stated[1]) == (width, height):
        raise ValueError(f"{path}: the {IS_TURNED}")


def pillow_header(file: str | IO[bytes], path: str) -> Header:
    """Returns the header of an image in any of FORMATS, which Pillow reads from a path or an open file.

    Raises as open_image does; the message names `path`.
    """
    with open_image(file, path) as image:
        assert image.format is not None, "Pillow sets the format of every image that it opens"
        kind = "JPEG" if image.format == "MPO" else image.format  # an MPO is a JPEG followed by further JPEGs
        components = 3 if image.mode == "P" else len(image.getbands())
        header = Header(image.height, image.width, components, kind, orientation_of(image))
        return header.turned(turn=True)._replace(orientation=1) if kind == "AVIF" else header
