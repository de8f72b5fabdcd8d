"""Indexes all boxes (of XMLs or a table) and image headers for training, or verifies an index.

Under mpirun or srun, all ranks share the work. An interrupted build continues where it ended.
"""

import argparse

from tfpipe.cli.arguments import add_config, add_processes, add_split, launched_world, read_config, splits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_split(parser)
    add_processes(parser)
    parser.add_argument(
        "--verify", action="store_true", help="compare files with the index instead, by size and time of change"
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.prepare.index import build_index, verify_index

    config = read_config(args).data
    world = launched_world()
    for split in splits(args.split, config):
        if args.verify:
            if world.rank == 0:
                print(verify_index(config, split))
            continue
        stats = build_index(config, split, world, args.processes)
        if world.rank == 0:
            odd = ", ".join(f"{count} {code}" for code, count in stats.odd.items()) or "nothing odd"
            print(f"{stats.path}: {stats.images} images ({stats.annotated} annotated), {stats.boxes} boxes; {odd}")
