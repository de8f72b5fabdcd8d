"""Writes the filelists of an ILSVRC or Pascal VOC tree."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, metavar="ROOT", help="an ILSVRC or a Pascal VOC tree")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to write train.txt, val.txt ... to"
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.data.catalog.filelist import scan, write_filelist

    for split, images in scan(args.root).items():
        path = args.out / f"{split}.txt"
        write_filelist(path, images)
        print(f"{path}: {len(images)} images")
