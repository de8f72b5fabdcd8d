"""Decodes JPEGs, cuts out boxes and resizes them to crops, in TensorFlow ops that never take the GIL.

Boxes are float32 [k, 4] (ymin, xmin, ymax, xmax); windows are int32 [k, 4] (top, left, height, width) in pixels. A
window lies inside its image and is at least one pixel high and wide.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig, Kernel
from tfpipe.data.images.headers import START_OF_IMAGE, TOO_LARGE
from tfpipe.data.order.permutation import GAMMA, mix
from tfpipe.native import Native

# libjpeg's exact transform gives the same pixels as Pillow, and is as fast as the approximate one.
DCT = "INTEGER_ACCURATE"
# Rows and columns to decode around a window: libjpeg's chroma upsampling reads the neighbouring columns, and without
# them the outermost column is wrong by up to 30 levels.
MARGIN = (0, 2)
# An Adobe segment to insert after a JPEG's first two bytes, which declares CMYK rather than YCCK.
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
# Weights of red, green and blue in a gray level, the same as in JPEG and Pillow.
GRAY = (0.299, 0.587, 0.114)
END = 2**31 - 1
HUGE_GIF = f"a GIF of more than {TOO_LARGE // 3} pixels, which is not decoded"
STRETCHED = -1
# Draws of a random window: torchvision's, and of one that has to cover a part of a box (native/sample.c).
TRIES, COVERING_TRIES = 10, 100
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


def image_sizes(images: tf.Tensor, sizes: tf.Tensor, library: Native | None) -> tf.Tensor:
    """Returns int32 [n, 2], heights and widths: `sizes` [n, 2], those that are 0 found in the images (string [n]).

    Headers are read by `library` if there is one; an image "" keeps its 0.
    """
    known = sizes if library is None else tf.ensure_shape(library.sizes(images, sizes), [None, 2])
    # Lengths, here and elsewhere, since a comparison with "" copies each string: 115 kB of a JPEG.
    unknown = tf.where(tf.equal(known[:, 0], 0) & (tf.strings.length(images) > 0))

    def look() -> tf.Tensor:
        found = tf.map_fn(image_size, tf.gather_nd(images, unknown), fn_output_signature=tf.TensorSpec([2], tf.int32))
        return tf.tensor_scatter_nd_update(known, unknown, found)

    return tf.cond(tf.size(unknown) > 0, look, lambda: known)


def decode_image(contents: tf.Tensor, channels: int, window: tf.Tensor | None = None) -> tf.Tensor:
    """Returns uint8 [height, width, channels], an image or a window of it; decodes only its rows and columns of a JPEG.

    A PNG, GIF, BMP or WebP is recognised by its content, whatever the file's name, and decoded whole. `contents`
    (string []) are the file's bytes; `window` is int32 [4]; `channels` is 1 or 3.

    CMYK and YCCK look as in Pillow. CMYK JPEGs store inverted inks. TensorFlow assumes that only if there is an Adobe
    segment, Pillow and libjpeg-turbo always. So one is inserted at the front; the file's own segment comes later and
    takes precedence. TensorFlow cannot decode CMYK to gray, so that goes through RGB.
    """

    def decode(jpeg: tf.Tensor, channels: int) -> tf.Tensor:
        if window is None:
            return tf.io.decode_jpeg(jpeg, channels, dct_method=DCT)
        return tf.io.decode_and_crop_jpeg(jpeg, window, channels, dct_method=DCT)

    def decode_jpeg() -> tf.Tensor:
        inks = tf.equal(tf.io.extract_jpeg_shape(contents)[2], 4)
        rest = partial(tf.strings.substr, contents, 2, END)
        jpeg = tf.cond(inks, lambda: tf.strings.join([START_OF_IMAGE, ADOBE, rest()]), lambda: contents)
        if channels == 3:
            return decode(jpeg, 3)
        return tf.cond(inks, lambda: _gray(decode(jpeg, 3)), lambda: decode(jpeg, 1))

    def decode_other() -> tf.Tensor:
        image = _decode_other(contents)
        image = image if channels == 3 else _gray(image)
        return image if window is None else _cut(image, window)

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


def _cut(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    top, left, height, width = tf.unstack(window)
    return image[top : top + height, left : left + width]


def resize(image: tf.Tensor, target: tuple[int, int] | tf.Tensor, kernel: Kernel = "bilinear") -> tf.Tensor:
    """Resizes an image, uint8 [height, width, channels], to uint8 [*target, channels]; rounds to the nearest level.

    Pixel centres are at half pixels. "antialias" is bilinear with antialiasing, which "bicubic" has, too.
    """
    method = "bilinear" if kernel == "antialias" else kernel
    resized = tf.round(tf.image.resize(image, target, method, antialias=kernel in ("antialias", "bicubic")))
    # A bicubic kernel overshoots at edges, so its values are clipped to [0, 255].
    return tf.saturate_cast(resized, tf.uint8) if kernel == "bicubic" else tf.cast(resized, tf.uint8)


def decode_crops(
    contents: tf.Tensor,
    size: tf.Tensor,
    windows: tf.Tensor,
    targets: Sequence[Target],
    channels: int,
    kernel: Kernel = "bilinear",
) -> tuple[tf.Tensor, ...]:
    """Returns uint8 [k, *size, channels] of each target: windows cut out of an image of `size` (int32 [2]) and resized.

    `windows` are int32 [k, targets, 4]. Decodes once, and only the smallest window that encloses all of them; the
    pixels equal those of decoding the whole image. Damage outside it goes unnoticed.
    """
    corner = tf.maximum(tf.reduce_min(windows[..., :2], axis=(0, 1)) - MARGIN, 0)
    far = tf.minimum(tf.reduce_max(windows[..., :2] + windows[..., 2:], axis=(0, 1)) + MARGIN, size)
    image = decode_image(contents, channels, tf.concat([corner, far - corner], 0))
    shifted = windows - tf.concat([corner, [0, 0]], 0)

    def crops_of(number: int, target: Target) -> tf.Tensor:
        def cut_and_resize(window: tf.Tensor) -> tf.Tensor:
            return resize_into(_cut(image, window), target, kernel)

        own = shifted[:, number]
        # tf.map_fn costs a tenth of a decode, and most images have a single window.
        crops = tf.cond(
            tf.equal(tf.shape(own)[0], 1),
            lambda: cut_and_resize(own[0])[None],
            lambda: tf.map_fn(cut_and_resize, own, fn_output_signature=tf.uint8),
        )
        return tf.ensure_shape(crops, [None, *target.size, channels])

    return tuple(crops_of(number, target) for number, target in enumerate(targets))


def resize_into(image: tf.Tensor, target: Target, kernel: Kernel) -> tf.Tensor:
    """Resizes an image, uint8 [height, width, channels], to uint8 [*target.size, channels], as the target says."""
    if target.level == STRETCHED and not any(target.cover):
        return resize(image, target.size, kernel)
    top, left, height, width = tf.unstack(placed(tf.shape(image)[None, :2], target)[0])
    if any(target.cover):
        resized = resize(image, tf.stack([height, width]), kernel)
        return resized[-top : target.size[0] - top, -left : target.size[1] - left]
    around = [[top, target.size[0] - top - height], [left, target.size[1] - left - width], [0, 0]]
    return tf.pad(resize(image, tf.stack([height, width]), kernel), around, constant_values=target.level)


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


def windows_in_c(
    library: Native, sizes: tf.Tensor, boxes: Candidates, seeds: tf.Tensor, ranges: Sequence[Ranges]
) -> tf.Tensor:
    """Returns the windows of windows_in_graph (native/sample.c), so that a run may be resumed without the library."""
    rows = [(*each.area, *each.aspect, *each.logarithms, each.covered) for each in ranges]
    drawn = library.windows(sizes, boxes.boxes, boxes.spans, boxes.images, seeds, tf.constant(rows, tf.float64))
    return tf.ensure_shape(drawn, [None, len(ranges), 4])


def windows_in_graph(sizes: tf.Tensor, boxes: Candidates, seeds: tf.Tensor, ranges: Sequence[Ranges]) -> tf.Tensor:
    """Returns int32 [k, m, 4]: m random windows of each crop, drawn as torchvision's RandomResizedCrop draws them.

    A window that has to cover a part of a box is drawn until it does. If TRIES draws do not fit into the image, or
    COVERING_TRIES do not fit and cover, it is the middle of the image, as far as the aspect ratios allow; if that does
    not cover, the whole image.

    Args:
        sizes: int32 [n, 2], heights and widths of the images.
        boxes: those to cover; of a crop without boxes, the whole image is the box.
        seeds: int64 [k, m, 2]; the same seed gives the same window.
        ranges: [m], what each of the windows is drawn from.
    """
    sides = tf.cast(tf.gather(sizes, boxes.images), tf.float64)
    each_seed = zip(tf.unstack(_hashes(seeds), len(ranges), axis=1), ranges, strict=True)
    return tf.cast(tf.stack([_random_windows(sides, boxes, *each) for each in each_seed], axis=1), tf.int32)


def _random_windows(sides: tf.Tensor, boxes: Candidates, keys: tf.Tensor, how: Ranges) -> tf.Tensor:
    """Returns float64 [k, 4]: windows of images of `sides` (float64 [k, 2]), by keys (uint64 [k])."""
    tries = COVERING_TRIES if how.covered > 0 else TRIES
    numbers = np.arange(1, 4 * tries + 1, dtype=np.uint64).reshape(tries, 4) * GAMMA
    drawn = tf.bitwise.right_shift(mix(keys[:, None, None] + numbers), np.uint64(11))
    area, aspect, *places = tf.unstack(tf.cast(drawn, tf.float64) * 2.0**-53, axis=2)
    (least, most), (low, high) = how.area, how.logarithms
    area = sides[:, :1] * sides[:, 1:] * (least + (most - least) * area)
    aspect = _exponential(low + (high - low) * aspect)
    lengths = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], axis=2)))
    fits = tf.reduce_all((lengths >= 1) & (lengths <= sides[:, None]), axis=2)
    corners = tf.floor(tf.stack(places, axis=2) * (sides[:, None] - lengths + 1))
    last = [_middle(sides, how.aspect), full_windows(sides)]
    windows = tf.concat([tf.concat([corners, lengths], 2), tf.stack(last, axis=1)], 1)
    usable = tf.pad(fits, [[0, 0], [0, 2]], constant_values=True)
    if how.covered > 0:
        usable &= _cover(windows, sides, boxes, how.covered) | (tf.range(tries + 2) == tries + 1)
    first = tf.reduce_min(tf.where(usable, tf.range(tries + 2), tries + 1), axis=1)
    return tf.gather(windows, first, axis=1, batch_dims=1)


def _middle(sides: tf.Tensor, aspect: tuple[float, float]) -> tf.Tensor:
    """Returns float64 [k, 4]: the middle of images, as much of them as the aspect ratios allow."""
    height, width = sides[:, 0], sides[:, 1]
    ratio = width / height
    high = tf.minimum(tf.maximum(tf.round(width / aspect[0]), 1), height)
    wide = tf.minimum(tf.maximum(tf.round(height * aspect[1]), 1), width)
    lengths = tf.stack([tf.where(ratio < aspect[0], high, height), tf.where(ratio > aspect[1], wide, width)], axis=1)
    return tf.concat([tf.floor((sides - lengths) / 2), lengths], axis=1)


def _cover(windows: tf.Tensor, sides: tf.Tensor, boxes: Candidates, covered: float) -> tf.Tensor:
    """Returns bool [k, t]: which of t windows of each crop cover the share `covered` of one of its boxes."""
    count, whole = tf.shape(boxes.boxes, tf.int64)[0], tf.constant([[0.0, 0.0, 1.0, 1.0]])
    spans = tf.where(boxes.spans[:, :1] < boxes.spans[:, 1:], boxes.spans, tf.stack([count, count + 1]))
    pairs = tf.ragged.range(spans[:, 0], spans[:, 1])
    crops = pairs.value_rowids()
    edges = tf.cast(tf.gather(tf.concat([boxes.boxes, whole], 0), pairs.values), tf.float64)
    edges = (edges * tf.tile(tf.gather(sides, crops), [1, 2]))[:, None]
    own = tf.gather(windows, crops)
    both = tf.minimum(own[..., :2] + own[..., 2:], edges[..., 2:]) - tf.maximum(own[..., :2], edges[..., :2])
    area = (edges[..., 2] - edges[..., 0]) * (edges[..., 3] - edges[..., 1])
    enough = tf.reduce_all(both > 0, axis=2) & (both[..., 0] * both[..., 1] >= area * covered)
    return tf.math.unsorted_segment_max(tf.cast(enough, tf.int32), crops, tf.shape(sides)[0]) > 0


def _exponential(x: tf.Tensor) -> tf.Tensor:
    """Returns e^x by sums and products alone, which are the same everywhere; TensorFlow's differs in the last bit."""
    y, power = x * 2.0**-8, tf.constant(1 / math.factorial(7), tf.float64)
    for number in range(6, -1, -1):
        power = 1 / math.factorial(number) + y * power
    for _ in range(8):
        power *= power
    return power


def mirror(crops: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
    """Returns `crops` ([k, height, width, channels]) with those selected by `flips` (bool [k]) mirrored sideways."""
    chosen = tf.where(flips)
    shape = crops.shape[1:]
    # tf.reverse has a fast path for rows of pixels: 0.15 ms for a crop of 224x224 instead of 0.52 ms.
    rows = tf.reshape(tf.gather_nd(crops, chosen), [-1, *shape[1:]])
    return tf.tensor_scatter_nd_update(crops, chosen, tf.reshape(tf.reverse(rows, [1]), [-1, *shape]))


def flipped(seeds: tf.Tensor) -> tf.Tensor:
    """Returns bool [k]: which crops to mirror, given their seeds (int64 [k, 2]); true for about half of them."""
    return tf.cast(_hashes(seeds), tf.int64) < 0  # the top bit


def _hashes(seeds: tf.Tensor) -> tf.Tensor:
    """Returns uint64 [...] of seeds (int64 [..., 2])."""
    first, second = tf.unstack(tf.cast(seeds, tf.uint64), axis=-1)
    return mix(mix(first + GAMMA) + GAMMA * second)
