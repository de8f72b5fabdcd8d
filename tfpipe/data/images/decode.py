"""Decoders: the one in C, which decodes and resizes several images per call, or TensorFlow's own ops."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.damage import JPEG, REMEDY, SCAN, TOO_MANY_PIXELS, TOO_MANY_SCANS
from tfpipe.data.images.windows import decode_crops, decode_image, image_sizes, mirror
from tfpipe.native import KERNELS, Native, native

# Images per call: half as many take 2 % more time, twice as many save none.
NATIVE_IMAGES = 32
Decode = Callable[["EncodedImages", tf.Tensor, Windows, tf.Tensor], tf.Tensor]
"""(encoded images, their sizes (int32 [n, 2]), windows, which of these to mirror (bool [k], or [0] for none)) -> crops
(uint8 [k, height, width, channels])."""


class EncodedImages(NamedTuple):
    """n encoded images."""

    contents: tf.Tensor  # string [n]
    entries: tf.Tensor | None = None  # string [n]: their entry points, "" for none; None: none has any


class Decoder(NamedTuple):
    """Functions that make crops from encoded images."""

    images: int
    """Number of images per call."""
    decode: Decode
    mirror: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """(crops (uint8 [k, height, width, channels]), which of them to mirror (bool [k])) -> crops."""
    sizes: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """(images (string [n]), their sizes (int32 [n, 2]: height, width; 0: unknown)) -> sizes, all known."""


def native_library(config: DataConfig) -> Native | None:
    """Returns the library in C; None if it cannot be used, or `data.decoder` asks for TensorFlow's ops."""
    return native() if config.native else None


def ops_library(config: DataConfig) -> Native | None:
    """Returns the library in C for ops on whole batches; None if it cannot be used, or `data.decoder` is "graph"."""
    return None if config.decoder == "graph" else native()


def choose_decoder(config: DataConfig) -> Decoder:
    """Returns the decoder set by `data.decoder`; "auto" is "native".

    "native" is tfpipe's own decoder in C, or TensorFlow's ops where that is not built.
    """
    library = native_library(config)
    sizes = partial(_sizes_within, library=library, most=config.max_pixels)
    if library is None:
        return Decoder(1, _decoder_in_graph(config), mirror, sizes)
    return Decoder(NATIVE_IMAGES, _decoder_in_c(library, config), partial(_mirror_in_c, library=library), sizes)


def _sizes_within(images: tf.Tensor, sizes: tf.Tensor, library: Native | None, most: int) -> tf.Tensor:
    """Returns int32 [n, 2] as image_sizes; an image of more than `most` pixels is an error."""
    actual = image_sizes(images, sizes, library)
    largest = tf.reduce_max(tf.reduce_prod(tf.cast(actual, tf.int64), axis=1))
    with tf.control_dependencies([_at_most(largest, most, TOO_MANY_PIXELS)]):
        return tf.identity(actual)


def _with_few_scans(image: tf.Tensor, most: int) -> tf.Tensor:
    """Returns an image (string []); a JPEG of more than `most` scans is an error.

    The decoder in C refuses such a JPEG by the scans of its image alone, which are at most those counted here: so it
    is an error either way.
    """
    scans = tf.size(tf.strings.split(image, SCAN)) - 1
    is_jpeg = tf.equal(tf.strings.substr(image, 0, len(JPEG)), JPEG)
    with tf.control_dependencies([_at_most(tf.where(is_jpeg, scans, 0), most, TOO_MANY_SCANS)]):
        return tf.identity(image)


def _at_most(number: tf.Tensor, most: int, complaint: str) -> tf.Operation:
    message = tf.strings.join([tf.strings.as_string(number), f"{complaint}{most}{REMEDY}"])
    return tf.debugging.Assert(tf.cast(number, tf.int64) <= most, [message])


def _decoder_in_c(library: Native, config: DataConfig) -> Decode:
    """Returns a function that decodes only the parts of images that their windows need, in one op for all images.

    TensorFlow's ops decode the images that the op refuses, as a whole: kinds of JPEG that it does not know, other
    formats, and damage, so that damage anywhere in a file is an error, with TensorFlow's message. Their pixels are cut
    and resized in C, too.
    """
    (height, width), channels, kernel = config.crop_image_size, config.num_channels, KERNELS.index(config.resize)
    target = {"height": height, "width": width, "kernel": kernel}
    of_jpegs = {"channels": channels, "scans": min(config.max_scans, 2**31 - 1)}

    def decode(images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> tf.Tensor:
        entries = tf.zeros(0, tf.string) if images.entries is None else images.entries
        crops, refused = library.crops(
            images.contents, entries, sizes, windows.images, windows.windows, flips, **of_jpegs, **target
        )
        crops, refused = tf.ensure_shape(crops, [None, height, width, channels]), tf.ensure_shape(refused, [None])

        def replace(crops: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
            indices = tf.where(tf.equal(windows.images, image))
            pixels = decode_image(_with_few_scans(images.contents[image], config.max_scans), channels)
            mirrored = flips if flips.shape[0] == 0 else tf.gather_nd(flips, indices)
            cut = library.resize(pixels, tf.gather_nd(windows.windows, indices), mirrored, **target)
            return tf.tensor_scatter_nd_update(crops, indices, cut)

        def replaced() -> tf.Tensor:
            # One after the other: each may take hundreds of megabytes, and other calls decode at the same time.
            return tf.foldl(replace, tf.where(refused)[:, 0], crops, parallel_iterations=1)

        return tf.cond(tf.reduce_any(refused), replaced, lambda: crops)

    return decode


def _mirror_in_c(crops: tf.Tensor, flips: tf.Tensor, library: Native) -> tf.Tensor:
    """Mirrors crops in one op; in TensorFlow's a crop of 224x224 takes 75 microseconds."""
    _, height, width, channels = crops.shape
    count = tf.shape(crops)[0]
    # One below the other the crops are an image, and each of them a window of its own size.
    windows = tf.stack([tf.range(count) * height, *(tf.fill([count], side) for side in (0, height, width))], axis=1)
    image = tf.reshape(crops, [-1, width, channels])
    mirrored = library.resize(image, windows, flips, height=height, width=width, kernel=KERNELS.index("bilinear"))
    return tf.ensure_shape(mirrored, crops.shape)


def _decoder_in_graph(config: DataConfig) -> Decode:
    """Returns a function that decodes one image, and of a JPEG only the smallest window that encloses its windows."""
    target, channels = config.crop_image_size, config.num_channels

    def decode(images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> tf.Tensor:
        image = _with_few_scans(images.contents[0], config.max_scans)

        def crops() -> tf.Tensor:
            resized = decode_crops(image, sizes[0], windows.windows, target, channels, config.resize)
            return resized if flips.shape[0] == 0 else mirror(resized, flips)

        return tf.cond(tf.size(windows.images) > 0, crops, lambda: tf.zeros([0, *target, channels], tf.uint8))

    return decode
