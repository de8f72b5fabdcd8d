"""The command line: parses the arguments, runs the command and returns its exit code."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfpipe import __version__
from tfpipe.cli import commands
from tfpipe.data.runtime.tracing import Window
from tfpipe.distributed import find_launch
from tfpipe.errors import ConfigError, Stopped, TfpipeError
from tfpipe.util.console import configure_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0: success; 1: failure; 2: unusable input; 75: training was told to stop and has saved its state; 130: interrupted
    elsewhere.
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
        # The reader, e.g. `head`, has closed the pipe: nothing can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return _fail("interrupted", 130, rank)
    except Exception as error:
        if "Horovod has been shut down" not in str(error):
            raise
        # The failed rank prints the reason; the launcher then kills this rank during the sleep.
        time.sleep(10)
        return _fail("another rank has stopped", 1, rank)
    return 0


def _fail(message: str, code: int, rank: int) -> int:
    if code == ConfigError.exit_code and rank > 0:
        # Every rank probably has the same error; rank 0 prints it, and the launcher kills this rank during the sleep.
        time.sleep(2)
        message = f"rank {rank}: {message}"
    print(f"tfpipe: error: {message}", file=sys.stderr, flush=True)
    return code


def _window(text: str) -> Window:
    try:
        return Window.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _ranks(text: str) -> tuple[int, ...] | None:
    """Parses ranks such as "0,3"; None stands for "all"."""
    if text == "all":
        return None
    try:
        return tuple(int(rank) for rank in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'ranks are given as 0,3 or "all"; received "{text}"') from error


def _share(text: str) -> tuple[int, int]:
    """Parses RANK/SIZE."""
    rank, _, size = text.partition("/")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise argparse.ArgumentTypeError(f'a share is given as RANK/SIZE, e.g. 0/8 to 7/8; received "{text}"')
    return int(rank), int(size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfpipe", description="Feeds ImageNet-style data to Keras.")
    parser.add_argument("--version", action="version", version=f"tfpipe {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        summary = (run.__doc__ or "").partition("\n")[0]
        added = subparsers.add_parser(run.__name__, help=summary, description=summary)
        added.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
        added.set_defaults(run=run)
        return added

    def add_set(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. data.batch_size=64"
        )

    def add_profile(added: argparse.ArgumentParser, of_what: str) -> None:
        added.add_argument(
            "--profile",
            type=_window,
            metavar="FIRST:END",
            help=f"trace {of_what}, e.g. 10:20 for 10 to 19; tfpipe report and TensorBoard show it",
        )

    added = command(commands.train)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("-l", "--logdir", type=Path, help="the run's directory [runs/NAME-TIME]")
    added.add_argument(
        "--resume",
        nargs="?",
        choices=("must", "auto"),
        const="must",
        help="continue the run in --logdir, with any number of ranks; auto: start a new one if there is no checkpoint",
    )
    added.add_argument(
        "--resume-anyway", action="store_true", help="continue even if filelist, batch, seed ... differ from the run's"
    )
    added.add_argument("-n", "--nsteps", type=int, help="train one epoch of NSTEPS steps")
    added.add_argument("--interop", type=int, help="TensorFlow's threads between ops")
    added.add_argument("--intraop", type=int, help="TensorFlow's threads within an op")
    added.add_argument(
        "--horovod",
        action=argparse.BooleanOptionalAction,
        help="use Horovod or not, overriding the launcher's environment",
    )

    add_profile(added, "steps of this run, counted from 0")
    added.add_argument(
        "--profile-ranks",
        type=_ranks,
        default=(0,),
        metavar="R,R",
        help='ranks that trace, e.g. 0,3, or "all" [0]; rank 3 writes to rank-3 in the run\'s directory',
    )

    added = command(commands.sample)
    added.add_argument("out", type=Path, metavar="OUT")
    added.add_argument("--images", type=int, default=2000, help="training images [%(default)s]")
    added.add_argument("--val", type=int, help="validation images [a fifth of --images]")
    added.add_argument("--scale", type=float, default=1.0, help="factor on ImageNet's widths and heights [%(default)s]")
    added.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes [%(default)s]")

    added = command(commands.filelist)
    added.add_argument("root", type=Path, metavar="ROOT", help="an ILSVRC or a Pascal VOC tree")
    added.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write train.txt, val.txt ...")

    added = command(commands.order)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--epoch", type=int, default=0, help="counted from 0 [%(default)s]")
    added.add_argument("--rank", type=int, default=0, help="[%(default)s]")
    added.add_argument("--size", type=int, default=1, help="number of ranks [%(default)s]")
    added.add_argument("--head", type=int, metavar="N", help="print only the first N")

    added = command(commands.bench)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--seconds", type=float, default=10.0, help="seconds per measurement [%(default)g]")
    added.add_argument("--repeats", type=int, default=5, help="segments per measurement [%(default)s]")
    added.add_argument("--stages", action="store_true", help="also measure the chain up to each stage, parts of crop")
    added.add_argument("--serial", action="store_true", help="also measure with one reader and no prefetch")
    added.add_argument(
        "--headspace", action="store_true", help="also measure a training step, and the most that faster input gains"
    )
    added.add_argument("--ranks", type=int, metavar="N", help="measure N ranks on this machine, against one rank")
    added.add_argument("--json", type=Path, metavar="OUT", help="write all raw numbers to OUT")
    add_profile(added, "batches of the pipeline alone")
    added.add_argument("-l", "--logdir", type=Path, help="the trace's directory [runs/bench-NAME-TIME]")

    added = command(commands.report)
    added.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directory of a run, or of bench --profile")
    added.add_argument("--json", type=Path, metavar="OUT", help="write all numbers to OUT")
    added.add_argument("--plot", type=Path, metavar="OUT", help="draw the traces' timelines to OUT, a PNG or PDF")

    added = command(commands.view)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("-o", "--out", type=Path, required=True, help="the picture to write: .png or .jpg")
    added.add_argument("--split", choices=("train", "test"), default="train", help="[%(default)s]")
    added.add_argument("--count", type=int, metavar="N", help="at most N crops, images or files [64, 12 or 48]")
    added.add_argument(
        "--first", type=int, default=0, metavar="POSITION", help="start here, as `tfpipe order` prints it [%(default)s]"
    )
    kind = added.add_mutually_exclusive_group()
    kind.set_defaults(kind="batch")
    for name, shows in (("boxes", "whole images, their boxes and crops"), ("errors", "files that cannot be decoded")):
        kind.add_argument(f"--{name}", action="store_const", dest="kind", const=name, help=shows)

    added = command(commands.check)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--split", choices=("train", "test", "all"), default="train", help="[%(default)s]")
    added.add_argument(
        "--fix-list",
        type=Path,
        metavar="OUT",
        help="write a clean list to OUT: without files that would stop training, each path once",
    )
    added.add_argument("--json", type=Path, metavar="OUT", help="write all findings to OUT")
    added.add_argument("--processes", type=int, metavar="N", help="processes per rank [one per CPU that it may use]")

    added = command(commands.index)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--split", choices=("train", "test", "all"), default="train", help="[%(default)s]")
    added.add_argument("--processes", type=int, metavar="N", help="processes per rank [one per CPU that it may use]")

    added = command(commands.pack)
    origin = added.add_mutually_exclusive_group(required=True)
    origin.add_argument("-c", "--config", type=Path, help="the JSON config")
    origin.add_argument("--verify", type=Path, metavar="DIR", help="check the packed data in DIR against its checksums")
    add_set(added)
    added.add_argument("--out", type=Path, metavar="DIR", help="folder to write to; continues an interrupted pack")
    added.add_argument(
        "--kind",
        choices=("original", "crops", "raw"),
        default="original",
        help="files untouched, crops as JPEGs, or crops as pixels [%(default)s]",
    )
    added.add_argument("--split", choices=("train", "test", "all"), default="train", help="[%(default)s]")
    added.add_argument("--shards", type=int, metavar="N", help="shards [one per 1252 training or 391 test images]")
    added.add_argument("--quality", type=int, default=95, metavar="Q", help="JPEG quality of crops [%(default)s]")
    added = command(commands.serve)
    added.add_argument(
        "role", choices=("worker", "dispatcher"), help='worker, which includes a dispatcher; "dispatcher" is refused'
    )
    added.add_argument("--port", type=int, default=5000, help="port that trainings connect to [%(default)s]")
    added.add_argument("--data-port", type=int, default=0, help="port that sends batches [any free one]")
    added.add_argument("--host", help="the name or address by which trainings reach this host [its own name]")
    added.add_argument("--threads", type=int, help="threads for all trainings together [one per CPU]")
    added.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    added = command(commands.stage)
    added.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    add_set(added)
    added.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to copy to")
    added.add_argument(
        "--share", type=_share, metavar="RANK/SIZE", help="copy only the images of one rank; the lists stay complete"
    )
    added.add_argument("--split", choices=("train", "test", "all"), default="all", help="[%(default)s]")

    added = command(commands.config)
    group = added.add_mutually_exclusive_group(required=True)
    group.add_argument("-c", "--config", type=Path, help="the JSON config")
    group.add_argument("--schema", action="store_true", help="print the JSON schema of all configs")
    group.add_argument("--markdown", action="store_true", help="print every key with its type, default and meaning")
    add_set(added)
    return parser


if __name__ == "__main__":
    sys.exit(main())
