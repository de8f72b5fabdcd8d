"""Trains a Keras model; under mpirun, srun or aprun on all ranks."""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from tfpipe.cli.arguments import add_config, add_profile, quiet_tensorflow, ranks, read_config, whole
from tfpipe.distributed import World, find_launch
from tfpipe.errors import ConfigError

BACKENDS = ("tensorflow", "jax", "torch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to train")
    add_config(group)
    group.add_argument("-n", "--nsteps", type=whole(1), metavar="N", help="train a single epoch of N steps")

    group = parser.add_argument_group("where the run is kept, and how it continues")
    group.add_argument("-l", "--logdir", type=Path, metavar="DIR", help="the run's directory [runs/NAME-TIME]")
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
        help="connect the ranks with Horovod, or train without it [with it if a launcher started several ranks]",
    )
    group.add_argument(
        "--interop",
        type=whole(1),
        metavar="N",
        help="threads of the input pipeline, as --set data.threads=N, and of TensorFlow between ops [a rank's CPUs]",
    )
    group.add_argument(
        "--intraop", type=whole(1), metavar="N", help="TensorFlow's threads within an op of the model [a rank's CPUs]"
    )

    group = parser.add_argument_group("profiling")
    add_profile(group, "steps of this run, counted from 0")
    group.add_argument(
        "--profile-ranks",
        type=ranks,
        default=(0,),
        metavar="R,R",
        help='ranks that trace, e.g. 0,3, or "all" [0]; rank 3 writes to rank-3 in the run\'s directory',
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.data.sources.registry import open_source

    check_agreement(args)
    one_epoch = [] if args.nsteps is None else ["training.epochs=1", f"training.steps_per_epoch={args.nsteps}"]
    # TensorFlow's setting reaches neither tf.data's own pool nor a private one.
    args.set[:0] = [] if args.interop is None else [f"data.threads={args.interop}"]
    config = read_config(args, one_epoch)
    launch = find_launch()
    if launch is None or launch.rank == 0:
        # Before TensorFlow loads. The other ranks report an error only after all are connected: Open MPI's mpirun may
        # hang if one rank exits while another connects.
        open_source(config.data).check(test=True)
    backend = choose_backend()
    with quiet_tensorflow(args):
        world = World.detect(args.horovod)
        import tensorflow as tf

        from tfpipe.training import loop
        from tfpipe.training.checkpointing.start import choose_run_dir, run_lock
        from tfpipe.training.monitor.peers import watch_peers

        if backend != "tensorflow":
            tf.config.set_visible_devices([], "GPU")  # they are the backend's: TensorFlow would take their memory
        loop.configure_devices(world, args.interop, args.intraop)
    run_dir = choose_run_dir(args.logdir, args.config, world, args.resume)
    window = args.profile if args.profile_ranks is None or world.rank in args.profile_ranks else None
    with watch_peers(world), run_lock(run_dir, world):
        loop.train(config, world, run_dir, args.resume is not None, args.resume_anyway, window)
    if world.rank == 0:
        print(f"the run is in {run_dir}: metrics.jsonl, model.keras; tensorboard --logdir {run_dir}")


def check_agreement(args: argparse.Namespace) -> None:
    """Checks that no argument is ignored because of another one, or for want of it. Raises ConfigError."""
    for flag, given, keys in (
        ("--nsteps", args.nsteps, ("training", "training.epochs", "training.steps_per_epoch")),
        ("--interop", args.interop, ("data", "data.threads")),
    ):
        both = [text for text in args.set if given is not None and text.partition("=")[0] in keys]
        if both:
            raise ConfigError(f"{flag} {given} and --set {both[0]} set the same key: leave one of them out")
    if args.resume_anyway and args.resume is None:
        raise ConfigError("--resume-anyway says how to continue a run, and --resume, which continues it, is missing")
    if args.profile is None and args.profile_ranks != (0,):
        raise ConfigError("--profile-ranks says which ranks trace, and --profile FIRST:END, the steps, is missing")


def choose_backend() -> str:
    """Returns the backend of Keras that KERAS_BACKEND names, TensorFlow's by default; must come before TensorFlow.

    A user's ~/.keras may name another one, which other programs want. Raises ConfigError if it cannot be used.
    """
    name = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if name not in BACKENDS:
        raise ConfigError(f'KERAS_BACKEND is "{name}"; accepted: {", ".join(BACKENDS)}')
    if find_spec(name) is None:
        raise ConfigError(f"KERAS_BACKEND={name} needs the package {name}, which is not installed")
    if name == "torch":
        from tfpipe.interop.triton import load_triton

        load_triton()
    return name
