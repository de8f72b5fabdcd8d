"""A planted noisy neighbour: a model whose ops use all CPUs, next to a pipeline that does; what report and sweep say.

    make train    # makes the sample
    python profiles/neighbour.py [-c configs/sample.json] [--set data.threads=null]

Trains 60 steps with all CPUs for the pipeline and prints the verdict of `tfpipe report`; then sweeps data.threads
against the same training step, in turns, from memory too. The model is `matmuls` below: a hundred products of matrices
one after the other, each of which ends when the slowest of its threads does.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN = Path("runs/neighbour")
MODEL = ("model.name=profiles.neighbour:matmuls", "model.args={}")


def matmuls(shape: tuple[int, int, int], classes: int, width: int = 512, depth: int = 30):
    """Builds a network of dense layers: float32 [batch, *shape] in [0, 255] -> logits [batch, classes]."""
    import keras
    from keras import layers

    inputs = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(inputs)
    x = layers.Flatten()(layers.AveragePooling2D(4)(x))
    for _ in range(depth):
        x = layers.Dense(width, "relu")(x)
    return keras.Model(inputs, layers.Dense(classes)(x))


def main(args: argparse.Namespace) -> None:
    """Trains, reports, sweeps."""
    flags = [word for override in (*MODEL, *args.set) for word in ("--set", override)]
    shutil.rmtree(RUN, ignore_errors=True)
    short = ("-n", args.steps, "--set", f"training.interval={args.steps // 3}")
    _run(ROOT / "train.py", "-c", args.config, "-l", RUN, *short, *flags)
    print(_run("-m", "tfpipe", "report", RUN), flush=True)
    turns = ("--repeats", args.turns, "--seconds", args.seconds * args.turns)
    sweep = ("--sweep", "data.threads=0.25,0.5,0.75,null")
    print(_run("-m", "tfpipe", "bench", "-c", args.config, *turns, *sweep, *flags))


def _run(*words: object) -> str:
    # By which the model is found from any folder.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ)
    if done.returncode != 0:
        sys.exit(f"failed: python {' '.join(map(str, words))}")
    return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, default=ROOT / "configs" / "sample.json")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn [%(default)s]")
    parser.add_argument("--steps", type=int, default=60, help="of the training, a multiple of 3 [%(default)s]")
    main(parser.parse_args())
