"""Image files as they turn up in data sets under the name of .JPEG, made in code."""

import io
import random
import struct
import zlib

import numpy as np
from PIL import Image

from tests.support.scans import Picture, Scan, jpeg_of

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


def decoded(jpeg: bytes) -> np.ndarray:
    """The pixels of a JPEG in colour, as libjpeg-turbo has them, which Pillow brings: uint8 [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


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


def resized(image: np.ndarray, target: tuple[int, int], kernel: str) -> np.ndarray:
    """Resizes (float64 [*target, channels]) without rounding; "area" is the mean over the area that a pixel covers."""
    image = image.astype(float)
    for axis, size in enumerate(target):
        source = image.shape[axis]
        scale, pixels, wanted = source / size, np.arange(source), np.arange(size)[:, None]
        if kernel == "area":
            ends = np.minimum(pixels + 1, (wanted + 1) * scale), np.maximum(pixels, wanted * scale)
            weights = np.maximum(ends[0] - ends[1], 0)
        else:
            centres, wide = (wanted + 0.5) * scale, max(scale, 1.0)
            x = np.abs(pixels + 0.5 - centres) / wide
            cubic = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)
            weights = np.maximum(1 - x, 0) if kernel == "antialias" else np.where(x < 2, cubic, 0)
        weights = weights / weights.sum(axis=1, keepdims=True)
        image = np.moveaxis(np.tensordot(weights, image, (1, axis)), 0, axis)
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


def inks_of(draw: random.Random, size: tuple[int, int]) -> bytes:
    """Returns a random CMYK or YCCK JPEG of any of their samplings, marked or not, in one scan or progressive."""
    image = picture(*size, draw.getrandbits(20))
    options = {"quality": draw.randint(1, 100), "subsampling": draw.randrange(3), "progressive": draw.random() < 0.3}
    if draw.random() < 0.3:
        options["restart_marker_blocks"] = draw.randint(1, 5)
    jpeg = draw.choice((cmyk, ycck))(image, **options)
    return unmarked(jpeg) if draw.random() < 0.3 else jpeg


def unmarked(jpeg: bytes) -> bytes:
    """The JPEG without Adobe's mark."""
    at = jpeg.index(ADOBE)
    return jpeg[:at] + jpeg[at + 16 :]


def of_jfif_2(jpeg: bytes) -> bytes:
    """The JPEG of another version of JFIF, of which libjpeg warns: so the decoder in C refuses it."""
    return jpeg.replace(b"JFIF\0\1", b"JFIF\0\2", 1)


def turned(image: Image.Image, orientation: int = 6) -> bytes:
    """A JPEG whose EXIF says that it is to be turned before it is shown."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


def png16(image: Image.Image) -> bytes:
    """A PNG with 16 bits a channel; the lower ones are random."""
    random = np.random.default_rng(0).integers(0, 256, (*image.size[::-1], len(image.getbands())), np.uint16)
    deep = np.asarray(image, np.uint16).reshape(random.shape) * 256 + random
    colour = 2 if len(image.getbands()) == 3 else 0
    rows = b"".join(b"\0" + row.tobytes() for row in deep.astype(">u2"))
    chunks = (
        b"IHDR" + struct.pack(">IIBBBBB", *image.size, 16, colour, 0, 0, 0),
        b"IDAT" + zlib.compress(rows),
        b"IEND",
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def with_alpha(image: Image.Image) -> Image.Image:
    """RGBA, see-through in places."""
    return Image.merge("RGBA", [*image.split(), image.convert("L")])


def gigapixel() -> bytes:
    """A JPEG whose header claims 60,000 x 60,000 pixels."""
    jpeg = bytearray(encoded(picture(32, 32)))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    return bytes(jpeg)


def scans(image: Image.Image, count: int) -> bytes:
    """A progressive JPEG of `count` scans, the last of which comes again and again."""
    jpeg = encoded(image, progressive=True)
    last, before = jpeg.rindex(b"\xff\xda"), jpeg.count(b"\xff\xda\0")
    return jpeg[:-2] + (count - before) * jpeg[last:-2] + jpeg[-2:]


def sampled(size: tuple[int, int], *factors: int, seed: int = 0) -> bytes:
    """A whole JPEG of flat blocks with any sampling factors, such as 0x14, 0x11, 0x11 for 4:4:1."""
    draw, sides = np.random.default_rng(seed), [(factor >> 4, factor & 15) for factor in factors]
    across, down = (-(-size[axis] // (8 * max(side[1 - axis] for side in sides))) for axis in (1, 0))
    coefficients = [np.zeros((down * high, across * wide, 64), int) for wide, high in sides]
    for blocks in coefficients:
        blocks[..., 0] = draw.integers(-200, 201, blocks.shape[:2])
    return jpeg_of(Picture(size, sides, coefficients), [Scan((0, 1, 2))], sequential=True)
