"""SimCLR with two views in JAX: python docs/examples/simclr.py -c CONFIG

A small network learns without labels: of all views of a batch, it has to find the other view of the same image (Chen et
al. 2020, A Simple Framework for Contrastive Learning of Visual Representations). Prints, for each epoch, the loss and
the share of views whose other view is found.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

import tfpipe.jax

VIEWS = [
    {
        "count": 2,
        "crop": "random_resized",
        "augment": [
            {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2, "p": 0.8},
            {"name": "RandomGrayscale", "p": 0.2},
            {"name": "GaussianBlur", "kernel_size": 5, "sigma": [0.1, 2.0], "p": 0.5},
        ],
    }
]
WIDTHS = (16, 32, 64)
TEMPERATURE = 0.5

Params = dict[str, jax.Array]


def build(channels: int) -> Params:
    """Weights of three convolutions, and of the projection to the space in which views are compared."""
    keys = jax.random.split(jax.random.key(0), 4)
    widths = (channels, *WIDTHS)
    params = {
        f"convolution{i}": jax.random.normal(keys[i], (3, 3, widths[i], widths[i + 1])) * (2 / 9 / widths[i]) ** 0.5
        for i in range(3)
    }
    return params | {"projection": jax.random.normal(keys[3], (WIDTHS[-1], 32)) / WIDTHS[-1] ** 0.5}


def encode(params: Params, images: jax.Array) -> jax.Array:
    """From uint8 [batch, height, width, channels] to unit vectors [batch, 32]."""
    features = images.astype(jnp.float32) / 127.5 - 1
    for i in range(3):
        layout = ("NHWC", "HWIO", "NHWC")
        kernel = params[f"convolution{i}"]
        features = jax.lax.conv_general_dilated(features, kernel, (2, 2), "SAME", dimension_numbers=layout)
        # Batch normalization, which every network of SimCLR has.
        features = jax.nn.relu(jax.nn.standardize(features, axis=(0, 1, 2)))
    vectors = jax.nn.standardize(features.mean((1, 2)), axis=0) @ params["projection"]
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


def losses(params: Params, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean cross-entropy of finding the other view, NT-Xent, and the share of views for which it is found."""
    vectors = encode(params, jnp.concatenate([first, second]))
    similar = vectors @ vectors.T / TEMPERATURE
    similar = jnp.where(jnp.eye(len(vectors), dtype=bool), -jnp.inf, similar)
    other = (jnp.arange(len(vectors)) + len(first)) % len(vectors)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(similar), other[:, None], axis=1).mean()
    return loss, (similar.argmax(1) == other).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(params: Params, moments: Params, first: jax.Array, second: jax.Array) -> tuple[Params, Params, jax.Array]:
    """One of gradient descent with momentum; returns the loss and the share, too."""
    (loss, found), gradients = jax.value_and_grad(losses, has_aux=True)(params, first, second)
    moments = jax.tree.map(lambda moment, gradient: 0.9 * moment + gradient, moments, gradients)
    params = jax.tree.map(lambda weight, moment: weight - 0.02 * moment, params, moments)
    return params, moments, jnp.stack([loss, found])


def train(config: tfpipe.Config, epochs: int) -> Params:
    params = build(config.data.num_channels)
    moments = jax.tree.map(jnp.zeros_like, params)
    with tfpipe.jax.Loader(config) as loader:
        for epoch in range(epochs):
            figures = []
            for (first, second), _ in loader.epoch(epoch):
                params, moments, figure = step(params, moments, first, second)
                figures.append(figure)
            loss, found = jnp.stack(figures).mean(0).tolist()
            print(f"epoch {epoch}  loss {loss:.3f}  found {found:.3f}", flush=True)
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config; its views are SimCLR's two")
    parser.add_argument("--epochs", type=int, default=10, help="[%(default)s]")
    args = parser.parse_args()
    train(tfpipe.load_config(args.config, [f"data.views={json.dumps(VIEWS)}"]), args.epochs)


if __name__ == "__main__":
    main()
