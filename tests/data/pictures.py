"""Image files as they turn up in data sets under the name of .JPEG, made in code."""

import struct

import cv2
import numpy as np
from PIL import Image

from tests.data.test_images import encoded, picture

ADOBE = b"\xff\xee\x00\x0eAdobe"


def cmyk(image: Image.Image, **how: object) -> bytes:
    """As Adobe's programs write inks: inverted, marked, transform 0."""
    return encoded(image.convert("CMYK"), **how)


def ycck(image: Image.Image, **how: object) -> bytes:
    """The same inks with transform 2: cyan, magenta and yellow are turned into YCbCr before they are coded."""
    inks = np.asarray(image.convert("CMYK"))
    luma = np.asarray(Image.fromarray(inks[..., :3], "RGB").convert("YCbCr"))
    # Pillow inverts what it is given, and writes it as it then is.
    coded = Image.fromarray(np.dstack([255 - luma, inks[..., 3]]), "CMYK")
    jpeg = bytearray(encoded(coded, **{"subsampling": 0, **how}))
    jpeg[jpeg.index(ADOBE) + 15] = 2
    return bytes(jpeg)


def unmarked(jpeg: bytes) -> bytes:
    """Without Adobe's mark."""
    at = jpeg.index(ADOBE)
    return jpeg[:at] + jpeg[at + 16 :]


def turned(image: Image.Image, orientation: int = 6) -> bytes:
    """A JPEG whose EXIF says that it is to be turned before it is shown."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


def png16(image: Image.Image) -> bytes:
    """With 16 bits a channel; the lower ones are random."""
    random = np.random.default_rng(0).integers(0, 256, (*image.size[::-1], len(image.getbands())), np.uint16)
    deep = np.asarray(image, np.uint16).reshape(random.shape) * 256 + random
    return cv2.imencode(".png", deep[..., ::-1])[1].tobytes()


def with_alpha(image: Image.Image) -> Image.Image:
    """RGBA, see-through in places."""
    return Image.merge("RGBA", [*image.split(), image.convert("L")])


def gigapixel() -> bytes:
    """A JPEG whose header claims 60,000 x 60,000 pixels."""
    jpeg = bytearray(encoded(picture(32, 32)))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    return bytes(jpeg)
