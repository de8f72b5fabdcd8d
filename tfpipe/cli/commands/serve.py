"""Runs a worker that reads, decodes and crops for trainings on other hosts.

A training uses the worker if its `data.service` has the address that the worker prints. The worker runs until it is
ended.
"""

import argparse
import os

from tfpipe.cli import arguments as cli
from tfpipe.errors import ConfigError

PORT = cli.whole(0, 2**16 - 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", metavar="worker", help='the word "worker"')
    parser.add_argument(
        "--port", type=PORT, default=5000, metavar="N", help="port that trainings connect to [%(default)s]"
    )
    parser.add_argument("--data-port", type=PORT, default=0, metavar="N", help="port that sends batches [any free one]")
    parser.add_argument(
        "--host",
        help="name or address by which trainings reach this host [its own name]; localhost refuses other hosts",
    )
    parser.add_argument(
        "--threads", type=cli.whole(1), metavar="N", help="threads for all trainings together [one per CPU]"
    )
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    if args.role != "worker":
        raise ConfigError(
            f'tfpipe serve runs a "worker", received "{args.role}"; a worker includes its own dispatcher, because a '
            "shared one would deal images out in no fixed order: start `tfpipe serve worker` on each host, and list "
            "the addresses that they print in data.service"
        )
    if args.parent is not None:
        from tfpipe.data.service.server import exit_with_parent

        exit_with_parent(args.parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with cli.quiet_tensorflow(args):
        from tfpipe.data.service.server import Server

        server = Server(args.port, args.data_port, args.host, args.threads)
    print(f"serving at {server.address}", flush=True)
    server.join()
