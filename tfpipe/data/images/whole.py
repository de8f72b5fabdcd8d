"""Whole images of any format, and their sizes, in graph: by TensorFlow's ops, and by Pillow what these do not decode.

JPEGs, PNGs and still WebPs are TensorFlow's: it decodes them as Pillow does, without Python, of which the others take
0.1 to 0.35 ms an image with the GIL. A process of `data.service` has no Python, and decodes no others.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.by_pillow import ByPillow, turn_pixels
from tfpipe.data.images.headers import START_OF_IMAGE, header_of
from tfpipe.native import native
from tfpipe.util.tensorflow_api import HAS_WEBP

# libjpeg's exact transform gives the same pixels as Pillow, and is as fast as the approximate one.
DCT = "INTEGER_ACCURATE"
# An Adobe segment to insert after a JPEG's first two bytes, which declares CMYK rather than YCCK.
ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
# Weights of red, green and blue in a gray level, the same as in JPEG and Pillow.
GRAY = (0.299, 0.587, 0.114)
END = 2**31 - 1
HEAD = 32  # bytes of a header that are looked at
OF_SERVICE = "JPEGs, PNGs and still WebPs" if HAS_WEBP else "JPEGs and PNGs"
WITHOUT_PYTHON = f"data.service decodes {OF_SERVICE}, and this is none: convert it, or set data.service to null"


class Decoding(NamedTuple):
    """Settings of a decode."""

    turn: bool
    """Whether images are turned as EXIF says."""
    by_pillow: Callable[..., np.ndarray] | None
    """Decodes what TensorFlow does not: ByPillow.decode; None if the process has no Python."""

    @classmethod
    def of(cls, config: DataConfig) -> "Decoding":
        """Returns what a config sets."""
        return cls(config.turn, ByPillow().decode if config.service is None else None)


def image_sizes(images: tf.Tensor, sizes: tf.Tensor, how: Decoding) -> tf.Tensor:
    """Returns int32 [n, 2], heights and widths: `sizes` [n, 2], those that are 0 found in the images (string [n]).

    An image "" keeps its 0.
    """
    stated = tf.ensure_shape(native().sizes(images, sizes, turn=int(how.turn)), [None, 2])
    # Lengths, here and elsewhere, since a comparison with "" copies each string: 115 kB of a JPEG.
    unknown = tf.where(tf.equal(stated[:, 0], 0) & (tf.strings.length(images) > 0))

    def look() -> tf.Tensor:
        files = tf.gather_nd(images, unknown)
        if how.by_pillow is None:
            whole = tf.TensorSpec([2], tf.int32)
            others = tf.map_fn(lambda file: tf.shape(decode_image(file, 3, how))[:2], files, fn_output_signature=whole)
        else:
            others = _by_python(partial(_sizes, turn=how.turn), [files], tf.int32, 2)
        return tf.tensor_scatter_nd_update(stated, unknown, others)

    return tf.cond(tf.size(unknown) > 0, look, lambda: stated)


def swaps_sides(images: tf.Tensor) -> tf.Tensor:
    """Returns bool [n]: which JPEGs (string [n]) EXIF turns so that height and width, if they differ, change places."""
    unknown = tf.zeros([tf.size(images), 2], tf.int32)
    return tf.reduce_any(native().sizes(images, unknown, turn=0) != native().sizes(images, unknown, turn=1), axis=1)


def _sizes(files: np.ndarray, turn: bool) -> np.ndarray:
    headers = [header_of(file, "it").turned(turn) for file in files.tolist()]
    return np.array([header[:2] for header in headers], np.int32)


def decode_image(contents: tf.Tensor, channels: int, how: Decoding) -> tf.Tensor:
    """Returns an image, uint8 [height, width, channels].

    Its format is recognised by its content, whatever the file's name. `contents` (string []) are the file's bytes;
    `channels` is 1 or 3.

    CMYK and YCCK look as in Pillow. CMYK JPEGs store inverted inks. TensorFlow assumes that only if there is an Adobe
    segment, Pillow and libjpeg-turbo always. So one is inserted at the front; the file's own segment comes later and
    takes precedence. TensorFlow cannot decode CMYK to gray, so that goes through RGB.
    """

    def decode_jpeg() -> tf.Tensor:
        inks = tf.equal(tf.io.extract_jpeg_shape(contents)[2], 4)
        rest = partial(tf.strings.substr, contents, 2, END)
        jpeg = tf.cond(inks, lambda: tf.strings.join([START_OF_IMAGE, ADOBE, rest()]), lambda: contents)
        decode = partial(tf.io.decode_jpeg, jpeg, dct_method=DCT)
        pixels = decode(3) if channels == 3 else tf.cond(inks, lambda: _gray(decode(3)), lambda: decode(1))
        if not how.turn:
            return pixels
        by_exif = lambda pixels, contents: turn_pixels(pixels, header_of(contents, "it").orientation)  # noqa: E731
        return _by_python(by_exif, [pixels, contents], tf.uint8, 3)

    return tf.cond(tf.io.is_jpeg(contents), decode_jpeg, lambda: _decode_other(contents, channels, how))


def _decode_other(contents: tf.Tensor, channels: int, how: Decoding) -> tf.Tensor:
    """Returns uint8 [height, width, channels], an image of another format than JPEG."""
    head = tf.strings.substr(tf.strings.join([contents, bytes(HEAD)]), 0, HEAD)
    flags, lossless_flags = tf.unstack(tf.gather(tf.io.decode_raw(head, tf.uint8), [20, 24]))

    def has(at: int, sign: bytes) -> tf.Tensor:
        return tf.equal(tf.strings.substr(head, at, len(sign)), sign)

    # An animated WebP, read as four channels, damages TensorFlow's memory.
    by_ops = has(0, b"\x89PNG") | (HAS_WEBP & has(0, b"RIFF") & ~(has(12, b"VP8X") & (flags & 2 > 0)))
    # A WebP with alpha cannot be read as three channels.
    alpha = (has(12, b"VP8X") & (flags & 16 > 0)) | (has(12, b"VP8L") & (lossless_flags & 16 > 0))

    def decode() -> tf.Tensor:
        read = partial(tf.io.decode_image, contents, expand_animations=False)
        image = tf.cond(has(0, b"RIFF") & alpha, lambda: read(4)[:, :, :3], lambda: read(3))
        return image if channels == 3 else _gray(image)

    if how.by_pillow is None:
        with tf.control_dependencies([tf.raw_ops.Assert(condition=by_ops, data=[WITHOUT_PYTHON])]):
            return decode()
    by_pillow = partial(how.by_pillow, channels=channels, turn=how.turn)
    if how.turn:  # TensorFlow does not say how these are turned
        return _by_python(by_pillow, [contents], tf.uint8, 3)
    return tf.cond(by_ops, decode, lambda: _by_python(by_pillow, [contents], tf.uint8, 3))


def _by_python(function: Callable[..., np.ndarray], inputs: list[tf.Tensor], kind: tf.DType, rank: int) -> tf.Tensor:
    """Returns the array of `rank` dimensions that a function makes of others; its ValueError is the graph's error."""

    def call(*arrays: Any) -> tuple[np.ndarray, str]:
        # Outside graphs a string is an array of one.
        plain = (array.item() if isinstance(array, np.ndarray) and not array.ndim else array for array in arrays)
        try:
            return function(*plain), ""
        except (OSError, ValueError) as error:
            return np.zeros((0,) * rank, kind.as_numpy_dtype), str(error)

    result, problem = tf.numpy_function(call, inputs, [kind, tf.string], stateful=False)
    # Raised in Python, the error would carry a traceback instead of the message alone.
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        return tf.ensure_shape(result, [None] * rank)


def _gray(image: tf.Tensor) -> tf.Tensor:
    """Converts RGB, uint8 [height, width, 3], to gray, uint8 [height, width, 1]."""
    return tf.cast(tf.round(tf.reduce_sum(tf.cast(image, tf.float32) * GRAY, axis=-1, keepdims=True)), tf.uint8)
