"""Who decodes and resizes: a library, several images at a call, or TensorFlow's own ops."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.crops import Windows
from tfpipe.data.headers import TOO_LARGE
from tfpipe.data.images import decode_crops, decode_image, mirror
from tfpipe.data.scale import halved
from tfpipe.data.top import decode_top

# Images handed over at a call: half as many cost 2 %, twice as many gain nothing.
NATIVE_IMAGES = 32
# Bytes: TensorFlow takes an array over without a copy if it begins at a multiple of this.
ALIGNMENT = 64
JPEG = b"\xff\xd8\xff"


class Decoder(NamedTuple):
    """How the crops of some images are made."""

    images: int
    """At a call."""
    decode: Callable[[tf.Tensor, tf.Tensor, Windows, tf.Tensor], tf.Tensor]
    """From JPEGs (string [n]), their sizes (int32 [n, 2]), windows in them, and which of these to mirror (bool [k], or
    [0] for none) to uint8 [k, height, width, channels]."""
    mirror: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """Of crops, uint8 [k, height, width, channels], mirrors those of which bool [k] says so."""


def choose_decoder(config: DataConfig) -> Decoder:
    """As `data.decoder` says; "auto" is "native" where OpenCV has the kernel of `data.resize`."""
    target, channels = config.crop_image_size, config.num_channels
    if config.native:
        return Decoder(NATIVE_IMAGES, partial(_decode_natively, target=target, channels=channels), _mirror_natively)

    def decode(jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> tf.Tensor:
        def crops() -> tf.Tensor:
            halvings = _of_jpegs(windows, jpegs)[0]
            made = decode_crops(jpegs[0], sizes[0], windows.windows, target, channels, config.resize, halvings)
            return made if flips.shape[0] == 0 else mirror(made, flips)

        return tf.cond(
            tf.size(windows.images) > 0,
            crops,
            lambda: tf.zeros([0, *target, channels], tf.uint8),
        )

    return Decoder(1, decode, mirror)


def _of_jpegs(windows: Windows, jpegs: tf.Tensor) -> tf.Tensor:
    """int32 [k]: the halvings of the windows' images, 0 where one is in truth no JPEG."""
    is_jpeg = tf.equal(tf.strings.substr(jpegs, 0, len(JPEG)), JPEG)
    return tf.where(tf.gather(is_jpeg, windows.images), windows.halvings, 0)


def _decode_natively(
    jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor, target: tuple[int, int], channels: int
) -> tf.Tensor:
    """By simplejpeg and OpenCV, which release the GIL: decodes each image once, down to its lowest window; resizes.

    Python is called once for 32 images. Handing over their bytes and the crops costs some 45 microseconds an image of
    the 1,400 that it takes to decode 500x375, and the GIL is held for less.

    The pixels are those of images.decode_crops or one level below: OpenCV's integers cut off what they do not hold,
    0.13 levels on average.
    """
    import cv2
    import simplejpeg

    # One image is one thread's work, here as in TensorFlow.
    cv2.setNumThreads(1)
    colorspace = "RGB" if channels == 3 else "GRAY"

    def picture_of(contents: bytes, size: list[int], halvings: int, rows: int) -> np.ndarray:
        if math.prod(size) * channels >= TOO_LARGE:
            return decode_image(contents, channels, halvings).numpy()
        top = None if halvings else decode_top(contents, colorspace, rows)
        if top is not None:
            return top
        # libjpeg's smallest size that is no less.
        least = [-(-side >> halvings) if halvings else 0 for side in size]
        try:
            return simplejpeg.decode_jpeg(contents, colorspace, min_height=least[0], min_width=least[1])
        except ValueError:  # a PNG, say, or one that is damaged: TensorFlow's error says how
            return decode_image(contents, channels, halvings).numpy()

    def decode(
        jpegs: np.ndarray,
        sizes: np.ndarray,
        images: np.ndarray,
        windows: np.ndarray,
        halvings: np.ndarray,
        flips: np.ndarray,
    ) -> np.ndarray:
        crops = _empty((len(windows), *target, channels))
        rows = np.zeros(len(jpegs), np.int32)
        np.maximum.at(rows, images, windows[:, 0] + windows[:, 2])
        last = None
        places = zip(crops, images.tolist(), windows.tolist(), halvings.tolist(), strict=True)
        for crop, number, (top, left, height, width), times in places:
            if number != last:
                picture = picture_of(jpegs[number], sizes[number].tolist(), times, int(rows[number]))
                last = number
            window = picture[top : top + height, left : left + width]
            cv2.resize(window, target[::-1], dst=crop, interpolation=cv2.INTER_LINEAR)
        mirror_in_place(crops, flips)
        return crops

    halvings = _of_jpegs(windows, jpegs)
    inputs = [jpegs, sizes, windows.images, halved(windows.windows, halvings), halvings, flips]
    return tf.numpy_function(decode, inputs, tf.uint8, stateful=False)


def _mirror_natively(crops: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
    """By OpenCV, in one call of Python: 14 microseconds a crop of 224x224, most of it for the copy; in graph 75."""

    def mirrored(crops: np.ndarray, flips: np.ndarray) -> np.ndarray:
        # What a tensor holds is not to be changed.
        made = _empty(crops.shape)
        np.copyto(made, crops)
        mirror_in_place(made, flips)
        return made

    return tf.ensure_shape(tf.numpy_function(mirrored, [crops, flips], tf.uint8, stateful=False), crops.shape)


def mirror_in_place(crops: np.ndarray, flips: np.ndarray) -> None:
    """Mirrors crops (uint8 [k, height, width, channels]) of which bool [k] says so, or none for bool [0]."""
    import cv2

    for number in np.flatnonzero(flips).tolist():
        cv2.flip(crops[number], 1, dst=crops[number])


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    """uint8 of that shape, aligned."""
    size = math.prod(shape)
    room = np.empty(size + ALIGNMENT - 1, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].reshape(shape)
