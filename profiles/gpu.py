"""Feeds ResNet-50 in bf16 on a GPU from memory, packed data and files: python profiles/gpu.py -c CONFIG --out DIR.

Trains the same steps on batches of each kind in turns and prints a row for each: images/s, the share of the time in
which the GPU is idle, by comparison with batches that are in its memory, and the share in which the loop waits for the
next batch. At most two steps are in flight, as in a loop that reads its loss a step late. DIR keeps the packed data;
without -c, `tfpipe sample` makes images of 500x375 there. --framework jax trains Keras' ResNet-50. Without a GPU it
says so and ends, unless --tiny asks for a small model on the CPU, which tries the script and says nothing of a GPU.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IN_FLIGHT, WARM_UP = 2, 10
SOURCES = ("memory", "raw", "crops", "files")


class Torch:
    """ResNet-50 (He et al. 2015) in torch, channels last, by autocast to bfloat16."""

    def __init__(self, classes: int, channels: int, tiny: bool) -> None:
        import torch

        import tfpipe.torch

        self.torch, self.make = torch, tfpipe.torch.Loader
        self.type = "cuda" if torch.cuda.is_available() else "cpu"
        if self.type == "cpu":
            torch.set_num_threads(1)  # several that share the CPUs with the pipeline wait for each other
        torch.backends.cudnn.benchmark = True
        model = self.resnet(classes, channels, (1, 1, 1, 1) if tiny else (3, 4, 6, 3), 8 if tiny else 64)
        self.model = model.to(self.type, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def resnet(self, classes: int, channels: int, depths: tuple[int, ...], width: int) -> Any:
        """From float [batch, channels, height, width] to logits [batch, classes]."""
        nn = self.torch.nn

        def unit(inputs: int, outputs: int, size: int, stride: int = 1) -> list[Any]:
            convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
            return [convolution, nn.BatchNorm2d(outputs)]

        class Block(nn.Module):
            def __init__(self, inputs: int, inner: int, stride: int) -> None:
                super().__init__()
                body = [*unit(inputs, inner, 1), nn.ReLU(True), *unit(inner, inner, 3, stride), nn.ReLU(True)]
                self.body = nn.Sequential(*body, *unit(inner, 4 * inner, 1))
                same = inputs == 4 * inner and stride == 1
                self.shortcut = nn.Identity() if same else nn.Sequential(*unit(inputs, 4 * inner, 1, stride))

            def forward(self, images: Any) -> Any:
                return nn.functional.relu(self.body(images) + self.shortcut(images))

        layers, inputs = [*unit(channels, width, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                layers.append(Block(inputs, width << stage, 2 if stage and not number else 1))
                inputs = 4 * (width << stage)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def loader(self, config: Any) -> Any:
        return self.make(config, device=self.type)

    def step(self, images: Any, labels: Any) -> Any:
        with self.torch.autocast(self.type, self.torch.bfloat16):
            logits = self.model(images.float().div_(127.5).sub_(1))
            loss = self.torch.nn.functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.type == "cpu":
            return None
        done = self.torch.cuda.Event()
        done.record()
        return done

    def wait(self, started: Any) -> None:
        if started is not None:
            started.synchronize()


class Jax:
    """Keras' ResNet-50 in JAX, by the policy mixed_bfloat16."""

    def __init__(self, classes: int, shape: tuple[int, int, int], tiny: bool) -> None:
        import jax
        import keras

        import tfpipe.jax

        self.make, self.block = tfpipe.jax.Loader, jax.block_until_ready
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
        layers = keras.layers
        if tiny:
            net = [layers.Conv2D(8, 3, strides=2, activation="relu"), layers.GlobalAveragePooling2D()]
        else:
            net = [keras.applications.ResNet50(weights=None, include_top=False, pooling="avg", input_shape=shape)]
        scale = layers.Rescaling(1 / 127.5, offset=-1)
        model = keras.Sequential([layers.Input(shape), scale, *net, layers.Dense(classes, dtype="float32")])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def loss_of(trainable: Any, fixed: Any, images: Any, labels: Any) -> Any:
            logits, fixed = model.stateless_call(trainable, fixed, images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return losses.mean(), fixed

        def step(state: Any, images: Any, labels: Any) -> Any:
            trainable, fixed, slots = state
            (loss, fixed), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, fixed, images, labels)
            trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
            return (trainable, fixed, slots), loss

        self.jitted = jax.jit(step, donate_argnums=0)
        variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        self.state = tuple([variable.value for variable in part] for part in variables)

    def loader(self, config: Any) -> Any:
        return self.make(config)

    def step(self, images: Any, labels: Any) -> Any:
        self.state, loss = self.jitted(self.state, images, labels)
        return loss

    def wait(self, started: Any) -> None:
        self.block(started)


def find_gpu(framework: str) -> str | None:
    """Returns the name of the GPU; None if the framework sees none."""
    if framework == "jax":
        import jax

        return None if jax.devices()[0].platform == "cpu" else jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def measure(trainer: Torch | Jax, batches: Iterator[Any], steps: int) -> tuple[float, float]:
    """Returns the seconds of a step and of its wait for input: means over `steps` steps after WARM_UP others."""
    in_flight: deque[Any] = deque()
    waited_s = began_s = 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            while in_flight:
                trainer.wait(in_flight.popleft())
            waited_s, began_s = 0.0, time.perf_counter()
        asked_s = time.perf_counter()
        images, labels = next(batches)
        waited_s += time.perf_counter() - asked_s
        in_flight.append(trainer.step(images, labels))
        if len(in_flight) > IN_FLIGHT:
            trainer.wait(in_flight.popleft())
    while in_flight:
        trainer.wait(in_flight.popleft())
    return (time.perf_counter() - began_s) / steps, waited_s / steps


def run(trainer: Torch | Jax, config: Any, source: str, steps: int) -> tuple[float, float]:
    """Trains on the batches of a source."""
    with trainer.loader(config) as loader:
        return measure(trainer, itertools.repeat(next(loader)) if source == "memory" else loader, steps)


def prepare(args: argparse.Namespace) -> dict[str, Any]:
    """Returns a config for each source; makes the sample and the packed data that are not there."""
    import tfpipe

    tool, path = [sys.executable, "-m", "tfpipe"], args.config
    args.out.mkdir(parents=True, exist_ok=True)
    if path is None:
        path, sample = args.out / "config.json", args.out / "sample"
        if not path.exists():
            subprocess.run([*tool, "sample", sample, "--images", "2000"], check=True)
            subprocess.run([*tool, "filelist", sample, "--out", args.out], check=True)
            data = {"train_filelist": "train.txt", "crop_image_size": [224, 224]}
            path.write_text(json.dumps({"data": data}))
    settings = [*args.set, f"data.batch_size={args.batch}"]
    words = [word for setting in args.set for word in ("--set", setting)]
    configs = {}
    for source in args.sources:
        more = []
        if source in ("raw", "crops"):
            folder = (args.out / source).resolve()
            if not (folder / "train.json").exists():
                subprocess.run([*tool, "pack", "-c", path, "--out", folder, "--kind", source, *words], check=True)
            source_of = json.dumps({"kind": "packed", "path": str(folder)})
            more = [f"data.source={source_of}"]
            more += (f"data.{key}=null" for key in ("train_filelist", "test_filelist", "test_label_file"))
        configs[source] = tfpipe.load_config(path, [*settings, *more])
    return configs


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    # Before anything imports Keras.
    os.environ["KERAS_BACKEND"] = "jax" if args.framework == "jax" else "tensorflow"
    gpu = find_gpu(args.framework)
    if gpu is None and not args.tiny:
        raise SystemExit(f"{args.framework} sees no GPU here: nothing is measured (--tiny tries the script on the CPU)")
    if args.framework == "torch":
        import tfpipe.torch  # before TensorFlow
    import tfpipe

    configs = prepare(args)
    data = configs["memory"].data
    classes = len(tfpipe.stages.load_split(data, "train", tfpipe.World()).catalog.classes)
    shape = (*data.crop_image_size, data.num_channels)
    jax = args.framework == "jax"
    trainer = Jax(classes, shape, args.tiny) if jax else Torch(classes, shape[2], args.tiny)
    rows: dict[str, list[tuple[float, float]]] = {source: [] for source in configs}
    for _ in range(args.turns):
        for source, config in configs.items():
            rows[source].append(run(trainer, config, source, args.steps))
    where = f"{gpu or 'no GPU'}, {len(os.sched_getaffinity(0))} CPUs, {args.framework}{', tiny' if args.tiny else ''}"
    print(f"{where}; batches of {args.batch} x {shape}; medians of {args.turns} turns of {args.steps} steps\n")
    print("| source | images/s | GPU idle | waiting for input |\n|---|---|---|---|")
    for source, turns in rows.items():
        rate = args.batch / statistics.median(step_s for step_s, _ in turns)
        idle = statistics.median(
            1 - least_s / step_s for (step_s, _), (least_s, _) in zip(turns, rows["memory"], strict=True)
        )
        wait = statistics.median(wait_s / step_s for step_s, wait_s in turns)
        print(f"| {source} | {rate:,.0f} | {max(0.0, idle):.1%} | {wait:.1%} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True, help="folder of the packed data")
    parser.add_argument("--framework", choices=("torch", "jax"), default="torch")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, help="memory is always measured")
    parser.add_argument("--tiny", action="store_true", help="a small model, also on the CPU")
    given = parser.parse_args()
    given.sources = ["memory", *(source for source in given.sources if source != "memory")]
    main(given)
