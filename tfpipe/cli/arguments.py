"""Arguments that several commands take, and what their values stand for."""

import argparse
import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfpipe.collectives.launch import find_launch
from tfpipe.config import Config, DataConfig, load_config
from tfpipe.config.messages import same_named
from tfpipe.config.model import shared_settings
from tfpipe.config.section import user_path
from tfpipe.data.runtime.tracing import Window
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, mask_passwords
from tfpipe.requirements import check_keras, check_tensorflow
from tfpipe.util.atomic_write import writing
from tfpipe.util.console import without_chatter
from tfpipe.util.json_text import to_json
from tfpipe.util.process import load_triton, without_collections
from tfpipe.util.retry import retried

Arguments = argparse._ActionsContainer
"""A parser, or a group of its arguments."""

BACKENDS = ("tensorflow", "jax", "torch")
CONFIG = "config.json"


def add_config(arguments: Arguments) -> None:
    """Adds -c and --set, which `read_config` reads."""
    arguments.add_argument("-c", "--config", type=path, required=True, metavar="FILE", help="the JSON config")
    add_set(arguments)


def add_set(arguments: Arguments) -> None:
    """Adds --set, for a command that can do without -c."""
    arguments.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the config, e.g. data.batch_size=64; may be repeated",
    )


def set_hints(words: Sequence[str]) -> str:
    """Returns text about the keys of the config that unknown arguments name, by their own or other tools' names."""
    hints = []
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        name, equals, value = word.partition("=")
        keys = same_named(name[2:].replace("-", "_"), Config) if name.startswith("--") else []
        value = value if equals else "..." if following.startswith("--") else following
        # Of a section, "data", no value is set.
        settings = [f"{key}={value}" if key.replace(".", "").isidentifier() else key for key in keys if "." in key]
        hints += [" or ".join(f"--set {shlex.quote(setting)}" for setting in settings)] if settings else []
    return f"; did you mean {' '.join(hints)}?" if hints else ""


def read_config(args: argparse.Namespace, overrides: Sequence[str] = ()) -> Config:
    """Loads the config that -c names, with the overrides of --set and then further ones; raises ConfigError."""
    return load_config(args.config, [*args.set, *overrides])


def add_epoch(arguments: Arguments) -> None:
    """Adds --epoch, whose sizes `read_sized` takes."""
    arguments.add_argument(
        "--epoch",
        type=whole(0),
        metavar="N",
        help="with sizes by epoch: take those of epoch N, counted from 0 [the last ones]",
    )


def read_sized(args: argparse.Namespace, overrides: Sequence[str] = ()) -> Config:
    """Loads the config as `read_config` does, with the sizes of crops and batches in the epoch of --epoch."""
    return read_config(args, overrides).at(args.epoch)


def path(text: str) -> Path:
    """Returns the path that an argument gives, with its variables and ~ expanded.

    Raises ArgumentTypeError if one is not known, and for a URL, of which Path would make a local folder.
    """
    try:
        given = user_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if isinstance(given, str):
        raise argparse.ArgumentTypeError(f"{mask_passwords(given)} is a URL: give a path of a file system")
    return given


def folder(text: str) -> Path:
    """Returns the path of a folder to write to; raises ArgumentTypeError, before any work, if a file is in its way."""
    given = path(text)
    there = next(filter(os.path.exists, (given.absolute(), *given.absolute().parents)))
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write to {text}: {there} is a file")
    return given


def output(text: str) -> Path:
    """Returns the path of a file to write; raises ArgumentTypeError, before any work, if its folder is not there."""
    file = path(text)
    if file.is_dir() or not file.absolute().parent.is_dir():
        reason = "it is a folder" if file.is_dir() else f"there is no folder {file.absolute().parent}; make it first"
        raise argparse.ArgumentTypeError(f"cannot write {text}: {reason}")
    return file


def add_split(arguments: Arguments, default: str = "train") -> None:
    """Adds --split, which `splits` reads."""
    choices = ("train", "test", "all")
    arguments.add_argument("--split", choices=choices, default=default, help="filelists to process [%(default)s]")


def splits(split: str, config: DataConfig) -> list[str]:
    """Returns the splits that "all" stands for, or the one named; raises ConfigError if there is no such data."""
    if split == "train":
        return [split]
    from tfpipe.data.sources.registry import open_source

    tests = ["test"] if open_source(config).has_test() else []
    if split == "test" and not tests:
        raise ConfigError("--split test: there is no test data; name it in data.test_filelist or data.source.test_path")
    return tests if split == "test" else ["train", *tests]


def check_data(data: DataConfig, *, test: bool = False) -> None:
    """Raises ConfigError, before TensorFlow loads, if training data, and with `test` test data, is missing."""
    from tfpipe.data.sources.registry import open_source

    open_source(data).check(test)


def add_processes(arguments: Arguments) -> None:
    """Adds --processes, None if it is not given."""
    arguments.add_argument(
        "--processes", type=whole(1), metavar="N", help="processes per rank [one per CPU that the rank may use]"
    )


def add_json(arguments: Arguments, contents: str) -> None:
    """Adds --json, the file that `write_json` writes."""
    arguments.add_argument("--json", type=output, metavar="OUT", help=f"write {contents} to OUT")


def write_json(path: Path | None, value: Any) -> None:
    """Writes a value as JSON to the path of --json, if it is given, NaN and infinity as null.

    Raises ConfigError if the file cannot be written.
    """
    if path is None:
        return
    with writing(path):
        retried(path.write_text)(to_json(value, indent=2) + "\n")


def trained_from(overrides: Sequence[str]) -> str:
    """Returns the line that says how to train with these values of --set, for a shell."""
    return "train from it with: " + shlex.join(word for override in overrides for word in ("--set", override))


def add_profile(arguments: Arguments, traced: str) -> None:
    """Adds --profile, a window of steps or batches."""
    arguments.add_argument(
        "--profile",
        type=_window,
        metavar="FIRST:END",
        help=f"trace {traced}, e.g. 10:20 for 10 to 19; tfpipe report and TensorBoard show the trace",
    )


def _window(text: str) -> Window:
    try:
        return Window.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Returns the type of an argument that is a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        with suppress(ValueError):
            if low <= int(text) <= high:
                return int(text)
        raise argparse.ArgumentTypeError(f'received "{text}"; accepted: a whole number from {low} to {high}')

    return parse


def positive(text: str) -> float:
    """Parses a finite number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f'received "{text}"; accepted: a number above 0')


def ranks(text: str) -> tuple[int, ...] | None:
    """Parses ranks such as "0,3"; None stands for "all"."""
    if text == "all":
        return None
    try:
        return tuple(map(whole(0), text.split(",")))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'ranks are given as 0,3 or "all": {error}') from error


def share(text: str) -> tuple[int, int]:
    """Parses RANK/SIZE."""
    rank, _, size = text.partition("/")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise argparse.ArgumentTypeError(f'a share is given as RANK/SIZE, e.g. 0/8 to 7/8; received "{text}"')
    return int(rank), int(size)


# Arguments of a command that a rank may have for itself. The content of the config is compared.
OWN = ("run", "check", "debug", "config", "set", "interop", "intraop", "processes")


def shared_arguments(args: argparse.Namespace, config: Config | DataConfig) -> dict[str, Any]:
    """Returns what all ranks of a command must share: its arguments by flag, and the config's settings by key."""
    given = {f"--{name.replace('_', '-')}": value for name, value in vars(args).items() if name not in OWN}
    return {**json.loads(json.dumps(given, default=str)), **shared_settings(config)}


def launched_world(facts: Mapping[str, Any] | None = None) -> World:
    """Returns the world of a launcher's ranks, connected by MPI, or that of a single process.

    Raises ConfigError if the ranks differ in `facts`, or cannot be connected.
    """
    launch = find_launch()
    world = World() if launch is None or launch.size == 1 else World.mpi()
    world.agree(facts or {})
    return world


@contextmanager
def quiet_tensorflow(args: argparse.Namespace) -> Iterator[None]:
    """Imports TensorFlow, and removes its start-up messages from stderr inside `with`, except with --debug.

    Raises ConfigError if there is no TensorFlow that can be used.
    """
    check_tensorflow()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        with without_collections():
            import_module("tensorflow")
        yield


def choose_backend() -> str:
    """Returns the backend of Keras that KERAS_BACKEND names, TensorFlow's by default; must come before TensorFlow.

    A user's ~/.keras may name another one, which other programs want. Raises ConfigError if it cannot be used.
    """
    check_keras()
    name = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if name not in BACKENDS:
        raise ConfigError(f'KERAS_BACKEND is "{name}"; accepted: {", ".join(BACKENDS)}')
    if find_spec(name) is None:
        raise ConfigError(f"KERAS_BACKEND={name} needs the package {name}, which is not installed")
    if name == "torch":
        load_triton()
    return name


def add_model(arguments: argparse.ArgumentParser) -> None:
    """Adds --model, -c and --set, which `read_trained` reads."""
    arguments.add_argument(
        "-m", "--model", type=path, required=True, metavar="FILE", help="the model, e.g. runs/x/model.keras"
    )
    arguments.add_argument(
        "-c", "--config", type=path, metavar="FILE", help="the JSON config [config.json next to the model]"
    )
    add_set(arguments)


def read_trained(args: argparse.Namespace) -> Config:
    """Loads the config that -c names, or the one next to the model, with the overrides of --set.

    Raises ConfigError if there is none, or it is not valid.
    """
    if args.model.is_dir():
        raise ConfigError(f"--model {args.model} is a folder: give the model in it, e.g. {args.model / 'model.keras'}")
    if not args.model.is_file():
        raise ConfigError(f"--model: there is no file {args.model}; training writes model.keras at its end")
    if args.config is None:
        args.config = args.model.parent / CONFIG
        if not args.config.is_file():
            raise ConfigError(f"there is no {CONFIG} next to {args.model}: give the config of its training with -c")
    return read_config(args).at(None)


def start_trained(args: argparse.Namespace, config: Config) -> World:
    """Starts TensorFlow and Keras' backend, and connects the ranks of a launcher, which must have the same `config`."""
    backend = choose_backend()
    with quiet_tensorflow(args):
        world = launched_world(shared_arguments(args, config) | {"KERAS_BACKEND": backend})
        prepare_devices(world)
    return world


def prepare_devices(world: World) -> None:
    """Sets TensorFlow's threads and GPU for a rank that runs a model, and warns if the model cannot use the GPUs."""
    check_keras()
    from tfpipe.training.devices import check_gpus, configure_devices

    configure_devices(world)
    check_gpus(world)
