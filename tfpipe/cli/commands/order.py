"""Prints the samples that a rank visits in an epoch, one per line.

Tabs separate the columns: the stream position, the image's index in the filelist, the index of its box (with data.unit
"box"; otherwise "-", all boxes) and its path.
"""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    parser.add_argument("--epoch", type=cli.whole(0), default=0, metavar="N", help="epoch, from 0 [%(default)s]")
    parser.add_argument("--rank", type=cli.whole(0), default=0, metavar="R", help="rank, from 0 [%(default)s]")
    parser.add_argument("--size", type=cli.whole(1), default=1, metavar="N", help="number of ranks [%(default)s]")
    parser.add_argument("--head", type=cli.whole(0), metavar="N", help="print only the first N samples")


def run(args: argparse.Namespace) -> None:
    import numpy as np

    from tfpipe.data.sources.registry import load_split

    if args.rank >= args.size:
        raise ConfigError(f"--rank must be below --size, received {args.rank} of {args.size}")
    config, world = cli.read_config(args).data, World(args.rank, args.size)
    split = load_split(config, "train", world)
    catalog = split.catalog
    positions = np.array(split.order.positions(args.epoch, world)[: args.head], np.int64)
    items = split.order.items(positions, world)
    for position, item in zip(positions, items, strict=True):
        image, box = catalog.image_and_box(int(item))
        print(position, image, "-" if box is None else box, catalog.paths[image], sep="\t")
