"""Measures the input pipeline: images/s, this machine's limit, and the bottleneck.

With --stages, it also measures the cost of each stage. With --sweep, it measures the pipeline at several values of a
key, and names the value after which nothing is won. Under mpirun, srun or aprun, it measures all ranks together, in
turns with one of them alone.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

from tfpipe.cli import arguments as cli
from tfpipe.collectives.launch import find_launch
from tfpipe.data.runtime.tracing import trace_folder
from tfpipe.distributed import World

USED_BY = {"sweep": ("config", "set", "headspace", "epoch", "seconds", "repeats", "json")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    group = parser.add_argument_group("what to measure")
    group.add_argument("--stages", action="store_true", help="also measure the chain up to each stage")
    group.add_argument(
        "--headspace", action="store_true", help="also measure a training step, and the most that faster input gains"
    )
    group.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="measure the pipeline at each value of a key of the data section, and find the value after which nothing "
        "is won; with data.threads or --headspace a training step; may be given twice",
    )
    cli.add_epoch(group)
    group.add_argument(
        "--seconds", type=cli.positive, default=10.0, metavar="S", help="time of a measurement [%(default)g]"
    )
    group.add_argument(
        "--repeats", type=cli.whole(1), default=5, metavar="N", help="segments per measurement [%(default)s]"
    )
    group = parser.add_argument_group("what to write")
    cli.add_json(group, "all raw numbers")
    cli.add_profile(group, "batches of the pipeline alone")
    group.add_argument("-l", "--logdir", type=cli.folder, metavar="DIR", help="trace's folder [runs/bench-NAME-TIME]")


def run(args: argparse.Namespace) -> None:
    from tfpipe.tools.bench.axes import Axis, settings_of

    config, launch = cli.read_sized(args), find_launch()
    if launch is None or launch.rank == 0:
        cli.check_data(config.data)
    axes = [Axis.parse(text) for text in args.sweep]
    settings = settings_of(axes, partial(cli.read_sized, args)) if axes else {}
    # A user's ~/.keras may name another backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with cli.quiet_tensorflow(args):
        world = World.detect(horovod=False) if launch is None or launch.size == 1 else World.mpi()
        world.agree(cli.shared_arguments(args, config))
        from tfpipe.tools.bench import bench, ranks, sweep
        from tfpipe.tools.bench.text import as_json, render

        if args.headspace or args.sweep:
            cli.prepare_devices(world)
        plan = bench.BenchPlan(args.seconds, args.repeats, args.stages, args.headspace)
        if args.sweep:
            swept = sweep.run(axes, settings, world, plan)
            text, numbers = sweep.render(swept), sweep.as_json(swept)
        else:
            report: bench.Report | ranks.RanksReport
            report = ranks.run(config, world, plan) if world.size > 1 else bench.run(config, world, plan)
            if args.profile is not None:
                folder = args.logdir or Path("runs") / f"bench-{args.config.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
                bench.trace(config, world, args.profile, trace_folder(folder, world))
            if world.rank > 0:
                return
            text, numbers = render(report), as_json(report)
    print(text)
    cli.write_json(args.json, numbers)
