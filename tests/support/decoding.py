"""Crops of images by one decoder or the other."""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows, decode_scale
from tfpipe.data.images.decode import choose_decoder


def decode(
    decoder: str, jpegs: list[bytes], windows: list[list[list[int]]], channels: int = 3, scaled: bool = False
) -> np.ndarray:
    """The crops of some images, in each of which some windows; in graph, as the pipeline has it."""
    config, images, graph = traced(decoder, channels, scaled)
    some = range(0, len(jpegs), images)
    return np.concatenate([_decode(graph, jpegs[at : at + images], windows[at : at + images], config) for at in some])


@cache
def traced(decoder: str, channels: int, scaled: bool) -> tuple[DataConfig, int, Callable[..., tf.Tensor]]:
    """A config, its decoder's images a call, and the decoder as a graph, which takes a second to make."""
    options = {"decoder": decoder, "crop_image_size": (40, 56), "num_channels": channels, "scaled_decode": scaled}
    config = DataConfig(train_filelist=Path("x"), **options)
    chosen = choose_decoder(config)
    some, number = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)
    signature = [
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None, 2], tf.int32),
        Windows(some, some, tf.TensorSpec([None, 4], tf.int32), number, number),
    ]

    def decode(jpegs: tf.Tensor, sizes: tf.Tensor, windows: Windows) -> tf.Tensor:
        return chosen.decode(jpegs, sizes, windows, tf.zeros(0, tf.bool))

    return config, chosen.images, tf.function(decode, input_signature=signature, autograph=False)


def _decode(
    graph: Callable[..., tf.Tensor], jpegs: list[bytes], windows: list[list[list[int]]], config: DataConfig
) -> np.ndarray:
    images = tf.constant([number for number, of in enumerate(windows) for _ in of], tf.int64)
    flat = tf.constant([window for of in windows for window in of], tf.int32, shape=[len(images), 4])
    sizes = tf.constant([Image.open(io.BytesIO(jpeg)).size[::-1] for jpeg in jpegs])
    zeros, times = tf.zeros_like(images), decode_scale(flat, images, config)
    return graph(tf.constant(jpegs), sizes, Windows(images, zeros, flat, tf.cast(zeros, tf.int32), times)).numpy()
