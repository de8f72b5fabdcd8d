"""What entry points, by their density, and coefficients save: python profiles/entries.py LIST [--every 4 8 16 32 255].

CPU time of decoding in C, one thread, for a RandomResizedCrop to 224 of at least 8 % or 25 % of an image, and for the
whole image, relative to that of the file alone, in turns; and the bytes that they take. All crops are compared with
those of the file alone.
"""

import argparse
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.images.crops import ALL
from tfpipe.data.images.headers import header_of
from tfpipe.native import Native, decoder_name, native

SIDE = 224
SHARES = {"RandomResizedCrop of 8 % or more": 0.08, "of 25 % or more": 0.25, "whole image": None}
TOGETHER = 32  # images in a call, as in a pipeline


class Form(NamedTuple):
    """Images in one form."""

    files: list[bytes]  # JPEGs, or their coefficients
    entries: list[bytes]  # their entry points; [] for none
    share: float  # bytes of the entry points or of the coefficients, relative to the JPEGs'


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    library = native()
    jpegs = [Path(path).read_bytes() for path in islice(read_filelist(args.list), args.images)]
    sizes = np.array([header_of(jpeg, "")[:2] for jpeg in jpegs], np.int32)
    windows = {name: windows_of(sizes, share) for name, share in SHARES.items()}
    forms = forms_of(library, jpegs, args.every)
    ratios = {name: times(library, forms, sizes, chosen, args.turns) for name, chosen in windows.items()}
    print(f"| {len(jpegs)} images; {decoder_name()} | bytes, relative to the files' | {' | '.join(SHARES)} |")
    print(f"|---|---|{'---|' * len(SHARES)}")
    for name, form in forms.items():
        print(f"| {name} | {form.share:.4f} | {' | '.join(f'{ratios[window][name]:.2f}' for window in SHARES)} |")


def forms_of(library: Native, jpegs: list[bytes], densities: list[int]) -> dict[str, Form]:
    """The files, first alone, then with entry points of several densities; and their coefficients."""
    total, forms = sum(map(len, jpegs)), {"the file": Form(jpegs, [], 0)}
    start = time.process_time()
    for every in densities:
        entries = [library.entries(jpeg, every) for jpeg in jpegs]
        forms[f"with an entry point every {every} MCUs"] = Form(jpegs, entries, sum(map(len, entries)) / total)
    find_ms = (time.process_time() - start) / max(1, len(densities)) / len(jpegs) * 1e3
    start = time.process_time()
    stored = [library.store(jpeg) or jpeg for jpeg in jpegs]
    store_ms = (time.process_time() - start) / len(jpegs) * 1e3
    forms["coefficients"] = Form(stored, [], sum(map(len, stored)) / total)
    print(f"CPU time an image: {find_ms:.2f} ms to find entry points, {store_ms:.2f} ms to store coefficients.\n")
    return forms


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
    library: Native, forms: dict[str, Form], sizes: np.ndarray, windows: np.ndarray, turns: int
) -> dict[str, float]:
    """The CPU time of each form relative to that of the first: medians of turns."""
    ratios: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(turns):
        results = {name: cut(library, form, sizes, windows) for name, form in forms.items()}
        first_s, expected = next(iter(results.values()))
        for name, (taken_s, crops) in results.items():
            assert all(map(np.array_equal, crops, expected)), f"{name}: another pixel"
            ratios[name].append(taken_s / first_s)
    return {name: median(all_turns) for name, all_turns in ratios.items()}


def cut(library: Native, form: Form, sizes: np.ndarray, windows: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """Seconds of CPU time of all crops, and those of each call that are not refused."""
    taken_s, cut_out = 0.0, []
    for at in range(0, len(form.files), TOGETHER):
        part = slice(at, at + TOGETHER)
        files, entries = tf.constant(form.files[part]), tf.constant(form.entries[part], tf.string)
        crops = [tf.raw_ops.Empty(shape=[len(files), SIDE, SIDE, 3], dtype=tf.uint8)]
        call = files, entries, sizes[part], np.arange(len(files)), windows[part], tf.zeros(0, tf.bool), ALL, crops
        start = time.process_time()
        (crops,), refused = library.crops(*call, targets=[SIDE, SIDE, -1, 0, 0], channels=3, kernel=0)
        taken_s += time.process_time() - start
        cut_out.append(crops.numpy()[~refused.numpy()])
    return taken_s, cut_out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="a filelist")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--every", type=int, nargs="+", default=[4, 8, 16, 32, 255], help="MCUs")
    parser.add_argument("--turns", type=int, default=7)
    main(parser.parse_args())
