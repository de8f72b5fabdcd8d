"""Seconds to the first batch of as many images as ImageNet has, indexed: python profiles/first_batch.py -c CONFIG.

The list names the images of the config's training list over and over. No two of its lines are equal: what differs is
in how many "/" and "./" stand between the first two folders. List and index are made once if --out is given.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

COUNT = 1_281_167
PARTS = ("catalog", "build", "first batch")


def main(args: argparse.Namespace) -> None:
    """Makes list and index, and prints a row for each fresh process, then their median."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or Path(temporary)
        path = folder / f"train-{args.count}.txt"
        settings = [*args.set, f"data.train_filelist={path.absolute()}", "data.index=null", "data.annotations=index"]
        make(args, path, settings)
        command = [sys.executable, __file__, "-c", str(args.config), "--one"]
        command += [word for setting in settings for word in ("--set", setting)]
        print(f"| {args.count:,} lines | {' | '.join(PARTS)} | together |\n|---|---|---|---|---|")
        runs = []
        for number in range(args.repeats):
            out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            runs.append([float(word) for word in out.split()])
            print_row(f"process {number + 1}", runs[-1])
        print_row("median", [statistics.median(run) for run in zip(*runs, strict=True)])


def print_row(name: str, seconds: list[float]) -> None:
    """A row of the table."""
    print(f"| {name} | {' | '.join(f'{each:.2f} s' for each in seconds)} |", flush=True)


def make(args: argparse.Namespace, path: Path, settings: list[str]) -> None:
    """Writes the list at `path` and its index, unless they are there."""
    from tfpipe.config import load_config
    from tfpipe.data.catalog.filelist import read_filelist, write_filelist
    from tfpipe.data.catalog.lists import index_path
    from tfpipe.distributed import World
    from tfpipe.prepare.index import build_index

    if not path.exists():
        images = list(read_filelist(load_config(args.config, args.set).data.train_filelist))
        digits = (args.count // len(images)).bit_length()
        lines = (spelt(images[number % len(images)], number // len(images), digits) for number in range(args.count))
        write_filelist(path, lines)
    data = load_config(args.config, settings).data
    if not index_path(data, path).exists():
        started = time.perf_counter()
        build_index(data, "train", World())
        print(f"the index took {time.perf_counter() - started:.0f} s to build\n", flush=True)


def spelt(path: str, number: int, digits: int) -> str:
    """An absolute path, spelt in its way `number` of 2 ** `digits`."""
    _, first, rest = path.split("/", 2)
    return f"/{first}/{''.join('./' if number >> digit & 1 else '/' for digit in range(digits))}{rest}"


def one(args: argparse.Namespace) -> None:
    """Prints the seconds of each part, and of all, from TensorFlow's import on."""
    import tensorflow  # noqa: F401

    times = [time.perf_counter()]
    from tfpipe import World, build_dataset, load_config
    from tfpipe.data.sources.registry import load_catalog

    config = load_config(args.config, args.set)
    catalog = load_catalog(config.data, "train", World())
    times.append(time.perf_counter())
    dataset = build_dataset(config, "train", World(), catalog=catalog)
    times.append(time.perf_counter())
    images, _ = next(iter(dataset))
    times.append(time.perf_counter())
    assert len(images) == config.data.batch_size
    print(*(after - before for before, after in pairwise(times)), times[-1] - times[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, help="folder to keep list and index in")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    (one if chosen.one else main)(chosen)
