"""What taking batches to PyTorch costs: python profiles/torch_batches.py -c CONFIG.

The same batch again and again from memory, in turns: from tf.data, through tfpipe.torch.iterable, and through a
DataLoader around that. Prints the microseconds of CPU that the loop's thread takes for each, and what was copied.
"""

import argparse
import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

import tfpipe.torch

import tensorflow as tf  # isort: skip  # after tfpipe.torch, which says why


def main(args: argparse.Namespace) -> None:
    """Prints both."""
    config = tfpipe.load_config(args.config, args.set)
    batch = next(iter(tfpipe.build_dataset(config, with_positions=True)))
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    batches = tfpipe.torch.iterable(dataset)
    ways = {"tf.data": dataset, "iterable": batches, "DataLoader": DataLoader(batches, batch_size=None)}
    turns = [{name: microseconds(way, args.batches) for name, way in ways.items()} for _ in range(args.turns)]
    print(
        f"batches of {tuple(batch[0].shape)}, {np.asarray(batch[0]).nbytes / 1e6:.1f} MB; microseconds a batch, least:"
    )
    for name in ways:
        print(f"  {name:<10} {min(turn[name] for turn in turns):4.0f}")
    for name, ours, theirs in zip(("images", "labels", "positions"), next(iter(batches)), batch, strict=True):
        shared = ours.data_ptr() == np.asarray(memoryview(theirs)).ctypes.data
        print(f"{name}: {'the same memory' if shared else 'copied'}")


def microseconds(batches: Iterable, count: int) -> float:
    """Of CPU in this thread, a batch."""
    iterator = iter(batches)
    next(iterator)
    began = time.thread_time()
    for _ in itertools.islice(iterator, count):
        pass
    return (time.thread_time() - began) / count * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2000)
    main(parser.parse_args())
