"""The program: builds the parser from the commands, runs one of them and returns its exit code."""

import argparse
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module

from tfpipe import __version__
from tfpipe.cli.arguments import set_hints
from tfpipe.collectives.launch import OPEN_MPI, Launch, find_launch
from tfpipe.collectives.protocol import LostRankError, is_lost
from tfpipe.distributed import end_other_ranks
from tfpipe.errors import ConfigError, Stopped, TfpipeError
from tfpipe.requirements import REMEDY
from tfpipe.util.console import configure_logging
from tfpipe.util.process import drop_output

# Modules of tfpipe.cli.commands, in the order of --help.
COMMANDS = (
    "train", "evaluate", "predict", "sample", "filelist", "order", "bench", "tune", "report", "view", "check", "index",
    "pack", "serve", "stage", "config",
)  # fmt: skip

# Open MPI's launcher finds a lost host in 60 s while it sends nothing (jobs/common.sh), but waits 15 minutes for TCP to
# give it up once a rank's end makes it send something: ranks wait longer than its 60 s.
LATER_S, LATER_OPEN_MPI_S = 10.0, 90.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0: success; 1: failure; 2: unusable input; 75: training was told to stop and has saved its state; 130: interrupted
    elsewhere.
    """
    parser = _parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        hints = set_hints(unknown) if "set" in args else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hints}")
    try:
        launch = find_launch()
    except ConfigError as error:
        return _fail(str(error), error.exit_code, 0)
    rank = launch.rank if launch else 0
    configure_logging(rank, args.debug)
    try:
        args.check(args)
        args.run(args)
    except Stopped as stopped:
        if rank == 0:
            print(f"tfpipe: {stopped}", file=sys.stderr, flush=True)
        else:
            time.sleep(1)  # the launcher may kill rank 0, which has still to say so, when another one ends
        return stopped.exit_code
    except BrokenPipeError:
        # The reader, e.g. `head`, has closed the pipe: nothing can be printed.
        drop_output(sys.stdout.fileno())
    except KeyboardInterrupt:
        return _fail("interrupted", 130, rank)
    except LostRankError as error:
        return _fail_later(str(error), launch)
    except (TfpipeError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        return _fail(str(error), getattr(error, "exit_code", 1), rank)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            return _fail(f"{args.command} needs TensorFlow: {REMEDY}", ConfigError.exit_code, rank)
        if not is_lost(error):
            traceback.print_exc()
            end_other_ranks(1)
            return 1
        return _fail_later("another rank has stopped", launch)
    return 0


def _fail_later(message: str, launch: Launch | None) -> int:
    """Fails after another rank, which prints the reason; the launcher then kills this rank during the sleep."""
    time.sleep(LATER_OPEN_MPI_S if launch and launch.launcher in OPEN_MPI else LATER_S)
    return _fail(message, 1, launch.rank if launch else 0)


def _fail(message: str, code: int, rank: int) -> int:
    """Prints an error message and returns the exit code."""
    if rank > 0:
        # Every rank may have the same error; rank 0 prints it, and this rank is killed during the sleep.
        time.sleep(2)
        message = message if message.startswith(f"rank {rank}:") else f"rank {rank}: {message}"
    print(f"tfpipe: error: {message}", file=sys.stderr, flush=True)
    end_other_ranks(code)
    return code


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; the parsed arguments hold the command's `run`."""
    parser = argparse.ArgumentParser(prog="tfpipe", description="Feeds labelled images to Keras, PyTorch and JAX.")
    parser.add_argument("--version", action="version", version=f"tfpipe {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"tfpipe.cli.commands.{name}")
        summary, _, more = (command.__doc__ or "").partition("\n")
        added = subparsers.add_parser(name, help=summary, description=f"{summary} {more.strip()}")
        added.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
        command.add_arguments(added)
        check = partial(_check_used, added, getattr(command, "USED_BY", {}))
        added.set_defaults(run=command.run, check=check, command=name)
    return parser


def _check_used(parser: argparse.ArgumentParser, used: Mapping[str, Sequence[str]], args: argparse.Namespace) -> None:
    """Raises ConfigError if an option is given together with one that leaves it without effect.

    `used` are the options that one makes use of, by its name.
    """
    given = [name for name, value in vars(args).items() if value != parser.get_default(name) and name != "debug"]
    for mode in used.keys() & given:
        if unused := [name for name in given if name not in (mode, *used[mode])]:
            flags = [f"--{name.replace('_', '-')}" for name in (mode, *unused)]
            raise ConfigError(f"{flags[0]} makes no use of {' and '.join(flags[1:])}: leave one of them out")
