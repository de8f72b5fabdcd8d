"""Trains a Keras model; under mpirun, srun or aprun on all ranks."""

import argparse
import json
from functools import partial
from typing import cast

from tfpipe.cli import arguments as cli
from tfpipe.collectives.launch import find_launch
from tfpipe.config import Config
from tfpipe.distributed import RUNS, Choice, World
from tfpipe.errors import ConfigError
from tfpipe.util.process import without_collections


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to train")
    cli.add_config(group)
    group.add_argument("-n", "--nsteps", type=cli.whole(1), metavar="N", help="train a single epoch of N steps")

    group = parser.add_argument_group("where the run is kept, and how it continues")
    group.add_argument("-l", "--logdir", type=cli.folder, metavar="DIR", help="the run's directory [runs/NAME-TIME]")
    group.add_argument(
        "--resume",
        nargs="?",
        choices=("must", "auto"),
        const="must",
        help="continue the run in --logdir, with any number of ranks; auto: start a new run if it has no checkpoint",
    )
    group.add_argument(
        "--resume-anyway",
        action="store_true",
        help="continue the run even if its filelist, batch size, seed ... differ from the config's",
    )

    group = parser.add_argument_group("ranks and threads")
    group.add_argument(
        "--horovod",
        action=argparse.BooleanOptionalAction,
        help="connect the ranks with Horovod, or train this process alone [training.collectives, if a launcher started "
        "several ranks]",
    )
    group.add_argument(
        "--interop",
        type=cli.whole(1),
        metavar="N",
        help="threads of the input pipeline, as --set data.threads=N, and of TensorFlow between ops [a rank's CPUs]",
    )
    group.add_argument(
        "--intraop", type=cli.whole(1), metavar="N", help="TensorFlow's threads within an op of the model [its CPUs]"
    )

    group = parser.add_argument_group("profiling")
    cli.add_profile(group, "steps of this run, counted from 0")
    group.add_argument(
        "--profile-ranks",
        type=cli.ranks,
        default=(0,),
        metavar="R,R",
        help='ranks that trace, e.g. 0,3, or "all" [0]; rank 3 writes to rank-3 in the run\'s directory',
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.training.checkpointing.signals import end_on_early_signal

    end_on_early_signal()  # before the imports, which take seconds
    from tfpipe.training.checkpointing.run_dir import check_run_dir, choose_run_dir, run_lock

    check_agreement(args)
    one_epoch = [] if args.nsteps is None else ["training.epochs=1", f"training.steps_per_epoch={args.nsteps}"]
    # TensorFlow's setting reaches neither tf.data's own pool nor a private one.
    args.set[:0] = [] if args.interop is None else [f"data.threads={args.interop}"]
    config = cli.read_config(args, one_epoch)
    launch = find_launch()
    if launch is None or launch.rank == 0:
        # Before TensorFlow loads. The other ranks report an error only after all are connected: Open MPI's mpirun may
        # hang if one rank exits while another connects.
        check_run_dir(args.logdir, args.resume)
        cli.check_data(config.data, test=True)
    backend = cli.choose_backend()
    with cli.quiet_tensorflow(args):
        folder = RUNS if args.logdir is None else args.logdir.absolute().parent
        world = World.detect(args.horovod, choose_collectives(config, backend, args.horovod), folder)
        with without_collections():
            from tfpipe.training import loop
            from tfpipe.training.devices import configure_devices
            from tfpipe.training.monitor.metrics import end_run, recorded_failures
            from tfpipe.training.monitor.peers import watch_peers

        configure_devices(world, args.interop, args.intraop)
        # Before anything that depends on them. Horovod's collectives start TensorFlow, which is then configured.
        world.agree(cli.shared_arguments(args, config) | {"KERAS_BACKEND": backend})
        world = world.dividing_cpus()
    run_dir = choose_run_dir(args.logdir, args.config, world, args.resume)
    window = args.profile if args.profile_ranks is None or world.rank in args.profile_ranks else None
    watch = watch_peers(world, partial(end_run, run_dir, world), limit_s=config.data.stall_timeout_s)
    with watch, run_lock(run_dir, world), recorded_failures(run_dir, world):
        if world.size > 1 and world.collectives is not None:
            world.tensors.start()
        loop.train(config, world, run_dir, args.resume is not None, args.resume_anyway, window)
    if world.rank == 0:
        print(f"the run is in {run_dir}: metrics.jsonl, model.keras; tensorboard --logdir {run_dir}")


def choose_collectives(config: Config, backend: str, horovod: bool | None) -> Choice:
    """Returns the collectives for Keras' backend; `horovod` is --horovod.

    Raises ConfigError if a launcher has started several ranks, which the collectives asked for cannot connect.
    """
    chosen, launch = config.training.collectives, find_launch()
    several = horovod is True or (launch is not None and launch.size != 1 and horovod is None)
    accepted = ("auto", "horovod", "mpi", "tensorflow") if backend == "tensorflow" else ("auto", backend)
    if several and (chosen not in accepted or (horovod and backend != "tensorflow")):
        asked = "--horovod" if horovod else f'training.collectives "{chosen}"'
        raise ConfigError(
            f'{asked} does not connect the ranks of KERAS_BACKEND={backend}: set training.collectives to "auto", or to '
            f"{' or '.join(map(json.dumps, accepted[1:]))}{', without --horovod' if horovod else ''}; or set "
            f"KERAS_BACKEND to {chosen if chosen in ('jax', 'torch') else 'tensorflow'}"
        )
    return cast(Choice, backend) if chosen == "auto" and backend != "tensorflow" else chosen


def check_agreement(args: argparse.Namespace) -> None:
    """Checks that no argument is ignored because of another one, or for want of it. Raises ConfigError."""
    for flag, given, keys in (
        ("--nsteps", args.nsteps, ("training", "training.epochs", "training.steps_per_epoch")),
        ("--interop", args.interop, ("data", "data.threads")),
    ):
        if both := [text for text in args.set if given is not None and text.partition("=")[0] in keys]:
            raise ConfigError(f"{flag} {given} and --set {both[0]} set the same key: leave one of them out")
    if args.resume_anyway and args.resume is None:
        raise ConfigError("--resume-anyway says how to continue a run, and --resume, which continues it, is missing")
    if args.profile is None and args.profile_ranks != (0,):
        raise ConfigError("--profile-ranks says which ranks trace, and --profile FIRST:END, the steps, is missing")
