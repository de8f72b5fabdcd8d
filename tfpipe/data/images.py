"""JPEG + boxes -> crops, as TensorFlow graphs that take no GIL.

Boxes are float32 [k, 4] (ymin, xmin, ymax, xmax); windows are int32 [k, 4] (top, left, height, width) in pixels,
inside the image, at least one pixel each.
"""

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from tfpipe.config import Kernel, RandomResizedCrop
from tfpipe.data.order import GAMMA, mix
from tfpipe.data.scale import MOST_HALVINGS, halved

# libjpeg's exact transform gives the very pixels that Pillow does, and costs no more than the fast one.
DCT = "INTEGER_ACCURATE"
# Rows and columns to decode on each side of a window: libjpeg's chroma upsampling looks at the neighbours, and where
# it has none makes the outermost column up to 30 levels wrong.
MARGIN = (0, 2)
# A JPEG's first two bytes; and what Adobe's programs put behind them, here for inks as they are, not turned into YCC.
START = b"\xff\xd8"
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
# Shares of red, green and blue in a gray, as JPEG and Pillow have them.
GRAY = (0.299, 0.587, 0.114)
END = 2**31 - 1
INDEXED_BMP = "a BMP with a palette, which is not read as it should be: convert it"


def image_size(contents: tf.Tensor) -> tf.Tensor:
    """int32 [2]: height and width, from the header of a JPEG."""
    return tf.cond(
        tf.io.is_jpeg(contents),
        lambda: tf.io.extract_jpeg_shape(contents)[:2],
        lambda: tf.shape(_decode_other(contents, 3))[:2],
    )


def decode_window(contents: tf.Tensor, window: tf.Tensor, channels: int, halvings: tf.Tensor | int = 0) -> tf.Tensor:
    """uint8 [height, width, channels]: only `window` (int32 [4]) of an image is decoded.

    A PNG, GIF, BMP or WebP that is named .JPEG is read as what it is.

    Args:
        contents: string, of the file.
        window: in the image as it is after the halvings.
        channels: 1 or 3.
        halvings: int32, of a JPEG's sides.
    """

    def decode(jpeg: tf.Tensor, channels: int) -> tf.Tensor:
        how = {"channels": channels, "dct_method": DCT}
        # The op's ratio is part of the graph.
        ratios = [
            partial(tf.io.decode_and_crop_jpeg, jpeg, window, ratio=2**each, **how) for each in range(MOST_HALVINGS + 1)
        ]
        return tf.switch_case(tf.convert_to_tensor(halvings), ratios)

    return tf.cond(
        tf.io.is_jpeg(contents),
        lambda: _decode_jpeg(contents, channels, decode),
        lambda: _cut(_decode_other(contents, channels), window),
    )


def decode_image(contents: tf.Tensor, channels: int, halvings: int = 0) -> tf.Tensor:
    """uint8 [height, width, channels]: a whole image, if it is a JPEG with its sides halved so often."""
    return tf.cond(
        tf.io.is_jpeg(contents),
        lambda: _decode_jpeg(contents, channels, partial(tf.io.decode_jpeg, ratio=2**halvings, dct_method=DCT)),
        lambda: _decode_other(contents, channels),
    )


def _decode_jpeg(contents: tf.Tensor, channels: int, decode: Callable[[tf.Tensor, int], tf.Tensor]) -> tf.Tensor:
    """uint8 [height, width, channels]: by `decode`, given the bytes and the channels; CMYK and YCCK as by Pillow.

    Where Adobe's mark is missing, TensorFlow takes inks for not inverted, Pillow and libjpeg-turbo for inverted, as in
    fact they are. So it gets one; a JPEG's own comes later, and counts. And TensorFlow makes no gray of inks.
    """
    inks = tf.equal(tf.io.extract_jpeg_shape(contents)[2], 4)
    jpeg = tf.cond(inks, lambda: tf.strings.join([START, ADOBE, tf.strings.substr(contents, 2, END)]), lambda: contents)
    if channels == 3:
        return decode(jpeg, 3)
    return tf.cond(inks, lambda: _gray(decode(jpeg, 3)), lambda: decode(jpeg, 1))


def _decode_other(contents: tf.Tensor, channels: int) -> tf.Tensor:
    head = tf.io.decode_raw(tf.strings.substr(tf.strings.join([contents, bytes(32)]), 0, 32), tf.uint8)
    indexed = tf.reduce_all(tf.equal(head[:2], list(b"BM"))) & (head[28] <= 8) & tf.equal(head[29], 0)
    with tf.control_dependencies([tf.debugging.Assert(~indexed, [INDEXED_BMP])]):
        image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    return image if channels == 3 else _gray(image)


def _gray(image: tf.Tensor) -> tf.Tensor:
    """uint8 [height, width, 1], of a uint8 [height, width, 3]."""
    return tf.cast(tf.round(tf.reduce_sum(tf.cast(image, tf.float32) * GRAY, axis=-1, keepdims=True)), tf.uint8)


def _cut(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    top, left, height, width = tf.unstack(window)
    return image[top : top + height, left : left + width]


def resize(image: tf.Tensor, target: tuple[int, int], kernel: Kernel = "bilinear") -> tf.Tensor:
    """uint8 [*target, channels] of an image, uint8 [height, width, channels]; rounded to the nearest level.

    Half-pixel centres; "bilinear" and "bicubic" without antialiasing, "antialias" is bilinear with it.
    """
    method = "bilinear" if kernel == "antialias" else kernel
    resized = tf.round(tf.image.resize(image, target, method, antialias=kernel == "antialias"))
    # A cubic overshoots at edges.
    return tf.saturate_cast(resized, tf.uint8) if kernel == "bicubic" else tf.cast(resized, tf.uint8)


def decode_crops(
    contents: tf.Tensor,
    size: tf.Tensor,
    windows: tf.Tensor,
    target: tuple[int, int],
    channels: int,
    kernel: Kernel = "bilinear",
    halvings: tf.Tensor | int = 0,
) -> tf.Tensor:
    """uint8 [k, *target, channels]: each window cut out of an image of `size` (int32 [2]) and resized.

    Decodes the smallest window that holds them all, once; the pixels are those of a decode of the whole image, its
    sides halved so often (int32; a JPEG's alone can be).
    """
    windows = halved(windows, halvings)
    size = -(tf.negative(size) // tf.bitwise.left_shift(1, halvings))
    corner = tf.maximum(tf.reduce_min(windows[:, :2], axis=0) - MARGIN, 0)
    far = tf.minimum(tf.reduce_max(windows[:, :2] + windows[:, 2:], axis=0) + MARGIN, size)
    image = decode_window(contents, tf.concat([corner, far - corner], 0), channels, halvings)

    def cut_and_resize(window: tf.Tensor) -> tf.Tensor:
        return resize(_cut(image, window), target, kernel)

    inside = windows - tf.concat([corner, [0, 0]], 0)
    # Most images have one window, and a loop costs a tenth of a decode.
    crops = tf.cond(
        tf.equal(tf.shape(windows)[0], 1),
        lambda: cut_and_resize(inside[0])[None],
        lambda: tf.map_fn(cut_and_resize, inside, fn_output_signature=tf.uint8),
    )
    return tf.ensure_shape(crops, [None, *target, channels])


def box_windows(boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """int32 [k, 4]: relative boxes (float32 [k, 4]) in images of `sizes` (int32 [k, 2]), to the nearest pixel."""
    scale = tf.cast(tf.tile(sizes, [1, 2]), tf.float32)
    edges = tf.cast(tf.round(boxes * scale), tf.int32)
    corners = tf.clip_by_value(edges[:, :2], 0, sizes - 1)
    return tf.concat([corners, tf.clip_by_value(edges[:, 2:] - corners, 1, sizes - corners)], axis=1)


def full_windows(sizes: tf.Tensor) -> tf.Tensor:
    """int32 [n, 4]: the whole of images of `sizes` (int32 [n, 2])."""
    return tf.concat([tf.zeros_like(sizes), sizes], axis=1)


def center_windows(sizes: tf.Tensor, target: tuple[int, int], fraction: float) -> tf.Tensor:
    """int32 [n, 4]: the middles of images of `sizes` (int32 [n, 2]), shaped like `target`.

    Their sides are `fraction` of the largest such windows'.
    """
    shape = tf.constant(target, tf.float32)
    largest = shape * tf.reduce_min(tf.cast(sizes, tf.float32) / shape, axis=1, keepdims=True)
    sides = tf.clip_by_value(tf.cast(tf.round(fraction * largest), tf.int32), 1, sizes)
    return tf.concat([(sizes - sides) // 2, sides], axis=1)


def random_window(size: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor, how: RandomResizedCrop) -> tf.Tensor:
    """int32 [4]: a random window of Szegedy et al. 2015 that covers part of one of the boxes.

    Args:
        size: int32 [2] of the image.
        boxes: float32 [k, 4], relative.
        seed: int64 [2]; the same seed gives the same window.
        how: the ranges drawn from. The whole image where a hundred draws do not meet them.
    """
    begin, sides, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([size, [3]], 0),
        boxes[None],
        seed,
        min_object_covered=how.min_covered,
        aspect_ratio_range=how.aspect,
        area_range=how.area,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], sides[:2]], 0)


def mirror(crops: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
    """`crops` ([k, height, width, channels]), those mirrored of which `flips` (bool [k]) says so."""
    chosen = tf.where(flips)
    shape = crops.shape[1:]
    # Of those alone, and as rows of pixels, for which tf.reverse has a fast way: 0.15 ms a crop of 224x224, not 0.52.
    rows = tf.reshape(tf.gather_nd(crops, chosen), [-1, *shape[1:]])
    return tf.tensor_scatter_nd_update(crops, chosen, tf.reshape(tf.reverse(rows, [1]), [-1, *shape]))


def flipped(seeds: tf.Tensor) -> tf.Tensor:
    """bool [k]: whether crops of these seeds (int64 [k, 2]) are mirrored, as about half of them are."""
    first, second = tf.unstack(tf.cast(seeds, tf.uint64), axis=1)
    return tf.cast(mix(mix(first + GAMMA) + GAMMA * second), tf.int64) < 0  # the top bit
