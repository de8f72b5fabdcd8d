"""Finds faster settings of the input pipeline, by sweeping a few keys for a few minutes.

It changes neither pixels nor order, and prints the arguments (--set) to use, with what each value gave; nothing if no
value is faster than the one given.
"""

import argparse
import os
from functools import partial

from tfpipe.cli import arguments as cli
from tfpipe.collectives.launch import find_launch
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    parser.add_argument("--minutes", type=cli.positive, default=4.0, metavar="M", help="time it takes [%(default)g]")
    parser.add_argument(
        "--pipeline-only", action="store_true", help="do not train: leave data.threads, for a model of your own"
    )
    cli.add_epoch(parser)
    cli.add_json(parser, "all measurements")


def run(args: argparse.Namespace) -> None:
    load = partial(cli.read_sized, args)
    cli.check_data(load([]).data)
    launch = find_launch()
    if launch is not None and (launch.size or 2) > 1:
        raise ConfigError("tfpipe tune measures one rank: leave out the launcher")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with cli.quiet_tensorflow(args):
        world = World.detect(horovod=False)
        from tfpipe.tools.bench import sweep

        if not args.pipeline_only:
            cli.prepare_devices(world)
        tuning = sweep.tune(load, world, args.minutes, not args.pipeline_only)
    print(sweep.render_tuning(tuning))
    cli.write_json(args.json, sweep.tuning_as_json(tuning))
