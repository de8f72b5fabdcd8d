"""The top of a JPEG alone, by a library that decodes whole ones.

A JPEG is read from its top, and reading takes three quarters of a decode. So a copy whose header states fewer rows is
decoded in less time, to the same pixels. Once libjpeg-turbo has all rows it skips what is left of the data, and
complains of that; of anything wrong before it would have complained first, and it tells its first complaint alone.
"""

import re
import struct

import numpy as np

from tfpipe.data.headers import FRAME, SEQUENTIAL, find_frame

# Rows are decoded so many at a time, at most: four blocks, where chroma has a quarter of them.
TOGETHER = 32
HEIGHT, HEIGHT_AT = struct.Struct(">H"), 1  # where FRAME has it
# Before the JPEG's end, or a mark between two parts of what is skipped.
is_rest = re.compile("extraneous bytes before marker 0xd[0-79]").search


def decode_top(contents: bytes, colorspace: str, rows: int) -> np.ndarray | None:
    """The first rows of a JPEG, uint8 [at least `rows`, width, channels], the same as of a whole decode.

    Takes time in proportion to the rows. What is wrong with the data below goes unnoticed, but not that they end early.

    Args:
        contents: of the file.
        colorspace: "RGB" or "GRAY".
        rows: how many are wanted.

    Returns:
        None where nothing is gained, and of what is no sequential JPEG of 1 or 3 components, or is damaged.
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
        return pixels if is_rest(str(complaint)) else None
    return pixels
