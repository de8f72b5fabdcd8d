"""Crops of images by one decoder or another."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from tfpipe.config import DataConfig, Kernel
from tfpipe.data.images import whole
from tfpipe.data.images.by_pillow import ByPillow
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import Decoder, EncodedImages, choose_decoder
from tfpipe.data.images.whole import Decoding

PLAIN, TURNING = (Decoding(turn, ByPillow().decode) for turn in (False, True))
"""Decodes of a config's defaults, and of `data.exif` "apply"."""


def decode(
    decoder: str, jpegs: list[bytes], windows: list[list[list[int]]], channels: int = 3, kernel: Kernel = "bilinear"
) -> np.ndarray:
    """The crops of some images, in each of which some windows; in graph, as the pipeline has it."""
    images, graph = traced(decoder, channels, kernel)
    some = range(0, len(jpegs), images)
    return np.concatenate([_decode(graph, jpegs[at : at + images], windows[at : at + images]) for at in some])


@cache
def traced(decoder: str, channels: int, kernel: Kernel) -> tuple[int, Callable[..., tf.Tensor]]:
    """A decoder's images a call, and the decoder as a graph, which takes a second to make."""
    chosen = decoder_of(decoder, channels, kernel=kernel)
    some = tf.TensorSpec([None], tf.int64)
    signature = [
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None, 2], tf.int32),
        Windows(some, some, tf.TensorSpec([None, 4], tf.int32), tf.TensorSpec([None], tf.int32)),
    ]

    def decode(jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows) -> tf.Tensor:
        return chosen.decode(EncodedImages(jpegs), sizes, windows, tf.zeros(0, tf.bool))

    return chosen.images, tf.function(decode, input_signature=signature, autograph=False)


def memory(count: int, height: int, width: int, channels: int = 3) -> tf.Tensor:
    """Memory that crops are written to, with any content."""
    return tf.raw_ops.Empty(shape=[count, height, width, channels], dtype=tf.uint8)


def decode_image(contents: bytes, channels: int = 3, how: Decoding = PLAIN) -> np.ndarray:
    """A whole image, uint8 [height, width, channels]."""
    return whole.decode_image(tf.constant(contents), channels, how).numpy()


def size_in(contents: bytes, how: Decoding = PLAIN) -> list[int]:
    """An image's height and width, as the pipeline finds them."""
    return whole.image_sizes(tf.constant([contents]), tf.zeros([1, 2], tf.int32), how).numpy()[0].tolist()


def decoder_of(
    decoder: str, channels: int, shape: tuple[int, int] = (40, 56), kernel: Kernel = "bilinear", **keys: Any
) -> Decoder:
    """The decoder "native" or "graph"."""
    keys |= {"decoder": decoder, "crop_image_size": shape, "num_channels": channels, "resize": kernel}
    return choose_decoder(DataConfig(train_filelist=Path("x"), **keys))


def _decode(graph: Callable[..., tf.Tensor], jpegs: list[bytes], windows: list[list[list[int]]]) -> np.ndarray:
    images = tf.constant([number for number, of in enumerate(windows) for _ in of], tf.int64)
    flat = tf.constant([window for of in windows for window in of], tf.int32, shape=[len(images), 4])
    sizes = tf.constant([Image.open(io.BytesIO(jpeg)).size[::-1] for jpeg in jpegs])
    zeros = tf.zeros_like(images)
    return graph(tf.constant(jpegs), sizes, Windows(images, zeros, flat, tf.cast(zeros, tf.int32))).numpy()
