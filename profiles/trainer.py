"""What the trainer costs beside Keras' own fit: python profiles/trainer.py LIST [--backends tensorflow jax torch].

A small ResNet, so that the cost shows, trains on random batches that are in memory: by `tfpipe train`'s loop, whose
Loader's batches they take the place of, and by `fit`. Printed is the median time of a step in the second epoch, and by
how much the first is longer, of turns with a process each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

SIDE, BATCH, BATCHES = 32, 16, 50
LOOPS = ("fit", "tfpipe")


def main(args: argparse.Namespace) -> None:
    """Prints a line for each backend."""
    for backend in args.backends:
        environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        times_ms: dict[str, list[float]] = {loop: [] for loop in LOOPS}
        for _ in range(args.turns):
            for loop in LOOPS:
                command = [sys.executable, __file__, str(args.list), "--steps", str(args.steps), "--measure", loop]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                times_ms[loop].append(json.loads(done.stdout.splitlines()[-1]))
        more = sorted(ours - plain for plain, ours in zip(*times_ms.values(), strict=True))
        figures = ", ".join(f"{loop} {median(times):.2f} ms" for loop, times in times_ms.items())
        print(f"{backend}: {figures}; more: {median(more):+.2f} ms ({more[0]:+.2f} to {more[-1]:+.2f})", flush=True)


def measure(args: argparse.Namespace) -> float:
    """Returns the median milliseconds of a step in the second epoch."""
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch  # noqa: F401  # before TensorFlow
    import keras

    from tfpipe import make_config
    from tfpipe.training import compile, models

    data = {"train_filelist": str(args.list.absolute()), "crop_image_size": [SIDE, SIDE], "batch_size": BATCH}
    training = {"epochs": 2, "steps_per_epoch": args.steps}
    config = make_config({"data": data, "model": {"name": "resnet18", "args": {"width": 8}}, "training": training})
    begun_s: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: begun_s.append(time.perf_counter()))
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (BATCHES, BATCH, SIDE, SIDE, 3)).astype(np.float32)
    labels = rng.integers(0, 8, (BATCHES, BATCH)).astype(np.int32)
    if args.measure == "tfpipe":
        by_tfpipe(config, clock, images, labels)
    else:
        keras.utils.set_random_seed(0)
        model, classes = models.build_model(config, 8), 8
        optimizer, loss = compile.build_optimizer(config, 1, args.steps, None), compile.build_loss(config, classes)
        # As `tfpipe train` has it: XLA is a key for TensorFlow, and always there for JAX.
        jit = False if keras.backend.backend() == "tensorflow" else "auto"
        model.compile(optimizer, loss, metrics=compile.build_metrics(config, classes), jit_compile=jit)
        repeats = -(-args.steps // BATCHES)
        flat = [np.concatenate([*part] * repeats)[: args.steps * BATCH] for part in (images, labels)]
        model.fit(*flat, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[clock])
    return median(np.diff(begun_s[args.steps :]).tolist()) * 1e3


def by_tfpipe(config: Any, clock: Any, images: np.ndarray, labels: np.ndarray) -> None:
    """Trains by tfpipe's loop, on batches that are on the device in the place of the Loader's."""
    import keras

    from tfpipe import World
    from tfpipe.training import devices, loop
    from tfpipe.training.run_model import RunModel

    devices.configure_devices(World())
    batches = [tuple(map(keras.ops.convert_to_tensor, batch)) for batch in zip(images, labels, strict=True)]
    take, callbacks_of = RunModel.take, loop.make_callbacks

    def from_memory(model: Any) -> Any:
        if model.positions is None:
            take(model)  # the positions of a batch
        model.meter.wait()
        model.meter.take()
        return batches[model.meter.steps % BATCHES]

    RunModel.take = from_memory
    loop.make_callbacks = lambda *parts: [clock, *callbacks_of(*parts)]
    with tempfile.TemporaryDirectory() as folder:
        loop.train(config, World(), Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, metavar="LIST")
    parser.add_argument("--backends", nargs="+", default=["tensorflow", "jax", "torch"], metavar="NAME")
    parser.add_argument("--steps", type=int, default=300, help="of an epoch, of which there are two")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--measure", choices=LOOPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(measure(arguments))
    else:
        main(arguments)
