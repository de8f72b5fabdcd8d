"""Writes a small synthetic data set in ImageNet's layout."""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=cli.folder, metavar="OUT", help="folder to write to")
    parser.add_argument("--images", type=int, default=2000, metavar="N", help="training images [%(default)s]")
    parser.add_argument("--val", type=int, metavar="N", help="validation images [a fifth of --images]")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="F", help="factor on ImageNet's widths and heights [%(default)s]"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same bytes [%(default)s]"
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.tools.sample.sample import write_sample

    summary = write_sample(args.out, args.images, args.val, args.scale, args.seed)
    print(
        f"{args.out}: {counted(summary.train_images, 'training image')} ({summary.annotated_train_images} with an XML, "
        f"{counted(summary.train_boxes, 'box')}), {counted(summary.val_images, 'validation image')}, "
        f"{counted(summary.classes, 'class')}, {summary.bytes / 1e6:.1f} MB"
    )
