"""Indexes all boxes (of XMLs or a table) and image headers for training, or verifies an index.

With --entry-points, finds places in the JPEGs at which decoding can start, so that training need not parse what no crop
needs. Under mpirun or srun, all ranks share the work. An interrupted build continues where it ended.
"""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import counted

USED_BY = {"verify": ("config", "set", "split")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    cli.add_split(parser)
    cli.add_processes(parser)
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--verify", action="store_true", help="compare files with the index instead, by size and time of change"
    )
    other.add_argument(
        "--entry-points",
        action="store_true",
        help="find entry points instead, next to which training starts to decode; for data of any kind",
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.prepare.entries import build_entries
    from tfpipe.prepare.index import build_index, verify_index

    config = cli.read_config(args).data
    world = cli.launched_world(cli.shared_arguments(args, config))
    for split in cli.splits(args.split, config):
        if args.entry_points:
            done = build_entries(config, split, world, args.processes)
            share = done.entries_bytes / max(1, done.images_bytes)
            message = (
                f"{done.path}: entry points of {done.with_entries} of {done.images} images, "
                f"{done.entries_bytes / max(1, done.with_entries):.0f} bytes each, {share:.1%} of the images' bytes"
            )
        elif args.verify:
            message = verify_index(config, split) if world.rank == 0 else ""
        else:
            stats = build_index(config, split, world, args.processes)
            odd = ", ".join(f"{count} {code}" for code, count in stats.odd.items()) or "nothing odd"
            images, boxes = counted(stats.images, "image"), counted(stats.boxes, "box")
            message = f"{stats.path}: {images} ({stats.annotated} annotated), {boxes}; {odd}"
        if world.rank == 0:
            print(message)
