"""Every kind of picture is in both decoders what Pillow makes of it: inks, gray, palettes, alpha, 16 bits, EXIF."""

import io
import struct
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.decoding import PLAIN, TURNING, decode, decode_image, size_in
from tests.support.images import cmyk, encoded, picture, png16, turned, unmarked, with_alpha, ycck
from tfpipe.data.images import whole

SIZE = (61, 90)
# The crop that `decode` makes, so that nothing is resized; away from the edges.
WINDOW = [9, 17, 40, 56]
# libjpeg-turbo cuts off where Pillow rounds, when it multiplies inks, and again for a gray.
LEVELS = 2


def pillow(contents: bytes, channels: int) -> np.ndarray:
    image = Image.open(io.BytesIO(contents))
    if channels == 1 and image.mode == "RGB":
        image.draft("L", None)  # a JPEG's own luma
    image = image.convert("RGB")
    return np.asarray(image if channels == 3 else image.convert("L"), int).reshape(*image.size[::-1], channels)


@cache
def imagenets() -> dict[str, bytes]:
    """22 JPEGs of inks and a PNG, as the training set has them under the name of .JPEG."""
    how = [{}, {"quality": 75}, {"progressive": True}, {"subsampling": 2}]
    made = {}
    for number in range(22):
        # In the whole of ImageNet three of four are YCCK.
        write = cmyk if number % 4 == 0 else ycck
        made[f"{write.__name__}-{number}"] = write(picture(*SIZE, number), **how[number // 4 % 4])
    return made | {"png": encoded(with_alpha(picture(*SIZE, 22)), format="PNG")}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_imagenets_inks_and_its_png_have_the_colours_that_pillow_gives(decoder: str, channels: int) -> None:
    files = imagenets()
    kinds = [Image.open(io.BytesIO(each)) for each in files.values()]
    assert [(each.mode, each.info.get("adobe_transform")) for each in kinds].count(("CMYK", 2)) == 16
    assert [(each.mode, each.info.get("adobe_transform")) for each in kinds].count(("CMYK", 0)) == 6
    crops = decode(decoder, list(files.values()), [[WINDOW]] * len(files), channels)
    top, left, height, width = WINDOW
    for (name, contents), crop in zip(files.items(), crops, strict=True):
        expected = pillow(contents, channels)[top : top + height, left : left + width]
        # Some colour, so that inverted inks, or YCC taken for them, could not pass.
        assert np.ptp(expected) > 80
        assert np.abs(crop - expected).max() <= LEVELS, name


ONE = picture(*SIZE, 30)


def bmp16(image: Image.Image) -> bytes:
    """A BMP of 5 bits for each colour."""
    levels = np.asarray(image)[::-1].astype(np.uint16) >> 3
    rows = np.zeros((SIZE[0], SIZE[1] + SIZE[1] % 2), "<u2")
    rows[:, : SIZE[1]] = levels[..., 0] << 10 | levels[..., 1] << 5 | levels[..., 2]
    sizes = (54 + rows.nbytes, 0, 54, 40, *SIZE[::-1], 1, 16, 0, rows.nbytes, 0, 0, 0, 0)
    head = struct.pack("<2sIIIIiiHHIIIIII", b"BM", *sizes)
    return head + rows.tobytes()


def larger_screen(gif: bytes) -> bytes:
    """The GIF with a row and a column more than its only frame."""
    return gif[:6] + struct.pack("<HH", SIZE[1] + 1, SIZE[0] + 1) + gif[10:]


OTHERS = {
    "inks without Adobe's mark": unmarked(cmyk(ONE)),
    "gray": encoded(ONE.convert("L")),
    "gray, progressive": encoded(ONE.convert("L"), progressive=True),
    "RGB, not YCC": encoded(ONE, keep_rgb=True),
    "EXIF orientation": turned(ONE),
    "RGBA PNG": encoded(with_alpha(ONE), format="PNG"),
    "gray PNG": encoded(ONE.convert("L"), format="PNG"),
    "gray and alpha PNG": encoded(with_alpha(ONE).convert("LA"), format="PNG"),
    "palette PNG": encoded(ONE.quantize(64), format="PNG"),
    "transparent palette PNG": encoded(ONE.quantize(64), format="PNG", transparency=3),
    "black and white PNG": encoded(ONE.convert("1"), format="PNG"),
    "GIF": encoded(ONE.quantize(64), format="GIF"),
    "BMP": encoded(ONE, format="BMP"),
    "BMP with alpha": encoded(with_alpha(ONE), format="BMP"),
    "BMP with a palette": encoded(ONE.quantize(64), format="BMP"),
    "gray BMP": encoded(ONE.convert("L"), format="BMP"),
    "black and white BMP": encoded(ONE.convert("1"), format="BMP"),
    "BMP of 16 bits": bmp16(ONE),
    "WebP": encoded(ONE, format="WEBP"),
    "transparent WebP": encoded(with_alpha(ONE), format="WEBP"),
    "transparent WebP, lossless": encoded(with_alpha(ONE), format="WEBP", lossless=True, exact=True),
    "lossless WebP": encoded(ONE, format="WEBP", lossless=True),
    "GIF of frames": encoded(ONE.quantize(64), format="GIF", save_all=True, append_images=[ONE.rotate(180)]),
    "GIF of a frame that is smaller than its screen": larger_screen(encoded(ONE.quantize(64), format="GIF")),
    "animated WebP": encoded(ONE, format="WEBP", save_all=True, append_images=[ONE.rotate(180)]),
    "animated WebP with alpha": encoded(with_alpha(ONE), format="WEBP", save_all=True, append_images=[ONE.rotate(180)]),
    **{kind: encoded(ONE, format=kind) for kind in ("TIFF", "AVIF", "JPEG2000", "PPM")},
    "TIFF of inks": encoded(ONE.convert("CMYK"), format="TIFF"),
    "AVIF with alpha": encoded(with_alpha(ONE), format="AVIF"),
    "gray PGM": encoded(ONE.convert("L"), format="PPM"),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_other_kinds_too(decoder: str, channels: int) -> None:
    crops = decode(decoder, list(OTHERS.values()), [[WINDOW]] * len(OTHERS), channels)
    top, left, height, width = WINDOW
    for (name, contents), crop in zip(OTHERS.items(), crops, strict=True):
        expected = pillow(contents, channels)[top : top + height, left : left + width]
        assert np.abs(crop - expected).max() <= LEVELS, name


@pytest.mark.parametrize("channels", [3, 1])
def test_webps_have_the_same_pixels_where_tensorflow_cannot_decode_them(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before TensorFlow 2.20: by Pillow, which rounds a gray by itself."""
    files = [contents for name, contents in OTHERS.items() if "WebP" in name]
    by_ops = [decode_image(contents, channels) for contents in files]
    monkeypatch.setattr(whole, "HAS_WEBP", False)
    for expected, contents in zip(by_ops, files, strict=True):
        assert np.abs(decode_image(contents, channels).astype(int) - expected).max() <= (channels == 1)


@pytest.mark.parametrize("kind", ["RGB PNG", "gray PNG", "gray TIFF", "gray PNG, by Pillow"])
def test_of_16_bits_the_upper_ones_count(kind: str) -> None:
    image = picture(*SIZE, 31).convert("RGB" if "RGB" in kind else "L")
    expected = np.asarray(image, int).reshape(*SIZE, -1)
    contents = png16(image)
    if "TIFF" in kind:
        contents = encoded(Image.fromarray(np.asarray(image, np.uint16) * 256 + 77), format="TIFF")
    found = decode_image(contents, how=TURNING if "Pillow" in kind else PLAIN).astype(int)
    # Pillow itself makes white of nearly all 16-bit gray.
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("mode", ["F", "I"])
def test_levels_without_a_range_are_refused(mode: str) -> None:
    contents = encoded(picture(*SIZE).convert("L").convert(mode), format="TIFF")
    with pytest.raises(tf.errors.OpError, match=f"a TIFF of mode {mode}, whose levels have no stated range"):
        decode_image(contents)


def test_orientation_is_ignored_as_boxes_were_drawn_without_it() -> None:
    contents, plain = turned(ONE), encoded(ONE)
    assert Image.open(io.BytesIO(contents)).getexif()[0x0112] == 6
    assert size_in(contents) == list(SIZE)
    for decoder in ("native", "graph"):
        assert (decode(decoder, [contents], [[WINDOW]]) == decode(decoder, [plain], [[WINDOW]])).all()
