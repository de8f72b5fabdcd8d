"""What entry points save, by their density: python profiles/entries.py LIST [--images 400] [--every 4 8 16 32 255].

CPU time of decoding in C, one thread, for a RandomResizedCrop to 224 of at least 8 % or 25 % of an image, and for the
whole image, relative to that without entry points, in turns; and the bytes that the entry points take. All crops are
compared with those without.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.images.headers import header_of
from tfpipe.native import Native, decoder_name, native

SIDE = 224
SHARES = {"RandomResizedCrop of 8 % or more": 0.08, "of 25 % or more": 0.25, "whole image": None}
TOGETHER = 32  # images in a call, as in a pipeline


class Images(NamedTuple):
    """JPEGs with their sizes (int32 [n, 2]: height, width)."""

    jpegs: list[bytes]
    sizes: np.ndarray


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    library = native()
    if library is None:
        raise SystemExit("the decoder in C is not built")
    paths = read_filelist(args.list)
    jpegs = [Path(path).read_bytes() for path in paths][: args.images]
    images = Images(jpegs, np.array([header_of(jpeg, "")[:2] for jpeg in jpegs], np.int32))
    start = time.process_time()
    found = {every: [library.entries(jpeg, every) for jpeg in jpegs] for every in args.every}
    find_ms = (time.process_time() - start) / len(args.every) / len(jpegs) * 1e3
    print(f"{len(jpegs)} images; {decoder_name()}; finding them takes {find_ms:.2f} ms of CPU time an image.\n")
    windows = {name: windows_of(images.sizes, share) for name, share in SHARES.items()}
    ratios = {name: times(library, images, found, chosen, args.turns) for name, chosen in windows.items()}
    print(f"| an entry point every | share of the files' bytes | {' | '.join(SHARES)} |")
    print(f"|---|---|{'---|' * len(SHARES)}")
    total = sum(map(len, jpegs))
    for every in args.every:
        cells = " | ".join(f"{ratios[name][every]:.2f}" for name in SHARES)
        print(f"| {every} MCUs | {sum(map(len, found[every])) / total:.2%} | {cells} |")


def windows_of(sizes: np.ndarray, share: float | None) -> np.ndarray:
    """Windows (int32 [n, 4]) as torchvision's RandomResizedCrop draws them, at the first try that fits; None: whole."""
    draw, windows = np.random.default_rng(1), []
    for height, width in sizes.tolist():
        for _ in range(10 if share else 0):
            area = height * width * draw.uniform(share, 1)
            aspect = np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
            h, w = round(np.sqrt(area / aspect)), round(np.sqrt(area * aspect))
            if 0 < h <= height and 0 < w <= width:
                windows.append((draw.integers(0, height - h + 1), draw.integers(0, width - w + 1), h, w))
                break
        else:
            windows.append((0, 0, height, width))
    return np.array(windows, np.int32)


def times(
    library: Native, images: Images, found: dict[int, list[bytes]], windows: np.ndarray, turns: int
) -> dict[int, float]:
    """The CPU time with each density relative to that without: medians of turns."""
    ratios: dict[int, list[float]] = {every: [] for every in found}
    for _ in range(turns):
        plain_s, expected = cut(library, images, None, windows)
        for every, entries in found.items():
            taken_s, crops = cut(library, images, entries, windows)
            assert (crops == expected).all(), "entry points changed a pixel"
            ratios[every].append(taken_s / plain_s)
    return {every: median(all_turns) for every, all_turns in ratios.items()}


def cut(library: Native, images: Images, entries: list[bytes] | None, windows: np.ndarray) -> tuple[float, np.ndarray]:
    """Seconds of CPU time of all crops, and the pixels."""
    calls, sums = [], []
    for at in range(0, len(images.jpegs), TOGETHER):
        part = slice(at, at + TOGETHER)
        jpegs = tf.constant(images.jpegs[part])
        own = tf.zeros(0, tf.string) if entries is None else tf.constant(entries[part])
        calls.append((jpegs, own, images.sizes[part], np.arange(len(jpegs)), windows[part], tf.zeros(0, tf.bool)))
    taken_s = 0.0
    for call in calls:
        start = time.process_time()
        crops, refused = library.crops(*call, height=SIDE, width=SIDE, channels=3, kernel=0)
        taken_s += time.process_time() - start
        kept = crops.numpy()[~refused.numpy()]
        sums.append(kept.reshape(len(kept), -1))
    return taken_s, np.concatenate(sums)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="a filelist")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--every", type=int, nargs="+", default=[4, 8, 16, 32, 255], help="MCUs")
    parser.add_argument("--turns", type=int, default=7)
    main(parser.parse_args())
