"""Decoders: libraries that decode and resize several images per call, or TensorFlow's own ops."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.headers import TOO_LARGE
from tfpipe.data.images.partial_decode import decode_top
from tfpipe.data.images.scaled_decode import scaled_windows
from tfpipe.data.images.windows import decode_crops, decode_image, mirror
from tfpipe.util.buffer_pool import aligned

# Images per call: half as many take 2 % more time, twice as many save none.
NATIVE_IMAGES = 32
JPEG = b"\xff\xd8\xff"
Array = np.ndarray


class Decoder(NamedTuple):
    """Functions that make crops from encoded images."""

    images: int
    """Number of images per call."""
    decode: Callable[[tf.Tensor, tf.Tensor, Windows, tf.Tensor], tf.Tensor]
    """(JPEGs (string [n]), their sizes (int32 [n, 2]), windows, which of these to mirror (bool [k], or [0] for none))
    -> crops (uint8 [k, height, width, channels])."""
    mirror: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """(crops (uint8 [k, height, width, channels]), which of them to mirror (bool [k])) -> crops."""


def choose_decoder(config: DataConfig) -> Decoder:
    """Returns the decoder set by `data.decoder`; "auto" is "native" if OpenCV has the kernel of `data.resize`."""
    target, channels = config.crop_image_size, config.num_channels
    if config.native:
        return Decoder(NATIVE_IMAGES, partial(_decode_natively, target=target, channels=channels), _mirror_natively)

    def decode(jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> tf.Tensor:
        def crops() -> tf.Tensor:
            scale = _of_jpegs(windows, jpegs)[0]
            images = decode_crops(jpegs[0], sizes[0], windows.windows, target, channels, config.resize, scale)
            return images if flips.shape[0] == 0 else mirror(images, flips)

        return tf.cond(tf.size(windows.images) > 0, crops, lambda: tf.zeros([0, *target, channels], tf.uint8))

    return Decoder(1, decode, mirror)


def _of_jpegs(windows: Windows, jpegs: tf.Tensor) -> tf.Tensor:
    """Returns `scale_log2` of the windows' images (int32 [k]), 0 for an image that is actually no JPEG."""
    is_jpeg = tf.equal(tf.strings.substr(jpegs, 0, len(JPEG)), JPEG)
    return tf.where(tf.gather(is_jpeg, windows.images), windows.scale_log2, 0)


def _decode_natively(
    jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor, target: tuple[int, int], channels: int
) -> tf.Tensor:
    """Decodes each image once, down to its lowest window, by simplejpeg; resizes by OpenCV. Both release the GIL.

    Python is called once for 32 images. Passing their bytes and the crops takes about 45 microseconds an image, only
    part of it with the GIL; decoding an image of 500x375 takes 1,400.

    A pixel equals that of images.decode_crops or is one level lower: OpenCV truncates; the mean error is 0.13 levels.
    """
    import cv2
    import simplejpeg

    # One thread per image, as in TensorFlow's ops.
    cv2.setNumThreads(1)
    colorspace = "RGB" if channels == 3 else "GRAY"

    def picture_of(contents: bytes, size: list[int], scale_log2: int, rows: int) -> np.ndarray:
        if math.prod(size) * channels >= TOO_LARGE:
            return decode_image(contents, channels, scale_log2).numpy()
        top = None if scale_log2 else decode_top(contents, colorspace, rows)
        if top is not None:
            return top
        # simplejpeg decodes to the smallest scaled size that is at least this; 0 means full size.
        least = [-(-side >> scale_log2) if scale_log2 else 0 for side in size]
        try:
            return simplejpeg.decode_jpeg(contents, colorspace, min_height=least[0], min_width=least[1])
        except ValueError:  # a PNG, which TensorFlow decodes, or damage, which its error describes
            return decode_image(contents, channels, scale_log2).numpy()

    def decode(jpegs: Array, sizes: Array, images: Array, windows: Array, scale_log2: Array, flips: Array) -> Array:
        crops = aligned((len(windows), *target, channels))
        rows = np.zeros(len(jpegs), np.int32)
        np.maximum.at(rows, images, windows[:, 0] + windows[:, 2])
        last = None
        places = zip(crops, images.tolist(), windows.tolist(), scale_log2.tolist(), strict=True)
        for crop, number, (top, left, height, width), times in places:
            if number != last:
                picture = picture_of(jpegs[number], sizes[number].tolist(), times, int(rows[number]))
                last = number
            window = picture[top : top + height, left : left + width]
            cv2.resize(window, target[::-1], dst=crop, interpolation=cv2.INTER_LINEAR)
        mirror_in_place(crops, flips)
        return crops

    scale_log2 = _of_jpegs(windows, jpegs)
    inputs = [jpegs, sizes, windows.images, scaled_windows(windows.windows, scale_log2), scale_log2, flips]
    return tf.numpy_function(decode, inputs, tf.uint8, stateful=False)


def _mirror_natively(crops: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
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
