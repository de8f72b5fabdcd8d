"""Decoders: the one in C, which decodes and resizes several images per call, or TensorFlow's own ops."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.damage import JPEG, REMEDY, SCAN, TOO_MANY_PIXELS, TOO_MANY_SCANS
from tfpipe.data.images.library import native_library
from tfpipe.data.images.windows import Target, decode_crops, decode_image, image_sizes, mirror, target_of
from tfpipe.native import KERNELS, Native

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
    """Returns the decoder set by `data.decoder`, for the crops of `split` ("train" or "test"); "auto" is "native".

    "native" is tfpipe's own decoder in C, or TensorFlow's ops where that is not built.
    """
    library, targets = native_library(config), [target_of(view, split) for view in config.by_view]
    sizes = partial(_sizes_within, library=library, most=config.max_pixels)
    if library is None:
        return Decoder(1, _decoder_in_graph(config, targets), sizes)
    decode = _decoder_in_c(library, config, targets)
    images = config.batch_size if NATIVE_IMAGES < config.batch_size <= MOST_IMAGES else NATIVE_IMAGES
    return Decoder(images, decode, sizes)


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


def _decoder_in_c(library: Native, config: DataConfig, targets: list[Target]) -> Decode:
    """Returns a function that decodes only the parts of images that their windows need, in one op for all images.

    TensorFlow's ops decode the images that the op refuses, as a whole: kinds of JPEG that it does not know, other
    formats, and damage, so that damage anywhere in a file is an error, with TensorFlow's message. Their pixels are cut
    and resized in C, too.
    """
    channels, kernel, views = config.num_channels, KERNELS.index(config.resize), len(targets)
    numbers = [number for target in targets for number in (*target.size, target.level, *target.cover)]
    of_jpegs: dict[str, Any] = {"targets": numbers, "views": views, "channels": channels, "kernel": kernel}
    of_jpegs["scans"] = min(config.max_scans, 2**31 - 1)

    def decode(images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> Any:
        entries = tf.zeros(0, tf.string) if images.entries is None else images.entries
        places = tf.reshape(windows.windows, [-1, 4 * views])
        crops, refused = library.crops(
            images.contents, entries, sizes, windows.images, places, tf.reshape(flips, [-1]), **of_jpegs
        )
        crops = tuple(tf.ensure_shape(c, [None, *t.size, channels]) for c, t in zip(crops, targets, strict=True))
        refused, mirrored = tf.ensure_shape(refused, [None]), flips.shape[0] != 0
        by_view = tf.reshape(windows.windows, [-1, views, 4]), tf.reshape(flips, [-1, views]) if mirrored else None

        def replace(crops: tuple[tf.Tensor, ...], image: tf.Tensor) -> tuple[tf.Tensor, ...]:
            indices = tf.where(tf.equal(windows.images, image))
            pixels = decode_image(_with_few_scans(images.contents[image], config.max_scans), channels)
            cut, flip = tf.gather_nd(by_view[0], indices), tf.gather_nd(by_view[1], indices) if mirrored else None

            def view(number: int, target: Target) -> tf.Tensor:
                (height, width), level, cover = target
                own = flips if flip is None else flip[:, number]
                of_view = {"height": height, "width": width, "level": level, "kernel": kernel}
                of_view |= {"cover_height": cover[0], "cover_width": cover[1]}
                return library.resize(pixels, cut[:, number], own, **of_view)

            new = [view(number, target) for number, target in enumerate(targets)]
            return tuple(tf.tensor_scatter_nd_update(*each) for each in zip(crops, [indices] * views, new, strict=True))

        def replaced() -> tuple[tf.Tensor, ...]:
            # One after the other: each may take hundreds of megabytes, and other calls decode at the same time.
            return tf.foldl(replace, tf.where(refused)[:, 0], crops, parallel_iterations=1)

        crops = tf.cond(tf.reduce_any(refused), replaced, lambda: crops)
        return crops if config.views else crops[0]

    return decode


def _decoder_in_graph(config: DataConfig, targets: list[Target]) -> Decode:
    """Returns a function that decodes one image, and of a JPEG only the smallest window that encloses its windows."""
    channels, views = config.num_channels, len(targets)

    def decode(images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> Any:
        image = _with_few_scans(images.contents[0], config.max_scans)
        places, mirrored = tf.reshape(windows.windows, [-1, views, 4]), flips.shape[0] != 0

        def crops() -> tuple[tf.Tensor, ...]:
            resized = decode_crops(image, sizes[0], places, targets, channels, config.resize)
            flip = tf.unstack(tf.reshape(flips, [-1, views]), views, axis=1) if mirrored else []
            return tuple(map(mirror, resized, flip)) if mirrored else resized

        nothing = tuple(tf.zeros([0, *target.size, channels], tf.uint8) for target in targets)
        decoded = tf.cond(tf.size(windows.images) > 0, crops, lambda: nothing)
        return decoded if config.views else decoded[0]

    return decode
