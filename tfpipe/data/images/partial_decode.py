"""Decodes only the top rows of a JPEG, with a library that always decodes whole images.

A JPEG is coded from the top, and reading its data takes three quarters of a decode. So a copy whose header states fewer
rows decodes faster, to the same pixels. After the last stated row, libjpeg-turbo skips the rest of the data and warns
of it. It reports only its first warning, so if that is about the rest, the rows above are intact. If the rest ends at
the end marker, the file is whole. If it ends at a restart marker, more data should follow.
"""

import re
import struct

import numpy as np

from tfpipe.data.images.headers import FRAME, SEQUENTIAL, find_frame

# Rows decoded at a time, at most: four blocks of 8, if chroma has a quarter of the rows.
TOGETHER = 32
HEIGHT, HEIGHT_AT = struct.Struct(">H"), 1  # offset of the height within FRAME, in bytes
END = b"\xff\xd9"
# The warning about skipped data, which precedes the end marker (0xd9) or a restart marker.
find_rest = re.compile("extraneous bytes before marker 0xd([0-79])").search


def decode_top(contents: bytes, colorspace: str, rows: int) -> np.ndarray | None:
    """Decodes at least the first `rows` rows of a JPEG, in time proportional to them, to the pixels of a whole decode.

    Damage in the data below these rows goes unnoticed, unless the file ends early. `colorspace` is "RGB" or "GRAY".

    Returns:
        uint8 [at least `rows`, width, channels]; None if that is the whole image, or this is no intact sequential JPEG.
    """
    import simplejpeg

    frame = find_frame(contents)
    if frame is None or frame.kind not in SEQUENTIAL:
        return None
    _, height, width, components = FRAME.unpack_from(contents, frame.at)
    # The last row's chroma depends on the row below.
    rows = -(-(rows + 1) // TOGETHER) * TOGETHER
    if rows >= height or width == 0 or components not in (1, 3):
        return None
    shorter = bytearray(contents)
    HEIGHT.pack_into(shorter, frame.at + HEIGHT_AT, rows)
    pixels = np.empty((rows, width, 3 if colorspace == "RGB" else 1), np.uint8)
    try:
        simplejpeg.decode_jpeg(shorter, colorspace, buffer=pixels)
    except ValueError as complaint:
        rest = find_rest(str(complaint))
        return pixels if rest and (rest[1] == "9" or contents.rstrip(b"\0").endswith(END)) else None
    return pixels
