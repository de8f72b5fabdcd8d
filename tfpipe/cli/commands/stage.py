"""Copies a filelist's data, or packed data, to a local disk before a job.

Under mpirun or srun, it copies to each node's own disk. With data.scope "shard", each node gets only its ranks' share
of loose files.
"""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import ConfigError, counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    parser.add_argument("--out", type=cli.folder, required=True, metavar="DIR", help="folder to copy to")
    parser.add_argument(
        "--share", type=cli.share, metavar="RANK/SIZE", help="copy only the images of one rank; the lists stay complete"
    )
    cli.add_split(parser, default="all")


def run(args: argparse.Namespace) -> None:
    from tfpipe.data.catalog.filelist import check_filelists
    from tfpipe.prepare.stage import Share, stage

    config = cli.read_config(args).data
    facts = cli.shared_arguments(args, config)
    del facts["--out"]  # each node has a disk of its own
    world = cli.launched_world(facts)
    if args.share is not None and world.size > 1:
        raise ConfigError("--share is of one process: leave it out under a launcher, where each rank has its own")
    check_filelists([*config.train_lists, config.test_filelist])
    staged = stage(config, cli.splits(args.split, config), args.out, world, args.share and Share(*args.share))
    if world.rank == 0:
        copied = staged.copied
        files = counted(copied.files, "file")
        print(f"{args.out}: {files} copied ({copied.bytes / 1e6:.1f} MB), {copied.there} already there")
        if args.share is not None:
            print('the lists are whole, the images those of the share: for data.scope "shard" with as many ranks')
        print(cli.trained_from(staged.overrides))
