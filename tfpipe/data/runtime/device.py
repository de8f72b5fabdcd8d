"""Puts batches on a device of TensorFlow's before they are used."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

# Batches that are on the device, or on their way, before they are asked for: one is trained, the next one is copied.
AHEAD = 2

Prepare = Callable[[Iterator[Any]], Iterator[Any]]


def on_device(device: str | None) -> tuple[Prepare, int]:
    """Returns what a Taker makes of batches, and how many ahead: on `device`, e.g. "GPU:0"; None: where they are."""
    return (iter, 0) if device is None else (partial(map, partial(_put, device)), AHEAD)


def _put(device: str, batch: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
    """Puts images and labels on the device; the rest stays on the CPU, where Python reads it."""
    with tf.device(device):
        return (*map(tf.identity, batch[:2]), *batch[2:])
