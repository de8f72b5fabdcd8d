"""Packs images or their crops into shards, or verifies packed data.

Under mpirun or srun, all ranks share the work.
"""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import ConfigError, counted

USED_BY: dict[str, tuple[str, ...]] = {"verify": ()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("-c", "--config", type=cli.path, metavar="FILE", help="the JSON config")
    origin.add_argument(
        "--verify", type=cli.path, metavar="DIR", help="check the packed data in DIR against its checksums"
    )
    cli.add_set(parser)
    parser.add_argument("--out", type=cli.folder, metavar="DIR", help="folder to write to; an interrupted pack resumes")
    parser.add_argument(
        "--kind",
        choices=("original", "coefficients", "crops", "raw"),
        default="original",
        help="files untouched, JPEGs' coefficients, crops as JPEGs, or crops as pixels [%(default)s]",
    )
    cli.add_split(parser)
    parser.add_argument(
        "--shards", type=cli.whole(1), metavar="N", help="shards [one per 1252 training or 391 test images]"
    )
    parser.add_argument(
        "--quality", type=cli.whole(1, 100), default=95, metavar="Q", help="JPEG quality of crops [%(default)s]"
    )


def run(args: argparse.Namespace) -> None:
    if args.verify is not None:
        from tfpipe.data.sources.packed.manifest import verify

        print(verify(args.verify))
        return
    if args.out is None:
        raise ConfigError("--out is missing: the folder to pack into")
    config = cli.read_config(args).data
    with cli.quiet_tensorflow(args):
        world = cli.launched_world(cli.shared_arguments(args, config))
        from tfpipe.prepare.pack import PackPlan, pack

        plan = PackPlan(args.kind, args.shards, args.quality)
        for split in cli.splits(args.split, config):
            summary = pack(config, split, args.out.resolve(), plan, world)
            if world.rank == 0:
                print(
                    f"{summary.path}: {counted(summary.images, 'image')}, {counted(summary.records, 'record')} in "
                    f"{counted(summary.shards, 'shard')}, {summary.bytes / 1e6:.1f} MB"
                )
