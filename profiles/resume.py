"""Measures what `tfpipe train` gains by reading while it restores a checkpoint: the time to the first step.

    [TFPIPE_STORAGE_DELAY_MS=200] python profiles/resume.py -c CONFIG [--turns 3]

Trains an epoch of two steps; then resumes in turns, as `tfpipe train` does, and with a pipeline that reads nothing
before its first batch is asked for. Prints the median seconds from the loaded state to the first batch that a resumed
run trains, and how long it waited for that batch.
"""

import argparse
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import tensorflow as tf

from tfpipe import Loader, World, load_config
from tfpipe.config import Config
from tfpipe.data import pipeline
from tfpipe.data.runtime.parallelism import options
from tfpipe.training import loop


class FirstBatchError(Exception):
    """Ends a run when it has its first batch."""


def first_batch_s(config: Config, run: Path, *, early: bool) -> tuple[float, float]:
    """Resumes a copy of a run; returns seconds from its state to its first batch, and seconds waited for the batch."""
    take, start, marks = Loader.__next__, Loader.start, dict[str, float]()

    def starts(loader: Loader) -> None:
        marks["state"] = time.perf_counter()
        if early:
            start(loader)

    def takes(loader: Loader) -> None:
        began_s = time.perf_counter()
        take(loader)
        marks.update(asked=began_s, taken=time.perf_counter())
        loader.close()
        raise FirstBatchError

    def plain(*args: Any) -> tf.data.Options:
        result = options(*args)
        result.experimental_warm_start = early
        return result

    patches = mock.patch.multiple(Loader, start=starts, __next__=takes), mock.patch.object(pipeline, "options", plain)
    with tempfile.TemporaryDirectory() as folder, patches[0], patches[1]:
        shutil.copytree(run, folder, dirs_exist_ok=True)
        with suppress(FirstBatchError):
            loop.train(config, World(), Path(folder), resume=True)
    return marks["taken"] - marks["state"], marks["taken"] - marks["asked"]


def main(args: argparse.Namespace) -> None:
    """Prints the times of both ways."""
    base = [*args.set, "training.steps_per_epoch=2"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        loop.train(load_config(args.config, [*base, "training.epochs=1"]), World(), run)
        config = load_config(args.config, [*base, "training.epochs=2"])
        turns = [[first_batch_s(config, run, early=early) for early in (True, False)] for _ in range(args.turns)]
    for number, name in enumerate(("ahead", "on demand")):
        total_s, wait_s = (median(turn[number][part] for turn in turns) for part in (0, 1))
        print(f"{name}: first batch after {total_s:.2f} s, of which it was waited for {wait_s:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--turns", type=int, default=3)
    main(parser.parse_args())
