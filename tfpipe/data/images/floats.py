"""Converts levels to floats, and normalises them, in one pass: each level has its float in a table."""

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.native import native

LEVELS = 256


def float_table(config: DataConfig) -> np.ndarray:
    """Returns the floats of all levels, `data.dtype` [channels, LEVELS].

    In the steps of torchvision's to_dtype and normalize, each rounded to float32, then once to `data.dtype`.
    """
    values = np.tile(np.arange(LEVELS, dtype=np.float32) / np.float32(255), (config.num_channels, 1))
    if config.normalize is not None:
        mean, std = (np.array(each, np.float32)[:, None] for each in (config.normalize.mean, config.normalize.std))
        values = (values - mean) / std
    return values.astype(tf.as_dtype(config.dtype).as_numpy_dtype)


def to_floats(images: tf.Tensor, config: DataConfig) -> tf.Tensor:
    """Returns images (uint8 [batch, height, width, channels]) as floats of `data.dtype`, in [0, 1] or normalised."""
    return tf.ensure_shape(native().floats(images, float_table(config)), images.shape)
