"""Prints the config with every default filled in, or its JSON schema."""

import argparse
import json

from tfpipe.cli import arguments as cli
from tfpipe.config import Config

USED_BY: dict[str, tuple[str, ...]] = {"schema": ()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("-c", "--config", type=cli.path, metavar="FILE", help="print this JSON config")
    group.add_argument("--schema", action="store_true", help="print the JSON schema of all configs")
    cli.add_set(parser)


def run(args: argparse.Namespace) -> None:
    if args.schema:
        print(json.dumps(Config.model_json_schema(), indent=2))
    else:
        print(cli.read_config(args).model_dump_json(indent=2))
