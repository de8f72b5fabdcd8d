"""A stage that keeps a run slow enough to meet a fault at a step of choice."""

import time

import tensorflow as tf


def pause(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    tf.py_function(lambda: time.sleep(0.04), [], [])
    return images, labels
