"""Decoders: the one in C, which decodes several images per call, or TensorFlow's own ops; C resizes either's pixels."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.damage import FEWER_SCANS, JPEG, MOST_SCANS, RAISE_IT, SCAN, TOO_MANY_PIXELS, TOO_MANY_SCANS
from tfpipe.data.images.whole import Decoding, decode_image, image_sizes
from tfpipe.data.images.windows import Target, target_of
from tfpipe.native import native

# Images per call: half as many take 2 % more time, twice as many save none.
NATIVE_IMAGES = 32
# A batch of up to so many images is decoded in one call: if each gives one crop, the batch needs no copy, and random
# crops of packed files with entry points take 3 % less time, of coefficients 7 %. More would come in bursts.
MOST_IMAGES = 64
Decode = Callable[["EncodedImages", tf.Tensor, Windows, tf.Tensor], Any]
"""(encoded images, their sizes (int32 [n, 2]), windows, which of these to mirror (bool [k], with `data.views` [k,
views], or [0] for none)) -> crops (uint8 [k, height, width, channels]), with `data.views` a tuple of them, by view."""


class EncodedImages(NamedTuple):
    """n encoded images."""

    contents: tf.Tensor  # string [n]
    entries: tf.Tensor | None = None  # string [n]: their entry points, "" for none; None: none has any


class Decoder(NamedTuple):
    """Functions that make crops from encoded images."""

    images: int
    """Number of images per call."""
    decode: Decode
    sizes: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """(images (string [n]), their sizes (int32 [n, 2]: height, width; 0: unknown)) -> sizes, all known."""


def choose_decoder(config: DataConfig, split: str = "train") -> Decoder:
    """Returns the decoder set by `data.decoder`, for the crops of `split` ("train" or "test")."""
    images = config.batch_size if NATIVE_IMAGES < config.batch_size <= MOST_IMAGES else NATIVE_IMAGES
    how = Decoding.of(config)
    decode, sizes = _decode(config, split, how), partial(_sizes_within, most=config.max_pixels, how=how)
    return Decoder(images if config.native else 1, decode, sizes)


def _sizes_within(images: tf.Tensor, sizes: tf.Tensor, most: int, how: Decoding) -> tf.Tensor:
    """Returns int32 [n, 2] as image_sizes; an image of more than `most` pixels is an error."""
    actual = image_sizes(images, sizes, how)
    largest = tf.reduce_max(tf.reduce_prod(tf.cast(actual, tf.int64), axis=1))
    with tf.control_dependencies([_at_most(largest, most, TOO_MANY_PIXELS, RAISE_IT)]):
        return tf.identity(actual)


def _with_few_scans(image: tf.Tensor) -> tf.Tensor:
    """Returns an image (string []); a JPEG of more than MOST_SCANS scans is an error.

    The decoder in C refuses such a JPEG by the scans of its image alone, which are at most those counted here: so it
    is an error either way.
    """
    scans = tf.size(tf.strings.split(image, SCAN)) - 1
    is_jpeg = tf.equal(tf.strings.substr(image, 0, len(JPEG)), JPEG)
    with tf.control_dependencies([_at_most(tf.where(is_jpeg, scans, 0), MOST_SCANS, TOO_MANY_SCANS, FEWER_SCANS)]):
        return tf.identity(image)


def _at_most(number: tf.Tensor, most: int, complaint: str, remedy: str) -> tf.Operation:
    message = tf.strings.join([tf.strings.as_string(number), f"{complaint}{most}{remedy}"])
    return tf.debugging.Assert(tf.cast(number, tf.int64) <= most, [message])


def _decode(config: DataConfig, split: str, how: Decoding) -> Decode:
    """Returns a function that decodes, in one op for all images, only the parts of JPEGs that their windows need.

    The images that the op refuses are decoded as a whole, as decode_image does: kinds of JPEG that it does not know,
    other formats, and damage, so that damage anywhere in a file is an error, with TensorFlow's message. With
    `data.decoder` "graph" these are all images. The pixels are cut and resized in C, too.
    """
    targets, channels = [target_of(view, split) for view in config.by_view], config.num_channels
    library, views = native(), len(targets)
    kernel = library.kernels[config.resize]
    numbers = [number for target in targets for number in (*target.size, target.level, *target.cover)]
    of_jpegs: dict[str, Any] = {"targets": numbers, "views": views, "channels": channels, "kernel": kernel}
    of_jpegs |= {"scans": MOST_SCANS, "turn": int(how.turn)}

    def decode_jpegs(images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> Any:
        """Returns the crops by view, and the numbers (int64 [m]) of images that are still to be decoded."""
        if not config.native:
            count = tf.size(windows.images)
            return [tf.zeros([count, *target.size, channels], tf.uint8) for target in targets], windows.images
        entries = tf.zeros(0, tf.string) if images.entries is None else images.entries
        places = tf.reshape(windows.windows, [-1, 4 * views])
        crops, refused = library.crops(
            images.contents, entries, sizes, windows.images, places, tf.reshape(flips, [-1]), **of_jpegs
        )
        return crops, tf.where(tf.ensure_shape(refused, [None]))[:, 0]

    def decode(images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> Any:
        crops, others = decode_jpegs(images, sizes, windows, flips)
        crops = tuple(tf.ensure_shape(c, [None, *t.size, channels]) for c, t in zip(crops, targets, strict=True))
        by_view, mirrored = tf.reshape(windows.windows, [-1, views, 4]), flips.shape[0] != 0

        def replace(crops: tuple[tf.Tensor, ...], image: tf.Tensor) -> tuple[tf.Tensor, ...]:
            indices = tf.where(tf.equal(windows.images, image))
            pixels = decode_image(_with_few_scans(images.contents[image]), channels, how)
            places, flip = tf.gather_nd(by_view, indices), [flips] * views
            if mirrored:
                flip = tf.unstack(tf.gather_nd(tf.reshape(flips, [-1, views]), indices), views, axis=1)
            new = [_cut(pixels, places[:, view], flip[view], targets[view], kernel) for view in range(views)]
            return tuple(tf.tensor_scatter_nd_update(*each) for each in zip(crops, [indices] * views, new, strict=True))

        def replaced() -> tuple[tf.Tensor, ...]:
            # One after the other: each may take hundreds of megabytes, and other calls decode at the same time.
            return tf.foldl(replace, tf.unique(others)[0], crops, parallel_iterations=1)

        crops = tf.cond(tf.size(others) > 0, replaced, lambda: crops)
        return crops if config.views else crops[0]

    return decode


def _cut(pixels: tf.Tensor, windows: tf.Tensor, flips: tf.Tensor, target: Target, kernel: int) -> tf.Tensor:
    """Cuts windows (int32 [k, 4]) out of an image (uint8 [height, width, channels]), and resizes them to `target`.

    Mirrors those that `flips` (bool [k], or [0] for none) selects.
    """
    (height, width), (cover_height, cover_width) = target.size, target.cover
    how = {"level": target.level, "cover_height": cover_height, "cover_width": cover_width, "kernel": kernel}
    return native().resize(pixels, windows, flips, height=height, width=width, **how)
