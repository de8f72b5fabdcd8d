"""Names the bottleneck of a run from its metrics and its trace, or compares runs."""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import ConfigError
from tfpipe.util.files import near


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=cli.path, metavar="RUN", help="folder of a run, or of bench --profile")
    outputs = {
        "--json": "all numbers to OUT",
        "--html": "one page to OUT, which needs no network: the verdict on a run, slowest batches, figures, config",
        "--trace": "all ranks' traces to OUT, a .json or .json.gz for Perfetto or chrome://tracing",
        "--per-batch": "a row for each traced batch to OUT, a .csv or .parquet: its wait, delay, samples, slowest file",
    }
    for flag, contents in outputs.items():
        parser.add_argument(flag, type=cli.output, metavar="OUT", help=f"write {contents}")


def run(args: argparse.Namespace) -> None:
    if missing := next((folder for folder in args.runs if not folder.is_dir()), None):
        raise ConfigError(f"there is no folder {missing}{near(missing)}: give that of a run or of bench --profile")
    if args.html is not None and len(args.runs) > 1:
        raise ConfigError(f"--html writes the page of one run, and {len(args.runs)} are given: one command a run")
    from tfpipe.tools.report.chrome import write_chrome
    from tfpipe.tools.report.runs import load_ranks, load_run
    from tfpipe.tools.report.samples import write_batches
    from tfpipe.tools.report.text import as_json, render

    runs = [load_run(folder) for folder in args.runs]
    reports = [as_json(run) for run in runs]
    cli.write_json(args.json, reports if len(reports) > 1 else reports[0])
    if args.html is not None:
        from tfpipe.tools.report.page import write_page

        with cli.quiet_tensorflow(args):  # it draws the pictures
            write_page(runs[0], args.html)
    ranks = [load_ranks(folder) for folder in args.runs] if args.trace or args.per_batch else []
    if args.trace is not None:
        write_chrome(ranks, args.trace)
    if args.per_batch is not None:
        write_batches(ranks, args.per_batch)
    print(render(runs))
