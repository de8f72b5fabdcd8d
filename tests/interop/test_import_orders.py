"""PyTorch, JAX, TensorFlow and tfpipe in one process, imported in several orders, under checks of the memory."""

import sys
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.sample import SampleData

# Each comes before and after each other. All 24 orders have trained too, on 2026-11-28.
ORDERS = (("jax", "tensorflow", "torch"), ("torch", "tensorflow", "jax"))
# Each framework trains on one batch, whose sum all of them have to find.
PROGRAM = """
import importlib
import sys

for name in sys.argv[2:]:
    importlib.import_module(name)

import jax
import numpy as np
import tensorflow as tf
import torch

import tfpipe.torch

with tfpipe.torch.Loader(tfpipe.load_config(sys.argv[1]), channels_first=False) as loader:
    images = next(loader)[0].float() / 255
layer = torch.nn.Linear(3, 8)
layer(images).square().mean().backward()
sums = [images.sum().item(), jax.numpy.sum(images.numpy()).item(), tf.reduce_sum(images.numpy()).numpy().item()]
slope = jax.jit(jax.grad(lambda weights: ((images.numpy() @ weights) ** 2).mean()))(np.ones((3, 8), np.float32))
kernel = tf.Variable(tf.ones((3, 3, 3, 8)))
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.nn.conv2d(images.numpy(), kernel, 1, "SAME") ** 2)
gradients = layer.weight.grad.numpy(), np.asarray(slope), tape.gradient(loss, kernel).numpy()
assert np.ptp(sums) < 1e-4 * sums[0] and sums[0] > 0, sums
assert all(np.isfinite(gradient).all() and gradient.any() for gradient in gradients)
print("trained")
"""
# glibc then ends a process that writes beyond its memory or frees it twice.
CHECKED = {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}


@pytest.mark.full("6 processes that each start all frameworks; interop's other tests start one order")
@pytest.mark.parametrize("place", [0, 1, 3], ids=("first", "between", "last"))
@pytest.mark.parametrize("frameworks", ORDERS, ids="-".join)
def test_any_order_of_imports_trains(
    frameworks: tuple[str, ...], place: int, sample: SampleData, tmp_path: Path
) -> None:
    order = [*frameworks[:place], "tfpipe.torch", *frameworks[place:]]
    done = run(sys.executable, "-c", PROGRAM, sample.config(tmp_path / "c.json"), *order, **CHECKED)
    assert (done.code, done.out.split()[-1:]) == (0, ["trained"]), done.err
