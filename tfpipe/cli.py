"""The command line: one subcommand, one function."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from tfpipe.config import Config, load_config
from tfpipe.console import configure_logging, without_chatter
from tfpipe.distributed import World, find_launch
from tfpipe.errors import ConfigError, Stopped, TfpipeError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    0; 1 for a failure, 2 for unusable input, 75 when training was told to stop and has saved its state, 130 when
    interrupted elsewhere.
    """
    args = _parser().parse_args(argv)
    launch = find_launch()
    rank = launch.rank if launch else 0
    configure_logging(rank, args.debug)
    try:
        args.run(args)
    except Stopped as stopped:
        if rank == 0:
            print(f"tfpipe: {stopped}", file=sys.stderr, flush=True)
        return stopped.exit_code
    except TfpipeError as error:
        if args.debug:
            raise
        return _fail(str(error), error.exit_code, rank)
    except BrokenPipeError:
        # As when read by `head`; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return _fail("interrupted", 130, rank)
    except Exception as error:
        if "Horovod has been shut down" not in str(error):
            raise
        # The rank at fault is about to say why, and then the launcher ends this one here.
        time.sleep(10)
        return _fail("another rank has stopped", 1, rank)
    return 0


def _fail(message: str, code: int, rank: int) -> int:
    if code == ConfigError.exit_code and rank > 0:
        # Most likely every rank has met the same; rank 0 says so, and then the launcher ends this one here.
        time.sleep(2)
        message = f"rank {rank}: {message}"
    print(f"tfpipe: error: {message}", file=sys.stderr, flush=True)
    return code


def train(args: argparse.Namespace) -> None:
    """Trains; the same command under mpirun, srun or aprun trains on all ranks."""
    from tfpipe.data.filelist import check_filelists

    config = _config(args)
    launch = find_launch()
    if launch is None or launch.rank == 0:
        # Before TensorFlow is loaded. Other ranks meet a mistake once all are connected: Open MPI's mpirun may hang
        # for ever when one exits while another is about to connect.
        check_filelists([config.data.train_filelist, config.data.test_filelist])
    # A user's ~/.keras may name another backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        world = World.detect(args.horovod)
        from tfpipe.training import loop
        from tfpipe.training.start import choose_run_dir

        loop.configure_devices(world, args.interop, args.intraop)
    run_dir = choose_run_dir(args.logdir, args.config, world, args.resume)
    loop.train(config, world, run_dir, args.resume is not None, args.resume_anyway)
    if world.rank == 0:
        print(f"the run is in {run_dir}: metrics.jsonl, model.keras; tensorboard --logdir {run_dir}")


def sample(args: argparse.Namespace) -> None:
    """Makes a small data set in ImageNet's layout."""
    from tfpipe.tools.sample import write_sample

    made = write_sample(args.out, args.images, args.val, args.scale, args.seed)
    print(
        f"{args.out}: {made.train_images} training images ({made.annotated_train_images} with an XML, "
        f"{made.train_boxes} boxes), {made.val_images} validation images, {made.classes} classes, "
        f"{made.bytes / 1e6:.1f} MB"
    )


def filelist(args: argparse.Namespace) -> None:
    """Writes the filelists of an ILSVRC or Pascal VOC tree."""
    from tfpipe.data.filelist import scan, write_filelist

    for split, images in scan(args.root).items():
        path = args.out / f"{split}.txt"
        write_filelist(path, images)
        print(f"{path}: {len(images)} images")


def order(args: argparse.Namespace) -> None:
    """Prints the samples that a rank visits in an epoch, one a line: position, image, box, path.

    The stream position, the image's number in the filelist, which of its boxes (with data.unit "box"; otherwise all,
    "-") and its path, with tabs between.
    """
    import numpy as np

    from tfpipe.data.catalog import load_catalog

    if not 0 <= args.rank < args.size:
        raise ConfigError(f"--rank must be in [0, --size), received {args.rank} of {args.size}")
    config, world = _config(args).data, World(args.rank, args.size)
    catalog = load_catalog(config, "train", world)
    positions = np.array(catalog.order(config).positions(args.epoch, world)[: args.head], np.int64)
    items = catalog.order(config).items(positions, world)
    for position, item in zip(positions, items, strict=True):
        image, box = catalog.image_and_box(int(item))
        print(position, image, "-" if box is None else box, catalog.paths[image], sep="\t")


def bench(args: argparse.Namespace) -> None:
    """Measures the input pipeline: images/s against this machine's limit, each stage, and what bounds it.

    Under mpirun, srun or aprun, or with --ranks: what several ranks deliver together.
    """
    from tfpipe.data.filelist import check_filelists

    config, launch = _config(args), find_launch()
    if launch is None or launch.rank == 0:
        check_filelists([config.data.train_filelist])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        world = World.detect(horovod=False) if launch is None or launch.size == 1 else World.mpi()
        from tfpipe.tools import bench
        from tfpipe.tools.bench import ranks
        from tfpipe.tools.bench.text import as_json, render

        plan = bench.Plan(args.seconds, args.repeats, args.stages, args.serial, args.ranks)
        several = plan.ranks is not None or world.size > 1
        report = ranks.run(config, world, plan) if several else bench.run(config, world, plan)
    if world.rank > 0:
        return
    if args.json is not None:
        try:
            args.json.write_text(json.dumps(as_json(report), indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write {args.json}: {error.strerror}") from error
    print(render(report))


def index(args: argparse.Namespace) -> None:
    """Reads every XML, or a table of boxes, and image header once, for training; under mpirun or srun on all ranks."""
    from tfpipe.data.index_build import build_index

    if args.processes is not None and args.processes < 1:
        raise ConfigError(f"--processes must be at least 1, received {args.processes}")
    config, launch = _config(args).data, find_launch()
    world = World() if launch is None or launch.size == 1 else World.mpi()
    splits = ["train", *(["test"] if config.test_filelist else [])] if args.split == "all" else [args.split]
    for split in splits:
        made = build_index(config, split, world, args.processes)
        if world.rank == 0:
            odd = ", ".join(f"{count} {code}" for code, count in made.odd.items()) or "nothing odd"
            print(f"{made.path}: {made.images} images ({made.annotated} annotated), {made.boxes} boxes; {odd}")


def config(args: argparse.Namespace) -> None:
    """Prints the config with every default filled in, or its JSON schema."""
    print(json.dumps(Config.model_json_schema(), indent=2) if args.schema else _config(args).model_dump_json(indent=2))


def _config(args: argparse.Namespace) -> Config:
    overrides = list(args.set)
    if getattr(args, "nsteps", None) is not None:
        overrides += ["training.epochs=1", f"training.steps_per_epoch={args.nsteps}"]
    return load_config(args.config, overrides)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfpipe", description="Feeds ImageNet-style data to Keras.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        summary = run.__doc__.splitlines()[0]
        added = commands.add_parser(run.__name__, help=summary, description=summary)
        added.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
        added.set_defaults(run=run)
        return added

    def add_set(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. data.batch_size=64"
        )

    added = command(train)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("-l", "--logdir", type=Path, help="the run's directory [runs/NAME-TIME]")
    added.add_argument(
        "--resume",
        nargs="?",
        choices=("must", "auto"),
        const="must",
        help="go on with the run in --logdir, with any number of ranks; auto: or begin it, if it has no checkpoint",
    )
    added.add_argument(
        "--resume-anyway", action="store_true", help="also if filelist, batch, seed ... are not the run's own"
    )
    added.add_argument("-n", "--nsteps", type=int, help="train one epoch of so many steps")
    added.add_argument("--interop", type=int, help="TensorFlow's threads between ops")
    added.add_argument("--intraop", type=int, help="TensorFlow's threads within an op")
    added.add_argument(
        "--horovod",
        action=argparse.BooleanOptionalAction,
        help="use Horovod, or not, whatever the launcher's environment says",
    )

    added = command(sample)
    added.add_argument("out", type=Path, metavar="OUT")
    added.add_argument("--images", type=int, default=2000, help="training images [%(default)s]")
    added.add_argument("--val", type=int, help="validation images [a fifth of --images]")
    added.add_argument("--scale", type=float, default=1.0, help="of width and height; 1 is ImageNet's [%(default)s]")
    added.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes [%(default)s]")

    added = command(filelist)
    added.add_argument("root", type=Path, metavar="ROOT", help="an ILSVRC or a Pascal VOC tree")
    added.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write train.txt, val.txt ...")

    added = command(order)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--epoch", type=int, default=0, help="counted from 0 [%(default)s]")
    added.add_argument("--rank", type=int, default=0, help="[%(default)s]")
    added.add_argument("--size", type=int, default=1, help="number of ranks [%(default)s]")
    added.add_argument("--head", type=int, metavar="N", help="the first N alone")

    added = command(bench)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--seconds", type=float, default=10.0, help="of each thing measured [%(default)g]")
    added.add_argument("--repeats", type=int, default=5, help="turns that they are made of [%(default)s]")
    added.add_argument("--stages", action="store_true", help="also the chain up to each stage, and pieces of it alone")
    added.add_argument("--serial", action="store_true", help="also with one reader and no prefetch")
    added.add_argument("--ranks", type=int, metavar="N", help="N ranks on this machine together, against one alone")
    added.add_argument("--json", type=Path, metavar="OUT", help="write every raw number there")

    added = command(index)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--split", choices=("train", "test", "all"), default="train", help="[%(default)s]")
    added.add_argument("--processes", type=int, metavar="N", help="of each rank [the CPUs that it may use]")

    added = command(config)
    group = added.add_mutually_exclusive_group(required=True)
    group.add_argument("-c", "--config", type=Path, help="the JSON config")
    group.add_argument("--schema", action="store_true", help="print the JSON schema of all configs")
    add_set(added)
    return parser


if __name__ == "__main__":
    sys.exit(main())
