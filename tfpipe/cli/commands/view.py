"""Draws a batch as training sees it, images with boxes, or an image's epochs."""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.config.model import resize_of_weights
from tfpipe.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    parser.add_argument(
        "-o", "--out", type=cli.output, required=True, metavar="FILE", help="the picture to write: .png or .jpg"
    )
    parser.add_argument("--split", choices=("train", "test"), default="train", help="filelist to draw [%(default)s]")
    parser.add_argument(
        "--count", type=cli.whole(1), metavar="N", help="draw at most N crops, images or epochs [64, 12 or 8]"
    )
    parser.add_argument(
        "--first",
        type=cli.whole(0, 2**53),
        default=0,
        metavar="POSITION",
        help="begin at POSITION, as `tfpipe order` prints it [%(default)s]",
    )
    cli.add_epoch(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.set_defaults(kind="batch")
    for name, things in (
        ("boxes", "whole images, their boxes and crops"),
        ("epochs", "one image in several epochs, before and after data.augment"),
    ):
        kind.add_argument(f"--{name}", action="store_const", dest="kind", const=name, help=f"draw {things}")


def run(args: argparse.Namespace) -> None:
    from tfpipe.tools.view.sheet import check_target

    check_target(args.out)
    if args.kind == "epochs" and args.split == "test":
        raise ConfigError("view --epochs shows training data: test data is never augmented, and comes once")
    config = cli.read_sized(args)
    cli.check_data(config.data)
    with cli.quiet_tensorflow(args):
        from tfpipe.tools.view.view import ViewRequest, view

        message = view(config, ViewRequest(args.kind, args.split, args.count, args.first), args.out)
    print(message)
    if (remark := resize_of_weights(config)) is not None:
        print(remark)
