"""Step times of a ResNet-18 of 11 million weights on several ranks, by Horovod, MPI and TensorFlow, in turns.

python profiles/collectives.py [--ranks 2] [--turns 3] [--steps 30] [--compression fp16]

Each turn starts the ranks afresh by mpirun, of one after the other, since each has threads that would slow the others
down. A step trains 32 crops of 64x64 a rank, held in memory. Prints the medians of each turn in ms: the step,
and the part of it after the last gradient; and the ratios of the steps to Horovod's.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from needs import need_modules, need_programs

KINDS = ("horovod", "mpi", "tensorflow")


def rank(kind: str, args: argparse.Namespace) -> None:
    """Trains on one rank; rank 0 prints the medians of step and reduction, in ms, as JSON."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfpipe import World, make_config
    from tfpipe.training.backends import broadcast, make_model
    from tfpipe.training.devices import configure_devices
    from tfpipe.training.models import build_model

    world = World.detect(collectives=kind, folder=args.folder)
    configure_devices(world)
    world.tensors.start()
    data = {"train_filelist": __file__, "crop_image_size": [64, 64], "num_classes": 1000}
    training = {"compression": args.compression}
    config = make_config({"data": data, "model": {"name": args.model}, "training": training})
    model = make_model(build_model(config, 1000), config, world)
    model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    broadcast(model.weights, world, "weights")
    random = np.random.default_rng(world.rank)
    images = tf.constant(random.integers(0, 255, (32, 64, 64, 3), np.uint8))
    labels = tf.constant(random.integers(0, 1000, 32).astype(np.int32))
    step = tf.function(model.train_step, autograph=False)
    times = []
    for _ in range(args.steps):
        began_s = time.perf_counter()
        _, asked, reduce_s = step((images, labels, None, tf.zeros(2)))
        asked.numpy()
        times.append((1e3 * (time.perf_counter() - began_s), 1e3 * float(reduce_s)))
    if world.rank == 0:
        print(json.dumps([statistics.median(part) for part in zip(*times[5:], strict=True)]))
    world.gather(None)  # the end of one rank would end the others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="at least 6 [%(default)s]")
    parser.add_argument("--model", default="resnet18", help="model.name of a config [%(default)s]")
    parser.add_argument("--compression", choices=("none", "fp16"), default="none")
    parser.add_argument("--rank-of", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of:
        rank(args.rank_of, args)
        return
    need_modules(sys.executable, {"horovod", "mpi4py"}, "run jobs/install_horovod.sh")
    mpirun = shutil.which("mpirun", path=Path(sys.executable).parent)
    if mpirun is None:
        need_programs(mpirun := "mpirun", advice="install or load an MPI")
    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.turns):
            for kind in KINDS if turn % 2 == 0 else KINDS[::-1]:
                own = [sys.executable, __file__, "--rank-of", kind, "--folder", folder]
                how = ["--steps", str(args.steps), "--compression", args.compression, "--model", args.model]
                command = [mpirun, "-n", str(args.ranks), "--oversubscribe", "--bind-to", "none", *own, *how]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                step_ms, reduce_ms = json.loads(done.stdout.splitlines()[-1])
                medians[kind].append(step_ms)
                text = f"step {step_ms:6.1f} ms  after the last gradient {reduce_ms:6.1f} ms"
                print(f"turn {turn + 1}  {kind:10}  {text}", flush=True)
    for kind in KINDS[1:]:
        ratios = [ours / theirs for theirs, ours in zip(medians[KINDS[0]], medians[kind], strict=True)]
        print(f"{kind}'s step / Horovod's: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
