"""The training step of several ranks, with collectives that stand for another rank."""

from collections.abc import Sequence
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.models import tiny
from tfpipe import World
from tfpipe.training.backends import ParallelModel


def with_a_silent_rank(tensors: Sequence[tf.Tensor], name: str, fp16_compression: bool) -> list[tf.Tensor]:
    """The means if the other rank's gradients are all 0."""
    assert name == "gradients" and not fp16_compression
    return [tensor / 2 for tensor in tensors]


@pytest.mark.parametrize("xla", [False, True])
def test_weights_without_a_gradient_are_neither_averaged_nor_changed(xla: bool) -> None:
    """AdamW would decay them if their gradient were 0. XLA compiles the step up to the collectives."""
    network = tiny((8, 8, 3), 4, idle=True)
    model = ParallelModel(network.input, network.output)
    model.xla = xla
    model.world = World(0, 2, collectives=SimpleNamespace(overlaps=True, average=with_a_silent_rank))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), loss, jit_compile=False)
    before = [variable.numpy() for variable in model.trainable_weights]
    images, labels = np.random.default_rng(0).uniform(0, 255, (4, 8, 8, 3)), np.arange(4)
    step = tf.function(model.train_step, autograph=False)
    _, asked, _ = step((tf.constant(images, tf.float32), labels, None, tf.constant([2.0, 0.0])))
    assert asked.numpy().tolist() == [1, 0, 0, 0]
    same = {v.path: (v.numpy() == old).all() for v, old in zip(model.trainable_weights, before, strict=True)}
    assert [path for path, unchanged in same.items() if unchanged] == ["idle/kernel", "idle/bias"]
