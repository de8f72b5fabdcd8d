"""Writes the filelists of an ILSVRC or Pascal VOC tree, or of class folders."""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=cli.path, metavar="ROOT", help="an ILSVRC or a Pascal VOC tree, or class folders")
    parser.add_argument(
        "--out", type=cli.folder, required=True, metavar="DIR", help="folder to write train.txt, val.txt ... to"
    )


def run(args: argparse.Namespace) -> None:
    from tfpipe.data.catalog.filelist import write_filelist
    from tfpipe.data.catalog.layout import LAYOUTS
    from tfpipe.prepare.trees import scan

    splits = scan(args.root)
    for split, images in splits.items():
        path = args.out / f"{split}.txt"
        write_filelist(path, images)
        print(f"{path}: {counted(len(images), 'image')}")
    if not any(f"/{layout.images}/" in next(iter(splits.values()))[0] for layout in LAYOUTS.values()):
        print("class folders have no XMLs: train from the lists with --set data.annotations=none")
