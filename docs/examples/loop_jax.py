"""A JAX loop that resumes after a kill: python docs/examples/loop_jax.py -c CONFIG -o RUN

It trains on all devices of this process or, with --processes, of all that mpirun has started. Started again, on any
number of devices and processes, it resumes with the next crop after its last checkpoint. RUN/positions-*.csv holds
what each process has trained: step, position, crop.
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tfpipe.jax

Params = dict[str, jax.Array]


def build(channels: int, classes: int) -> Params:
    """A convolution's and a dense layer's weights."""
    convolution, dense = jax.random.split(jax.random.key(0))
    shape = (3, 3, channels, 16)
    return {
        "convolution": jax.random.normal(convolution, shape) * (2 / np.prod(shape[:3])) ** 0.5,
        "dense": jax.random.normal(dense, (16, classes)) / 4,
    }


def losses(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """From uint8 [batch, height, width, channels] and int32 [batch] to the mean cross-entropy."""
    pixels = images.astype(jnp.float32) / 127.5 - 1
    layout = ("NHWC", "HWIO", "NHWC")
    features = jax.lax.conv_general_dilated(pixels, params["convolution"], (2, 2), "VALID", dimension_numbers=layout)
    logits = jax.nn.relu(features).mean((1, 2)) @ params["dense"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


@partial(jax.jit, donate_argnums=0)
def step(params: Params, images: jax.Array, labels: jax.Array) -> tuple[Params, jax.Array]:
    """One of gradient descent; over all devices, since the batch is."""
    loss, gradients = jax.value_and_grad(losses)(params, images, labels)
    return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, params, gradients), loss


def train(config: tfpipe.Config, run: Path, epochs: int, every: int) -> None:
    run.mkdir(parents=True, exist_ok=True)
    mesh = Mesh(jax.devices(), ("data",))
    loader = tfpipe.jax.Loader(config, sharding=NamedSharding(mesh, PartitionSpec("data")), positions=True)
    params = build(config.data.num_channels, len(loader.catalog.classes))
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    manager = ocp.CheckpointManager(run.resolve() / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=2))
    if (latest := manager.latest_step()) is not None:
        parts = ocp.args.Composite(params=ocp.args.StandardRestore(params), loader=ocp.args.JsonRestore())
        saved = manager.restore(latest, args=parts)
        params = saved["params"]
        loader.load_state_dict(saved["loader"])

    def save() -> None:
        # One checkpoint holds the weights and the loader's state: neither is ever ahead of the other.
        state = loader.state_dict()  # on every process: it is of all of them
        parts = ocp.args.Composite(params=ocp.args.StandardSave(params), loader=ocp.args.JsonSave(state))
        # Numbered by crops: another number of processes counts other steps, and Orbax saves only what is later.
        manager.save(state["crops"], args=parts)

    with loader, open(run / f"positions-{jax.process_index()}.csv", "a") as log:
        for epoch in range(loader.step // loader.steps_per_epoch, epochs):
            for images, labels, positions in loader.epoch(epoch):
                params, loss = step(params, images, labels)
                log.writelines(f"{loader.step},{place},{crop}\n" for place, crop in positions.tolist())
                log.flush()
                if loader.step % every == 0:
                    save()
            if jax.process_index() == 0:
                print(f"epoch {epoch}  step {loader.step}  loss {loss:.3f}", flush=True)
        save()
    manager.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("-o", "--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--processes", action="store_true", help="connect the processes of mpirun")
    parser.add_argument("--epochs", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints [%(default)s]")
    args = parser.parse_args()
    if args.processes:
        jax.distributed.initialize(cluster_detection_method="mpi4py")
    train(tfpipe.load_config(args.config), args.run, args.epochs, args.every)


if __name__ == "__main__":
    main()
