"""Finds faster settings of the input pipeline, by measuring them in turns for a few minutes.

It changes neither pixels nor order, and prints the arguments (--set) to use, with what each change gave; nothing if no
setting is faster than the one given.
"""

import argparse
import os
from functools import partial

from tfpipe.cli.arguments import (
    add_config,
    add_epoch,
    add_html,
    add_json,
    check_html,
    quiet_tensorflow,
    read_sized,
    write_json,
)
from tfpipe.collectives.launch import find_launch
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--minutes", type=float, default=4.0, metavar="M", help="time to take, about [%(default)g]")
    parser.add_argument(
        "--pipeline-only", action="store_true", help="do not train: leave data.cpu_fraction, for a model of your own"
    )
    add_epoch(parser)
    add_html(parser, "the arguments to use, the trials as a figure, and what is printed")
    add_json(parser, "all trials")


def run(args: argparse.Namespace) -> None:
    from tfpipe.data.sources.registry import open_source

    check_html(args)
    load = partial(read_sized, args)
    open_source(load([]).data).check()
    launch = find_launch()
    if launch is not None and (launch.size or 2) > 1:
        raise ConfigError("tfpipe tune measures one rank: leave out the launcher")
    if not 0 < args.minutes < 1e4:
        raise ConfigError(f"--minutes must be above 0, received {args.minutes:g}")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with quiet_tensorflow(args):
        world = World.detect(horovod=False)
        from tfpipe.tools.tune import tune

        if not args.pipeline_only:
            from tfpipe.training.devices import check_gpus, configure_devices

            configure_devices(world)
            check_gpus(world)
        tuning = tune.run(load, world, args.minutes, not args.pipeline_only)
    print(tune.render(tuning, args.config))
    if args.json is not None:
        write_json(args.json, tune.as_json(tuning))
    if args.html is not None:
        from tfpipe.tools.page.page import Given, write
        from tfpipe.tools.tune.page import page

        write(page(tuning, Given("tune", args.config, args.set)), args.html)
