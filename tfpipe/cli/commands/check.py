"""Reads every image of the data, and reports oddities and what would stop training.

It decodes the images and parses the XMLs. Exit code 0: no oddities, or only ones that training handles correctly;
1: something is wrong or would stop training, or with --strict is not used, or might be meant otherwise.
"""

import argparse
from pathlib import Path

from tfpipe.cli import arguments as cli
from tfpipe.config.model import resize_of_weights
from tfpipe.config.section import literal
from tfpipe.errors import ConfigError, TfpipeError, counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_config(parser)
    cli.add_split(parser)
    parser.add_argument(
        "--fix-list",
        type=cli.path,
        metavar="OUT",
        help="write a clean list to OUT: without files that would stop training, each path once",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 too if anything is left out, of an unknown class, of another size than stated, or if class "
        "names differ only by blanks, case or a byte order mark",
    )
    cli.add_json(parser, "all findings")
    cli.add_processes(parser)


def run(args: argparse.Namespace) -> None:
    from tfpipe.data.catalog.filelist import check_filelists, class_level_of_copy
    from tfpipe.data.sources.files import Files
    from tfpipe.data.sources.registry import open_source
    from tfpipe.tools.check.result import as_json, conclusion, render, strictly, write_clean_list
    from tfpipe.tools.check.split import check

    whole = cli.read_config(args)
    config = whole.data
    checked = cli.splits(args.split, config)
    if args.fix_list is not None and len(checked) > 1:
        raise ConfigError("--fix-list writes one list: choose --split train or --split test")
    source = open_source(config)
    if args.fix_list is not None:
        source.check_use("check --fix-list")
    lists = {"train": config.train_filelist, "test": config.test_filelist}
    check_filelists([path for path in map(lists.get, checked) if isinstance(path, Path)])
    with cli.quiet_tensorflow(args):
        world = cli.launched_world(cli.shared_arguments(args, config))
        results = check(config, checked, world, args.processes)
    if world.rank > 0:
        return
    print(render(results))
    if (remark := resize_of_weights(whole)) is not None:
        print(remark)
    cli.write_json(args.json, as_json(results))
    if args.fix_list is not None:
        dropped = write_clean_list(results[0], args.fix_list)
        print(f"{args.fix_list}: {counted(len(results[0].catalog) - dropped, 'line')}, {dropped} left out")
        if Path(results[0].place).is_dir() and not results[0].reads_xmls:
            # Training would look for the XMLs of a list, unlike those of a folder.
            keys = [f"data.{args.split}_filelist={literal(args.fix_list)}", "data.annotations=none"]
            print(cli.trained_from(keys + class_level_of_copy(config, {args.split: results[0].catalog})))
    if (problem := conclusion(results)) is not None:
        advised = isinstance(source, Files) and args.fix_list is None
        fix = "; --fix-list OUT writes a list without what stops training" if advised else ""
        raise TfpipeError(problem + fix)
    if args.strict and (ambiguous := strictly(results)) is not None:
        raise TfpipeError(f"--strict: {ambiguous}")
