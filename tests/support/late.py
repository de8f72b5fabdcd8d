"""A pipeline in which the read of one image is late."""

import time

import pytest
import tensorflow as tf

from tfpipe import Config, World
from tfpipe.data.sources import cache
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import sample_names

# Longer than a batch of the others takes on a busy machine.
LATE_S = 1.0


def delay_one(monkeypatch: pytest.MonkeyPatch, config: Config, position: int) -> str:
    """Makes the read of the sample at a stream position take LATE_S longer; returns its file."""
    split = load_split(config.data, "train", World())
    (late,) = sample_names(split, [position])

    def wait(path: bytes) -> bytes:
        time.sleep(LATE_S if path.decode() == late else 0)
        return path

    def slow_path(path: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string, stateful=False), [])

    monkeypatch.setattr(cache, "simulate_latency", slow_path)
    return late
