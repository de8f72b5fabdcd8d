"""Times augmentation in tfpipe and its peers, in turns: python profiles/augment.py LIST [--peers-python PYTHON].

Each process makes random resized crops of 224x224, mirrored at random, of the images of a filelist, and applies one
recipe; it is stopped while others run. Rows are relative to tfpipe's own crops without a recipe ("plain"). The peers do
the same work in what their users write: a torch DataLoader over simplejpeg and Pillow, DALI, Keras' layers in tf.data.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from needs import need_modules

sys.path.append(str(Path(__file__).parent / "compare"))
from turns import Peer, answers, serve, spread, take_turns

SIDE, BATCH = 224, 64
JITTER = {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "p": 0.8}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "RandAugment(2, 9)": {"augment": ["RandAugment"]},
    "TrivialAugmentWide": {"augment": ["TrivialAugmentWide"]},
    "AutoAugment": {"augment": ["AutoAugment"]},
    "AugMix": {"augment": ["AugMix"]},
    "SimCLR": {
        "augment": [
            JITTER,
            {"name": "RandomGrayscale", "p": 0.2},
            {"name": "GaussianBlur", "kernel_size": 23, "p": 0.5},
        ]
    },
    "RandomErasing": {"augment": [{"name": "RandomErasing", "p": 0.25}]},
    "RandomErasing, noise": {"augment": [{"name": "RandomErasing", "p": 0.25, "value": "random"}]},
    "MixUp": {"mix": {"mixup": 0.2}},
    "CutMix": {"mix": {"cutmix": 1.0}},
    "antialias": {"resize": "antialias"},
    "bicubic": {"resize": "bicubic"},
    "timm A3": {
        "augment": [{"name": "RandAugment", "magnitude": 6}],
        "mix": {"mixup": 0.1, "cutmix": 1.0},
        "resize": "bicubic",
    },
}
NEEDED = {"torch": {"torch", "simplejpeg", "PIL"}, "dali": {"nvidia.dali"}}  # of the peers' Python
PEERS = ("torch plain", "torch RandAugment", "torch TrivialAugmentWide")
PEERS += ("dali plain", "dali RandAugment", "dali TrivialAugmentWide")
KERAS = ("keras plain", "keras RandAugment")


def main(args: argparse.Namespace) -> None:
    """Prints the table: rates, and ratios to "plain" of the same turn."""
    names = list(dict.fromkeys(["plain", *args.recipes, *args.peers]))
    modules = set().union(*(NEEDED[name.split()[0]] for name in args.peers if name in PEERS))
    need_modules(args.peers_python, modules, "install profiles/compare/requirements.txt, or name other --peers")
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                python = args.peers_python if name in PEERS else sys.executable
                command = [python, __file__, "--serve", name, str(args.list), "--threads", str(args.threads)]
                peers.append(Peer(name, command, Path(folder) / f"{name}.log"))
                peers[-1].answer()
            turns = take_turns(peers, args.turns, args.seconds)
        finally:
            for peer in peers:
                peer.end()
    print(f"{args.turns} turns of {args.seconds:g} s, {args.threads} CPUs, crops of {SIDE}x{SIDE}.\n")
    print("| | of plain, median (min to max) | crops/s | crops per CPU s |")
    print("|---|---|---|---|")
    for name in names:
        ratios = [_rate(turn[name]) / _rate(turn["plain"]) for turn in turns]
        rate, each = (median(figure(turn[name]) for turn in turns) for figure in (_rate, _each))
        print(f"| {name} | {spread(ratios, '.2f')} | {rate:.0f} | {each:.0f} |")


def _rate(turn: dict[str, float]) -> float:
    return turn["crops"] / turn["seconds"]


def _each(turn: dict[str, float]) -> float:
    return turn["crops"] / turn["cpu_seconds"]


# In a process of its own.


def serve_recipe(name: str, filelist: Path, threads: int) -> None:
    """Answers turns until the input ends; the first answer says that the first batch has come."""
    output = answers()
    kind, _, recipe = name.partition(" ")
    maker: Callable[..., Iterator[Any]] = {"torch": by_torch, "dali": by_dali, "keras": by_keras}.get(kind, ours)
    batches = maker(name if maker is ours else recipe, filelist, threads)
    first = next(batches)
    print(json.dumps({"crops": len(first)}), file=output, flush=True)
    serve(batches, output)


def ours(recipe: str, filelist: Path, threads: int) -> Iterator[Any]:
    """Makes tfpipe's batches."""
    from tfpipe import build_dataset, make_config

    data = {"train_filelist": str(filelist), "crop": "random_resized", "crop_image_size": [SIDE, SIDE]}
    data |= {"batch_size": BATCH, "threads": threads, "annotations": "none", **RECIPES[recipe]}
    for images, _ in build_dataset(make_config({"data": data})):
        yield images


def by_torch(recipe: str, filelist: Path, threads: int) -> Iterator[Any]:
    """Makes the batches of a torch DataLoader: simplejpeg decodes, Pillow crops, resizes and augments."""
    from torch.utils.data import DataLoader

    options = {"num_workers": threads, "persistent_workers": True, "prefetch_factor": 4}
    loader = DataLoader(PillowCrops(_paths(filelist), recipe), BATCH, shuffle=True, drop_last=True, **options)
    while True:
        yield from loader


class PillowCrops:
    """A torch Dataset of augmented crops."""

    def __init__(self, paths: list[str], recipe: str) -> None:
        self.paths, self.recipe = paths, recipe

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, item: int) -> np.ndarray:
        import simplejpeg
        from PIL import Image

        pixels = simplejpeg.decode_jpeg(Path(self.paths[item]).read_bytes(), fastdct=True, fastupsample=True)
        image = Image.fromarray(pixels)
        left, top, width, height = random_window(image.width, image.height)
        box = (left, top, left + width, top + height)
        crop = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box, reducing_gap=None)
        if random.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.recipe == "RandAugment":
            for _ in range(2):
                crop = pillow_operation(crop, 0.9, 0.3, 30, 150 / 331 * SIDE, 8 - 4 * 0.3, 9 / 30)
        elif self.recipe == "TrivialAugmentWide":
            share = random.randrange(31) / 30
            crop = pillow_operation(crop, 0.99, 0.99, 135, 32, 8 - 6 * share, share)
        return np.asarray(crop)


def random_window(width: int, height: int) -> tuple[int, int, int, int]:
    """Draws torchvision's RandomResizedCrop: left, top, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        across, down = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            return random.randint(0, width - across), random.randint(0, height - down), across, down
    return 0, 0, width, height


def pillow_operation(
    image: Any, blend: float, shear: float, degrees: float, move: float, bits: float, share: float
) -> Any:
    """Applies one of torchvision's 14 operations with Pillow."""
    from PIL import Image, ImageEnhance, ImageOps

    sign = random.choice((-1, 1))

    def warp(*matrix: float) -> Any:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)

    def enhance(kind: Any) -> Any:
        return kind(image).enhance(1 + sign * blend * share)

    operations: list[Callable[[], Any]] = [
        lambda: image,
        lambda: warp(1, sign * shear * share, 0, 0, 1, 0),
        lambda: warp(1, 0, 0, sign * shear * share, 1, 0),
        lambda: warp(1, 0, int(sign * move * share), 0, 1, 0),
        lambda: warp(1, 0, 0, 0, 1, int(sign * move * share)),
        lambda: image.rotate(sign * degrees * share),
        lambda: enhance(ImageEnhance.Brightness),
        lambda: enhance(ImageEnhance.Color),
        lambda: enhance(ImageEnhance.Contrast),
        lambda: enhance(ImageEnhance.Sharpness),
        lambda: ImageOps.posterize(image, round(bits)),
        lambda: ImageOps.solarize(image, int(255 * (1 - share))),
        lambda: ImageOps.autocontrast(image),
        lambda: ImageOps.equalize(image),
    ]
    return random.choice(operations)()


def by_dali(recipe: str, filelist: Path, threads: int) -> Iterator[Any]:
    """Makes DALI's batches, on CPUs."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    @pipeline_def(
        batch_size=BATCH, num_threads=threads, device_id=None, prefetch_queue_depth=3, enable_conditionals=True
    )
    def crops() -> Any:
        jpegs, _ = fn.readers.file(files=_paths(filelist), random_shuffle=True, name="reader")
        images = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=False)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        if recipe == "RandAugment":
            images = rand_augment.rand_augment(images, n=2, m=9, shape=[SIDE, SIDE], fill_value=0)
        elif recipe == "TrivialAugmentWide":
            images = trivial_augment.trivial_augment_wide(images, shape=[SIDE, SIDE], fill_value=0)
        return images

    pipeline = crops()
    while True:
        (batch,) = pipeline.run()
        yield np.asarray(batch.as_tensor())


def by_keras(recipe: str, filelist: Path, threads: int) -> Iterator[Any]:
    """Makes the batches of tf.data with Keras' layer, on batches as its guide has it."""
    import keras
    import tensorflow as tf

    def load(path: Any) -> Any:
        jpeg = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(jpeg), tf.zeros([1, 0, 4]), area_range=(0.08, 1), min_object_covered=0.1,
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.resize(tf.io.decode_and_crop_jpeg(jpeg, window, 3), (SIDE, SIDE))
        return tf.image.random_flip_left_right(image)

    paths = _paths(filelist)
    dataset = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    dataset = dataset.map(load, tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True)
    if recipe == "RandAugment":
        layer = keras.layers.RandAugment(value_range=(0, 255), num_ops=2, factor=0.3)
        dataset = dataset.map(lambda images: layer(images, training=True), tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    for images in dataset.prefetch(tf.data.AUTOTUNE).with_options(options):
        yield tf.cast(images, tf.uint8)


def _paths(filelist: Path) -> list[str]:
    return [str(filelist.parent / line) for line in filelist.read_text().split("\n") if line]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=lambda path: Path(path).absolute(), help="filelist of JPEGs")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), help='besides "plain"')
    parser.add_argument("--peers", nargs="*", choices=(*PEERS, *KERAS), default=[])
    parser.add_argument(
        "--peers-python", default=sys.executable, help="a Python with compare/requirements.txt installed"
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_recipe(arguments.serve, arguments.list, arguments.threads)
    else:
        main(arguments)
