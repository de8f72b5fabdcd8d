"""What the sample order costs: python profiles/order.py lists, or python profiles/order.py rate -c CONFIG.

lists: time to the first position, and resident memory beyond TensorFlow's own, for generated filelists.
rate: images/s after the order, against from_tensor_slices(...).shuffle(...) in front of the same decode.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNTS = (1_281_167, 14_197_122)  # ImageNet-1k's and ImageNet-21k's images
FOLDER = "/lus/theta-fs0/software/datascience/ImageNet/ILSVRC/Data/CLS-LOC/train"


def lists(args: argparse.Namespace) -> None:
    """A row for each size of list, each measured in processes of its own."""
    print("| lines | time to the first position | resident, beyond TensorFlow's | a file |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for count in args.counts:
            path = Path(folder) / f"{count}.txt"
            write_list(path, count)
            runs = [one_list(path) for _ in range(args.repeats)]
            seconds = ", ".join(f"{run[0]:.2f}" for run in runs)
            held_bytes = statistics.median(run[1] for run in runs)
            held = f"{held_bytes / 1e6:.0f} MB | {held_bytes / count:.0f} bytes"
            print(f"| {count:,} | {seconds} s | {held} |", flush=True)


def write_list(path: Path, count: int) -> None:
    """Images of a thousand classes, or of as many as make 650 images a class."""
    classes = max(1000, count // 650)
    with path.open("w") as file:
        for number in range(count):
            wnid = f"n{number * classes // count + 1440764:08}"
            file.write(f"{FOLDER}/{wnid}/{wnid}_{number % 10000}.JPEG\n")


def one_list(path: Path) -> tuple[float, int]:
    """Seconds, and bytes, in a fresh process."""
    command = [sys.executable, __file__, "one", str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(out[0]), int(out[1])


def one(args: argparse.Namespace) -> None:
    """Prints seconds and bytes for one list."""
    import tensorflow as tf

    from tfpipe.config import DataConfig
    from tfpipe.data.order.stream import Stream
    from tfpipe.data.pipeline import visit
    from tfpipe.data.sources.registry import load_split
    from tfpipe.distributed import World

    # TensorFlow sets itself up with its first data set.
    next(iter(tf.data.Dataset.range(3).map(lambda x: x + 1).batch(2)))
    before = resident_bytes()
    started = time.perf_counter()
    config = DataConfig(train_filelist=args.path, layout="ilsvrc")
    split = load_split(config, "train", World())
    visits = visit(split, Stream.start(1))
    position, path = next(iter(visits.map(lambda each: (each.visit.position, each.path))))
    assert int(position) == 0 and path.numpy().startswith(FOLDER.encode())
    print(time.perf_counter() - started, resident_bytes() - before)


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rate(args: argparse.Namespace) -> None:
    """Images/s of both sources in turn, and the ratio."""
    import tensorflow as tf

    from tfpipe import World, load_config
    from tfpipe.data.order.stream import Stream
    from tfpipe.data.pipeline import visit
    from tfpipe.data.sources.registry import load_split

    data = load_config(args.config, args.set).data
    split = load_split(data, "train", World())

    def decode(path: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.cast(tf.image.resize(image, data.crop_image_size), tf.uint8)

    shuffled = (
        tf.data.Dataset.from_tensor_slices(list(split.catalog.paths))
        .shuffle(len(split.catalog))
        .repeat()
        .map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    )
    ordered = visit(split, Stream.start(1)).map(lambda each: decode(each.path), num_parallel_calls=tf.data.AUTOTUNE)
    iterators = {
        name: iter(dataset.batch(data.batch_size).prefetch(2))
        for name, dataset in (("shuffle", shuffled), ("order", ordered))
    }
    rates = {name: [] for name in iterators}
    for turn in range(args.repeats + 1):
        for name, iterator in iterators.items():
            started = time.perf_counter()
            for _ in range(args.batches):
                next(iterator)
            if turn:  # the first is for AUTOTUNE and the page cache
                rates[name].append(args.batches * data.batch_size / (time.perf_counter() - started))
    for name, values in rates.items():
        print(f"{name}: {statistics.median(values):.0f} images/s ({min(values):.0f} to {max(values):.0f})")
    ratios = [order / shuffle for order, shuffle in zip(rates["order"], rates["shuffle"], strict=True)]
    print(f"order / shuffle: median of {len(ratios)} turns {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("lists")
    command.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="lines of the lists")
    command.add_argument("--repeats", type=int, default=3)
    command.set_defaults(run=lists)
    command = commands.add_parser("one")
    command.add_argument("path", type=Path)
    command.set_defaults(run=one)
    command = commands.add_parser("rate")
    command.add_argument("-c", "--config", type=Path, required=True)
    command.add_argument("--set", action="append", default=[])
    command.add_argument("--repeats", type=int, default=11)
    command.add_argument("--batches", type=int, default=20)
    command.set_defaults(run=rate)
    chosen = parser.parse_args()
    chosen.run(chosen)
