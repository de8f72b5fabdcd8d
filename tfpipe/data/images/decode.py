"""Decoders: libraries that decode and resize several images per call, or TensorFlow's own ops."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.damage import JPEG, REMEDY, SCAN, TOO_MANY_PIXELS, TOO_MANY_SCANS
from tfpipe.data.images.headers import TOO_LARGE
from tfpipe.data.images.windows import cut_crops, decode_crops, decode_image, image_sizes, mirror
from tfpipe.errors import ConfigError
from tfpipe.native import Native, missing, native
from tfpipe.util.buffer_pool import aligned

# Images per call: half as many take 2 % more time, twice as many save none.
NATIVE_IMAGES = 32
Array = np.ndarray
Decode = Callable[[tf.Tensor, tf.Tensor, Windows, tf.Tensor], tf.Tensor]
"""(JPEGs (string [n]), their sizes (int32 [n, 2]), windows, which of these to mirror (bool [k], or [0] for none)) ->
crops (uint8 [k, height, width, channels])."""


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


def choose_decoder(config: DataConfig) -> Decoder:
    """Returns the decoder set by `data.decoder`; "auto" is "native" if `data.resize` is "bilinear".

    "native" is tfpipe's own decoder in C, or simplejpeg and OpenCV where that is not built. The latter need Python,
    which the workers of `data.service` do not run, so "auto" is "graph" there. Raises ConfigError for "native".
    """
    target, channels = config.crop_image_size, config.num_channels
    library = native_library(config)
    sizes = partial(_sizes_within, library=library, most=config.max_pixels)
    checked = partial(_with_few_scans, most=config.max_scans)
    by_libraries = checked(partial(_decode_by_libraries, target=target, channels=channels))
    if library is not None:
        whole = checked(partial(_decode_whole, target=target, channels=channels))
        otherwise = by_libraries if config.service is None else whole
        decode_in_c = partial(_decode_in_c, library=library, otherwise=otherwise, target=target, channels=channels)
        return Decoder(NATIVE_IMAGES, decode_in_c, _mirror_by_opencv, sizes)
    if config.native and config.service is None:
        return Decoder(NATIVE_IMAGES, by_libraries, _mirror_by_opencv, sizes)
    if config.decoder == "native":
        raise ConfigError(f'data.decoder "native" with data.service needs a decoder without Python: {missing()}')

    def decode(jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> tf.Tensor:
        def crops() -> tf.Tensor:
            images = decode_crops(jpegs[0], sizes[0], windows.windows, target, channels, config.resize)
            return images if flips.shape[0] == 0 else mirror(images, flips)

        return tf.cond(tf.size(windows.images) > 0, crops, lambda: tf.zeros([0, *target, channels], tf.uint8))

    return Decoder(1, checked(decode), mirror, sizes)


def _sizes_within(images: tf.Tensor, sizes: tf.Tensor, library: Native | None, most: int) -> tf.Tensor:
    """Returns int32 [n, 2] as image_sizes; an image of more than `most` pixels is an error."""
    found = image_sizes(images, sizes, library)
    largest = tf.reduce_max(tf.reduce_prod(tf.cast(found, tf.int64), axis=1))
    with tf.control_dependencies([_at_most(largest, most, TOO_MANY_PIXELS)]):
        return tf.identity(found)


def _with_few_scans(decode: Decode, most: int) -> Decode:
    """Returns `decode`, to which a JPEG of more than `most` scans is an error; tfpipe's own in C takes one scan."""

    def checked(jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> tf.Tensor:
        scans = tf.strings.split(jpegs, SCAN).row_lengths() - 1
        are_jpegs = tf.equal(tf.strings.substr(jpegs, 0, len(JPEG)), JPEG)
        largest = tf.reduce_max(tf.where(are_jpegs, scans, 0))
        with tf.control_dependencies([_at_most(largest, most, TOO_MANY_SCANS)]):
            return decode(tf.identity(jpegs), sizes, windows, flips)

    return checked


def _at_most(number: tf.Tensor, most: int, complaint: str) -> tf.Operation:
    message = tf.strings.join([tf.strings.as_string(number), f"{complaint}{most}{REMEDY}"])
    return tf.debugging.Assert(number <= most, [message])


def _decode_in_c(
    jpegs: tf.Tensor,
    sizes: tf.Tensor,
    windows: Windows,
    flips: tf.Tensor,
    library: Native,
    otherwise: Decode,
    target: tuple[int, int],
    channels: int,
) -> tf.Tensor:
    """Decodes only the parts of each image that its windows need, in one op for all images.

    `otherwise` decodes the images that the op refuses, as a whole: kinds of JPEG that it does not know, other formats,
    and damage, so that damage anywhere in a file is an error, with TensorFlow's message.
    """
    shape = {"height": target[0], "width": target[1], "channels": channels}
    crops, refused = library.crops(jpegs, sizes, windows.images, windows.windows, flips, **shape)
    crops, refused = tf.ensure_shape(crops, [None, *target, channels]), tf.ensure_shape(refused, [None])

    def replaced() -> tf.Tensor:
        images, own = tf.where(refused)[:, 0], tf.where(tf.gather(refused, windows.images))
        numbers = tf.cumsum(tf.cast(refused, tf.int64)) - 1  # of a refused image among these
        chosen = Windows(*(tf.gather_nd(field, own) for field in windows))
        chosen = chosen._replace(images=tf.gather(numbers, chosen.images))
        mirrored = flips if flips.shape[0] == 0 else tf.gather_nd(flips, own)
        others = otherwise(tf.gather(jpegs, images), tf.gather(sizes, images), chosen, mirrored)
        return tf.tensor_scatter_nd_update(crops, own, others)

    return tf.cond(tf.reduce_any(refused), replaced, lambda: crops)


def _decode_whole(
    jpegs: tf.Tensor, _: tf.Tensor, windows: Windows, flips: tf.Tensor, target: tuple[int, int], channels: int
) -> tf.Tensor:
    """Decodes each image as a whole, in graph, for the workers of `data.service`."""

    def put(crops: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        own = tf.where(tf.equal(windows.images, number))
        image = tf.ensure_shape(decode_image(jpegs[number], channels), [None, None, channels])
        return tf.tensor_scatter_nd_update(crops, own, cut_crops(image, tf.gather_nd(windows.windows, own), target))

    empty = tf.zeros([tf.size(windows.images), *target, channels], tf.uint8)
    crops = tf.foldl(put, tf.range(tf.size(jpegs, tf.int64)), empty)
    return crops if flips.shape[0] == 0 else mirror(crops, flips)


def _decode_by_libraries(
    jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor, target: tuple[int, int], channels: int
) -> tf.Tensor:
    """Decodes each image once, as a whole, by simplejpeg; resizes by OpenCV. Both release the GIL.

    Python is called once for 32 images. Passing their bytes and the crops takes about 45 microseconds an image, only
    part of it with the GIL; decoding an image of 500x375 takes 1,400.

    A pixel equals that of images.decode_crops or is one level lower: OpenCV truncates; the mean error is 0.13 levels.
    """
    import cv2
    import simplejpeg

    # One thread per image, as in TensorFlow's ops.
    cv2.setNumThreads(1)
    colorspace = "RGB" if channels == 3 else "GRAY"

    def picture_of(contents: bytes, size: list[int]) -> np.ndarray:
        if math.prod(size) * channels >= TOO_LARGE:
            return decode_image(contents, channels).numpy()
        try:
            return simplejpeg.decode_jpeg(contents, colorspace)
        except ValueError:  # a PNG, which TensorFlow decodes, or damage, which its error describes
            return decode_image(contents, channels).numpy()

    def decode(jpegs: Array, sizes: Array, images: Array, windows: Array, flips: Array) -> Array:
        crops = aligned((len(windows), *target, channels))
        last = None
        for crop, number, (top, left, height, width) in zip(crops, images.tolist(), windows.tolist(), strict=True):
            if number != last:
                picture = picture_of(jpegs[number], sizes[number].tolist())
                last = number
            window = picture[top : top + height, left : left + width]
            cv2.resize(window, target[::-1], dst=crop, interpolation=cv2.INTER_LINEAR)
        mirror_in_place(crops, flips)
        return crops

    inputs = [jpegs, sizes, windows.images, windows.windows, flips]
    return tf.numpy_function(decode, inputs, tf.uint8, stateful=False)


def _mirror_by_opencv(crops: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
    """Mirrors by OpenCV in one Python call: 14 microseconds a crop of 224x224, mostly for the copy; in graph 75."""

    def mirrored(crops: np.ndarray, flips: np.ndarray) -> np.ndarray:
        # A copy, since an input tensor's memory must not be modified.
        result = aligned(crops.shape)
        np.copyto(result, crops)
        mirror_in_place(result, flips)
        return result

    return tf.ensure_shape(tf.numpy_function(mirrored, [crops, flips], tf.uint8, stateful=False), crops.shape)


def mirror_in_place(crops: np.ndarray, flips: np.ndarray) -> None:
    """Mirrors the crops (uint8 [k, height, width, channels]) that `flips` (bool [k]) selects; none for bool [0]."""
    import cv2

    for number in np.flatnonzero(flips).tolist():
        cv2.flip(crops[number], 1, dst=crops[number])
