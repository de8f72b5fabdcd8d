"""Windows of images and where they go in their crops; images decoded by TensorFlow's ops. No Python runs in graph.

Boxes are float32 [k, 4] (ymin, xmin, ymax, xmax); windows are int32 [k, 4] (top, left, height, width) in pixels. A
window lies inside its image and is at least one pixel high and wide.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.headers import START_OF_IMAGE, TOO_LARGE
from tfpipe.data.order.permutation import GAMMA, mix
from tfpipe.native import native

# libjpeg's exact transform gives the same pixels as Pillow, and is as fast as the approximate one.
DCT = "INTEGER_ACCURATE"
# An Adobe segment to insert after a JPEG's first two bytes, which declares CMYK rather than YCCK.
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
# Weights of red, green and blue in a gray level, the same as in JPEG and Pillow.
GRAY = (0.299, 0.587, 0.114)
END = 2**31 - 1
HUGE_GIF = f"a GIF of more than {TOO_LARGE // 3} pixels, which is not decoded"
STRETCHED = -1
ODD_BMP = (
    "a BMP with a palette, of 16 bits, or of colours in another order than BGR, which is not read as it should be: "
    "convert it"
)
ANIMATED = "an animated WebP, which is not read: convert it"
SMALL_FRAME = "a GIF whose first frame is smaller than its screen, which is not read as it should be: convert it"


# Bytes at some places of other headers than JPEG's. Of OS/2's BMP of 12 bytes, TensorFlow reads other numbers.
HEAD = 66
SIGNS = {
    **{"BMP": (0, b"BM"), "24 bits": (28, b"\x18\0"), "32 bits": (28, b"\x20\0"), "OS/2": (14, b"\x0c\0\0\0")},
    **{"uncompressed": (30, bytes(4)), "masks": (30, b"\3\0\0\0"), "no masks": (54, bytes(12))},
    **{"BGR": (54, b"\0\0\xff\0\0\xff\0\0\xff\0\0\0"), "GIF": (0, b"GIF8")},
    **{"WebP": (0, b"RIFF"), "extended": (12, b"VP8X"), "lossless": (12, b"VP8L")},
}
SIGN_BYTES = np.array([list((bytes(at) + sign).ljust(HEAD, b"\0")) for at, sign in SIGNS.values()], np.uint8)
OTHER_BYTES = np.array([[not at <= n < at + len(sign) for n in range(HEAD)] for at, sign in SIGNS.values()])


class Target(NamedTuple):
    """Crops of one size, which windows become."""

    size: tuple[int, int]
    """Height and width."""
    level: int = STRETCHED
    """Level of what a window leaves free that keeps its aspect ratio, see letterboxed; STRETCHED: none does."""
    cover: tuple[int, int] = (0, 0)
    """Height and width that a window covers, which keeps its aspect ratio, of which the crop is the middle; 0: none."""


def target_of(config: DataConfig, split: str) -> Target:
    """Returns what the windows of `split` ("train" or "test") become."""
    size, level = config.crop_image_size, config.letterbox_for(split)
    if config.crop_for(split) != "center":
        return Target(size, STRETCHED if level is None else level)
    # As timm's crop_pct; 224 of a share of 224 / 232 are of 232 pixels, also where the division gives a little less.
    height, width = (math.floor(side / config.center_fraction + 1e-9) for side in size)
    return Target(size, cover=(height, width))


def image_size(contents: tf.Tensor) -> tf.Tensor:
    """Returns int32 [2], the height and width of an image: a JPEG's from its header, others by decoding them."""
    return tf.cond(
        tf.io.is_jpeg(contents),
        lambda: tf.io.extract_jpeg_shape(contents)[:2],
        lambda: tf.shape(_decode_other(contents))[:2],
    )


def image_sizes(images: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns int32 [n, 2], heights and widths: `sizes` [n, 2], those that are 0 found in the images (string [n]).

    An image "" keeps its 0.
    """
    stated = tf.ensure_shape(native().sizes(images, sizes), [None, 2])
    # Lengths, here and elsewhere, since a comparison with "" copies each string: 115 kB of a JPEG.
    unknown = tf.where(tf.equal(stated[:, 0], 0) & (tf.strings.length(images) > 0))

    def look() -> tf.Tensor:
        decoded = tf.map_fn(image_size, tf.gather_nd(images, unknown), fn_output_signature=tf.TensorSpec([2], tf.int32))
        return tf.tensor_scatter_nd_update(stated, unknown, decoded)

    return tf.cond(tf.size(unknown) > 0, look, lambda: stated)


def decode_image(contents: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns an image, uint8 [height, width, channels], decoded by TensorFlow's ops.

    A PNG, GIF, BMP or WebP is recognised by its content, whatever the file's name. `contents` (string []) are the
    file's bytes; `channels` is 1 or 3.

    CMYK and YCCK look as in Pillow. CMYK JPEGs store inverted inks. TensorFlow assumes that only if there is an Adobe
    segment, Pillow and libjpeg-turbo always. So one is inserted at the front; the file's own segment comes later and
    takes precedence. TensorFlow cannot decode CMYK to gray, so that goes through RGB.
    """

    def decode_jpeg() -> tf.Tensor:
        inks = tf.equal(tf.io.extract_jpeg_shape(contents)[2], 4)
        rest = partial(tf.strings.substr, contents, 2, END)
        jpeg = tf.cond(inks, lambda: tf.strings.join([START_OF_IMAGE, ADOBE, rest()]), lambda: contents)
        decode = partial(tf.io.decode_jpeg, jpeg, dct_method=DCT)
        return decode(3) if channels == 3 else tf.cond(inks, lambda: _gray(decode(3)), lambda: decode(1))

    def decode_other() -> tf.Tensor:
        image = _decode_other(contents)
        return image if channels == 3 else _gray(image)

    return tf.cond(tf.io.is_jpeg(contents), decode_jpeg, decode_other)


def _decode_other(contents: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [height, width, 3], an image of another format than JPEG."""
    head = tf.io.decode_raw(tf.strings.substr(tf.strings.join([contents, bytes(HEAD)]), 0, HEAD), tf.uint8)
    has = dict(zip(SIGNS, tf.unstack(tf.reduce_all(tf.equal(head, SIGN_BYTES) | OTHER_BYTES, 1)), strict=True))
    ordinary = (has["24 bits"] | has["32 bits"]) & ~has["OS/2"]
    in_order = has["uncompressed"] | (has["masks"] & (has["BGR"] | has["no masks"]))
    # TensorFlow itself refuses images of this size in every other format.
    screen = tf.cast(head[6:10:2], tf.int64) + 256 * tf.cast(head[7:11:2], tf.int64)  # a GIF's width and height
    huge = has["GIF"] & (3 * tf.reduce_prod(screen) >= TOO_LARGE)
    animated = has["WebP"] & has["extended"] & (head[20] & 2 > 0)
    # A WebP with alpha cannot be read as three channels. An animated one, read as four, damages TensorFlow's memory.
    alpha = (has["extended"] & (head[20] & 16 > 0)) | (has["lossless"] & (head[24] & 16 > 0))
    odd_bmp = has["BMP"] & ~(ordinary & in_order)
    why = tf.where(
        odd_bmp, ODD_BMP, tf.where(huge, HUGE_GIF, ANIMATED)
    )  # tf.debugging.Assert would add branches, which each start pays for
    with tf.control_dependencies([tf.raw_ops.Assert(condition=~(odd_bmp | huge | animated), data=[why])]):
        decode = partial(tf.io.decode_image, contents, expand_animations=False)
        image = tf.cond(has["WebP"] & alpha, lambda: decode(4)[:, :, :3], lambda: decode(3))
    whole = tf.reduce_all(tf.shape(image, tf.int64)[1::-1] >= screen)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=~has["GIF"] | whole, data=[SMALL_FRAME])]):
        return tf.identity(image)


def _gray(image: tf.Tensor) -> tf.Tensor:
    """Converts RGB, uint8 [height, width, 3], to gray, uint8 [height, width, 1]."""
    return tf.cast(tf.round(tf.reduce_sum(tf.cast(image, tf.float32) * GRAY, axis=-1, keepdims=True)), tf.uint8)


def placed(sizes: tf.Tensor, target: Target) -> tf.Tensor:
    """Returns int32 [n, 4]: top, left, height and width of windows of `sizes` (int32 [n, 2]) in their crops.

    A window that covers goes beyond its crop.
    """
    if any(target.cover):
        return _covering(sizes, target)
    if target.level != STRETCHED:
        return letterboxed(sizes, target.size)
    return full_windows(tf.zeros_like(sizes) + tf.constant(target.size))


def _covering(sizes: tf.Tensor, target: Target) -> tf.Tensor:
    """Does what native/place.c does: torchvision's Resize of one side or timm's ResizeKeepRatio, then CenterCrop."""
    cover = tf.constant(target.cover, tf.float64)
    sides = tf.cast(sizes, tf.float64)
    whole = tf.round(sides / tf.reduce_min(sides / cover, axis=1, keepdims=True))
    if target.cover[0] == target.cover[1]:  # torchvision drops fractions of the longer side
        whole = tf.floor(target.cover[0] * sides / tf.reduce_min(sides, axis=1, keepdims=True))
    first = tf.round((whole - tf.constant(target.size, tf.float64)) / 2)
    return tf.cast(tf.concat([-first, whole], axis=1), tf.int32)


def letterboxed(sizes: tf.Tensor, target: tuple[int, int]) -> tf.Tensor:
    """Returns int32 [n, 4]: top, left, height and width of images in crops of `target`, by "letterbox".

    Images of `sizes` (int32 [n, 2]) are resized, with their aspect ratio, to the largest size that fits, and are in the
    middle. A side is rounded to the nearest pixel, halves up, and is at least 1. A mirrored crop is the mirror image of
    the whole crop: the image is then `target[1] - left - width` from its left.
    """
    height, width = tf.unstack(tf.constant(target, tf.int64))
    high, wide = tf.unstack(tf.cast(sizes, tf.int64), axis=1)
    tall = high * width >= wide * height
    rows = tf.where(tall, height, tf.maximum((2 * high * width + wide) // (2 * wide), 1))
    columns = tf.where(tall, tf.maximum((2 * wide * height + high) // (2 * high), 1), width)
    return tf.cast(tf.stack([(height - rows) // 2, (width - columns) // 2, rows, columns], axis=1), tf.int32)


def box_windows(boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns int32 [k, 4]: relative boxes (float32 [k, 4]) in images of `sizes` (int32 [k, 2]), in whole pixels."""
    scale = tf.cast(tf.tile(sizes, [1, 2]), tf.float32)
    edges = tf.cast(tf.round(boxes * scale), tf.int32)
    corners = tf.clip_by_value(edges[:, :2], 0, sizes - 1)
    return tf.concat([corners, tf.clip_by_value(edges[:, 2:] - corners, 1, sizes - corners)], axis=1)


def full_windows(sizes: tf.Tensor) -> tf.Tensor:
    """Returns int32 [n, 4]: windows that cover the whole of images of `sizes` (int32 [n, 2])."""
    return tf.concat([tf.zeros_like(sizes), sizes], axis=1)


class Candidates(NamedTuple):
    """The boxes of which random windows of k crops each cover a part."""

    boxes: tf.Tensor  # float32 [b, 4], relative
    spans: tf.Tensor  # int64 [k, 2]: first of each crop's boxes, and the end of these
    images: tf.Tensor  # int64 [k]: number of each crop's image


class Ranges(NamedTuple):
    """The areas and aspect ratios that random windows are drawn from."""

    area: tuple[float, float]
    aspect: tuple[float, float]
    covered: float
    """Smallest share of one of the boxes that a window covers; 0: it covers none of them in particular."""

    @property
    def logarithms(self) -> tuple[float, float]:
        """Logarithms of the aspect ratios, between which they are drawn uniformly."""
        return math.log(self.aspect[0]), math.log(self.aspect[1])


def random_windows(sizes: tf.Tensor, boxes: Candidates, seeds: tf.Tensor, ranges: Sequence[Ranges]) -> tf.Tensor:
    """Returns int32 [k, m, 4]: m random windows of each crop, drawn as torchvision's RandomResizedCrop draws them.

    A window that has to cover a part of a box is drawn until it does (native/sample.c). If 10 draws do not fit into the
    image, or 100 do not fit and cover, it is the middle of the image, as far as the aspect ratios allow; if that does
    not cover, the whole image.

    Args:
        sizes: int32 [n, 2], heights and widths of the images.
        boxes: those to cover; of a crop without boxes, the whole image is the box.
        seeds: int64 [k, m, 2]; the same seed gives the same window.
        ranges: [m], what each of the windows is drawn from.
    """
    rows = [(*each.area, *each.aspect, *each.logarithms, each.covered) for each in ranges]
    drawn = native().windows(sizes, boxes.boxes, boxes.spans, boxes.images, seeds, tf.constant(rows, tf.float64))
    return tf.ensure_shape(drawn, [None, len(ranges), 4])


def flipped(seeds: tf.Tensor) -> tf.Tensor:
    """Returns bool [k]: which crops to mirror, given their seeds (int64 [k, 2]); true for about half of them."""
    return tf.cast(_hashes(seeds), tf.int64) < 0  # the top bit


def _hashes(seeds: tf.Tensor) -> tf.Tensor:
    """Returns uint64 [...] of seeds (int64 [..., 2])."""
    first, second = tf.unstack(tf.cast(seeds, tf.uint64), axis=-1)
    return mix(mix(first + GAMMA) + GAMMA * second)
