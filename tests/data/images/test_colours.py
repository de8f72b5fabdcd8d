"""Every kind of picture is in both decoders what Pillow makes of it: inks, gray, palettes, alpha, 16 bits, EXIF."""

import io
import struct
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.decoding import decode
from tests.support.images import cmyk, encoded, picture, png16, turned, unmarked, with_alpha, ycck
from tfpipe.data.images.headers import header_of
from tfpipe.data.images.windows import decode_image, image_size

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
    "WebP": encoded(ONE, format="WEBP"),
    "transparent WebP": encoded(with_alpha(ONE), format="WEBP"),
    "transparent WebP, lossless": encoded(with_alpha(ONE), format="WEBP", lossless=True, exact=True),
    "lossless WebP": encoded(ONE, format="WEBP", lossless=True),
    "GIF of frames": encoded(ONE.quantize(64), format="GIF", save_all=True, append_images=[ONE.rotate(180)]),
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_other_kinds_too(decoder: str, channels: int) -> None:
    crops = decode(decoder, list(OTHERS.values()), [[WINDOW]] * len(OTHERS), channels)
    top, left, height, width = WINDOW
    for (name, contents), crop in zip(OTHERS.items(), crops, strict=True):
        expected = pillow(contents, channels)[top : top + height, left : left + width]
        assert np.abs(crop - expected).max() <= LEVELS, name


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_of_16_bits_the_upper_ones_count(mode: str) -> None:
    image = picture(*SIZE, 31).convert(mode)
    expected = np.asarray(image, int).reshape(*SIZE, -1)
    found = decode_image(tf.constant(png16(image)), 3).numpy().astype(int)
    # Pillow itself makes white of nearly all 16-bit gray.
    assert np.abs(found - expected).max() <= 1


def test_orientation_is_ignored_as_boxes_were_drawn_without_it() -> None:
    contents, plain = turned(ONE), encoded(ONE)
    assert Image.open(io.BytesIO(contents)).getexif()[0x0112] == 6
    assert image_size(contents).numpy().tolist() == list(SIZE)
    for decoder in ("native", "graph"):
        assert (decode(decoder, [contents], [[WINDOW]]) == decode(decoder, [plain], [[WINDOW]])).all()


BMP = encoded(with_alpha(ONE), format="BMP")


@pytest.mark.parametrize(
    "contents",
    [
        *(encoded(image, format="BMP") for image in (ONE.quantize(64), ONE.convert("L"), ONE.convert("1"))),
        BMP[:28] + b"\x10" + BMP[29:],
        BMP[:30] + b"\3" + BMP[31:54] + b"\xff\0\0\0\0\xff\0\0\0\0\xff\0" + BMP[66:],
        BMP[:14] + b"\x0c" + BMP[15:],
    ],
    ids=["palette", "gray", "black and white", "16 bits", "RGB", "OS/2"],
)
def test_a_bmp_that_tensorflow_misreads_is_refused(contents: bytes) -> None:
    """It takes a palette's numbers for levels of gray, and does not look at the order of colours."""
    with pytest.raises(tf.errors.OpError, match="BMP with a palette"):
        decode_image(tf.constant(contents), 3)


@pytest.mark.parametrize("image", [ONE, with_alpha(ONE)])
def test_an_animated_webp_is_refused(image: Image.Image) -> None:
    """TensorFlow writes beyond its memory when it reads one as four channels."""
    contents = encoded(image, format="WEBP", save_all=True, append_images=[ONE.rotate(180)])
    for decoder in ("native", "graph"):
        with pytest.raises(tf.errors.OpError, match="an animated WebP, which is not read: convert it"):
            decode(decoder, [contents], [[WINDOW]])


@pytest.mark.parametrize("screen", [(1, 0), (0, 1)])
def test_a_gif_of_a_frame_that_is_smaller_than_its_screen_is_refused(screen: tuple[int, int]) -> None:
    gif, (height, width) = encoded(ONE.quantize(64), format="GIF"), SIZE
    contents = gif[:6] + struct.pack("<HH", width + screen[0], height + screen[1]) + gif[10:]
    assert header_of(contents, "")[:2] == (height + screen[1], width + screen[0])
    with pytest.raises(tf.errors.OpError, match="first frame is smaller than its screen"):
        decode_image(tf.constant(contents), 3)
