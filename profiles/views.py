"""Times DINO's ten views of an image, in turns: python profiles/views.py LIST [--augment] [--peers-python PYTHON].

Each process makes views of the images of a filelist, and is stopped while others run: tfpipe one random resized crop of
224x224, SimCLR's two, DINO's two of 224x224 (area 0.4 to 1) and eight of 96x96 (0.05 to 0.4); and a torch DataLoader
DINO's ten by Pillow, as DINO's own code does. All are mirrored at random. With --augment they go through DINO's jitter,
grayscale, blur and solarize. Rates are images/s, not views/s; ratios are to tfpipe's one view in the same turn.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from needs import need_modules

sys.path.append(str(Path(__file__).parent / "compare"))
from turns import Peer, answers, serve, spread, take_turns

BATCH = 32
JITTER = {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1, "p": 0.8}
GRAY = {"name": "RandomGrayscale", "p": 0.2}
LARGE, SMALL = (0.4, 1.0), (0.05, 0.4)
# Side, area, probability of a blur and of solarize: DINO's views.
DINO = [(224, LARGE, 1.0, 0.0), (224, LARGE, 0.1, 0.2), *[(96, SMALL, 0.5, 0.0)] * 8]
VIEWS = {"one view": DINO[:1], "two views": [DINO[0]] * 2, "ten views": DINO}
TORCH = "torch, ten views"


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    need_modules(args.peers_python, {"torch", "PIL", "numpy"}, "install torch and pillow")
    peers: list[Peer] = []
    names = [*VIEWS, TORCH]
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                python = args.peers_python if name == TORCH else sys.executable
                command = [python, __file__, "--serve", name, str(args.list), "--threads", str(args.threads)]
                command += ["--augment"] * args.augment + ["--resize", args.resize]
                peers.append(Peer(name, command, Path(folder) / f"{name}.log"))
                peers[-1].answer()
            turns = take_turns(peers, args.turns, args.seconds)
        finally:
            for peer in peers:
                peer.end()
    how = "with DINO's changes" if args.augment else "without changes"
    print(f"{args.turns} turns of {args.seconds:g} s, {args.threads} CPUs, {how}, tfpipe's resize {args.resize}.\n")
    print("| | of one view, median (min to max) | images/s | of torch's ten views |")
    print("|---|---|---|---|")
    for name in names:
        rates = [_rate(turn[name]) for turn in turns]
        ratios, of_torch = (
            [rate / _rate(turn[other]) for rate, turn in zip(rates, turns, strict=True)] for other in (names[0], TORCH)
        )
        print(f"| {name} | {spread(ratios, '.2f')} | {median(rates):.0f} | {spread(of_torch, '.2f')} |")


def _rate(turn: dict[str, float]) -> float:
    return turn["crops"] / turn["seconds"]


# In a process of its own.


def serve_views(args: argparse.Namespace) -> None:
    """Answers turns until the input ends; the first answer says that the first batch has come."""
    output = answers()
    batches = by_torch(args) if args.serve == TORCH else ours(args)
    print(json.dumps({"crops": len(next(batches))}), file=output, flush=True)
    serve(batches, output)


def ours(args: argparse.Namespace) -> Iterator[Any]:
    """Yields the first views of tfpipe's batches: one for each image."""
    from tfpipe import build_dataset, make_config

    def view(side: int, area: tuple[float, float], blur: float, solarize: float) -> dict[str, Any]:
        steps = [JITTER, GRAY, {"name": "GaussianBlur", "kernel_size": 23 if side > 100 else 11, "p": blur}]
        steps += [{"name": "RandomSolarize", "threshold": 128, "p": solarize}] * (solarize > 0)
        return {"size": side, "random_resized": {"area": area}, "augment": steps if args.augment else []}

    data = {"train_filelist": str(args.list), "crop": "random_resized", "annotations": "none", "resize": args.resize}
    data |= {"batch_size": BATCH, "threads": args.threads, "views": [view(*each) for each in VIEWS[args.serve]]}
    for views, _ in build_dataset(make_config({"data": data})):
        yield views[0]


def by_torch(args: argparse.Namespace) -> Iterator[Any]:
    """Yields the same of a torch DataLoader: Pillow decodes, crops, resizes and changes."""
    from torch.utils.data import DataLoader

    paths = [str(args.list.parent / line) for line in args.list.read_text().split("\n") if line]
    options = {"num_workers": args.threads, "persistent_workers": True, "prefetch_factor": 4}
    loader = DataLoader(PillowViews(paths, args.augment), BATCH, shuffle=True, drop_last=True, **options)
    while True:
        for views in loader:
            yield views[0]


class PillowViews:
    """A torch Dataset of ten views, each uint8 [side, side, 3]."""

    def __init__(self, paths: list[str], augment: bool) -> None:
        self.paths, self.augment = paths, augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, item: int) -> list[np.ndarray]:
        from PIL import Image

        with Image.open(self.paths[item]) as file:
            image = file.convert("RGB")
        return [np.asarray(self._view(image, *each)) for each in DINO]

    def _view(self, image: Any, side: int, area: tuple[float, float], blur: float, solarize: float) -> Any:
        from PIL import Image, ImageFilter, ImageOps

        window = random_window(image.width, image.height, area)
        crop = image.crop(window).resize((side, side), Image.Resampling.BICUBIC)
        if random.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if not self.augment:
            return crop
        if random.random() < JITTER["p"]:
            crop = jittered(crop)
        if random.random() < GRAY["p"]:
            crop = crop.convert("L").convert("RGB")
        if random.random() < blur:
            crop = crop.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))
        return ImageOps.solarize(crop) if random.random() < solarize else crop


def random_window(width: int, height: int, shares: tuple[float, float]) -> tuple[int, int, int, int]:
    """Draws torchvision's RandomResizedCrop: left, top, right, bottom."""
    for _ in range(10):
        area = width * height * random.uniform(*shares)
        aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        across, down = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            return left, top, left + across, top + down
    return 0, 0, width, height


def jittered(crop: Any) -> Any:
    """Applies torchvision's ColorJitter by Pillow, in a random order."""
    from PIL import Image, ImageEnhance

    def hue(crop: Any) -> Any:
        turned, saturation, value = crop.convert("HSV").split()
        shift = np.uint8(round(255 * random.uniform(-JITTER["hue"], JITTER["hue"])) % 256)
        turned = Image.fromarray(np.asarray(turned) + shift)
        return Image.merge("HSV", (turned, saturation, value)).convert("RGB")

    def enhanced(kind: Any, name: str) -> Any:
        return lambda crop: kind(crop).enhance(random.uniform(1 - JITTER[name], 1 + JITTER[name]))

    kinds = (
        (ImageEnhance.Brightness, "brightness"),
        (ImageEnhance.Contrast, "contrast"),
        (ImageEnhance.Color, "saturation"),
    )
    changes = [hue, *(enhanced(*each) for each in kinds)]
    for change in random.sample(changes, len(changes)):
        crop = change(crop)
    return crop


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=lambda path: Path(path).absolute(), help="filelist of JPEGs")
    parser.add_argument("--augment", action="store_true", help="also DINO's random changes")
    parser.add_argument("--resize", default="bilinear", choices=("bilinear", "antialias", "bicubic", "area"))
    parser.add_argument("--peers-python", default=sys.executable, help="a Python with torch and Pillow")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="and torch's workers")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    serve_views(arguments) if arguments.serve else main(arguments)
