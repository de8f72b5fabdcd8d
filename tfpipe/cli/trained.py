"""Arguments of the commands that take a trained model, and their start."""

import argparse
from pathlib import Path

from tfpipe.cli.arguments import add_set, choose_backend, launched_world, quiet_tensorflow, read_config, shared
from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

CONFIG = "config.json"


def add_model(arguments: argparse.ArgumentParser) -> None:
    """Adds --model, -c and --set, which `read_trained` reads."""
    arguments.add_argument(
        "-m", "--model", type=Path, required=True, metavar="FILE", help="the model, e.g. runs/x/model.keras"
    )
    arguments.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="the JSON config [config.json next to the model]"
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
        world = launched_world(shared(args, config) | {"KERAS_BACKEND": backend})
        from tfpipe.training.devices import check_gpus, configure_devices

        configure_devices(world)
        check_gpus(world)
    return world
