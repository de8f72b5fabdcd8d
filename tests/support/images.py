"""Image files as they turn up in data sets under the name of .JPEG, made in code."""

import io
import struct

import cv2
import numpy as np
from PIL import Image

ADOBE = b"\xff\xee\x00\x0eAdobe"


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth colours under some noise, so that a crop in the wrong place cannot look right."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize((width, height), Image.BICUBIC)
    noisy = np.asarray(coarse, np.int16) + random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, **options: object) -> bytes:
    """The image as a JPEG, unless `options` say otherwise."""
    file = io.BytesIO()
    image.save(file, **{"format": "JPEG", "quality": 90, **options})
    return file.getvalue()


def bilinear(image: np.ndarray, target: tuple[int, int]) -> np.ndarray:
    """Bilinear interpolation with half-pixel centres and edges repeated, in float64."""
    for axis, wanted in enumerate(target):
        length = image.shape[axis]
        at = ((np.arange(wanted) + 0.5) * length / wanted - 0.5).clip(0, length - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape([-1 if each == axis else 1 for each in range(3)])
        high = np.minimum(low + 1, length - 1)
        image = image.take(low, axis) * (1 - share) + image.take(high, axis) * share
    return image


def cmyk(image: Image.Image, **how: object) -> bytes:
    """Inks as Adobe's programs write them: inverted, marked, transform 0."""
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
    """The JPEG without Adobe's mark."""
    at = jpeg.index(ADOBE)
    return jpeg[:at] + jpeg[at + 16 :]


def turned(image: Image.Image, orientation: int = 6) -> bytes:
    """A JPEG whose EXIF says that it is to be turned before it is shown."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


def png16(image: Image.Image) -> bytes:
    """A PNG with 16 bits a channel; the lower ones are random."""
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
