"""Tests a trained model on the test data, as its training did, and tells which classes it confuses.

It takes every test sample once, with the counts of the training's own test pass; under mpirun each rank its share.
"""

import argparse

from tfpipe.cli import arguments as cli


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_model(parser)
    cli.add_json(parser, "the scores, those of each class, and the confusion")


def run(args: argparse.Namespace) -> None:
    config = cli.read_trained(args)
    cli.check_data(config.data, test=True)
    world = cli.start_trained(args, config)
    from tfpipe.tools.trained.passes import as_json, class_table, evaluate
    from tfpipe.training.monitor.record import metrics_line

    scores, confusion, names = evaluate(config, args.model, world)
    if world.rank > 0:
        return
    figures = {f"test_{name}": value for name, value in scores._asdict().items()}
    by_class = confusion.by_class(names)
    print(f"{args.model}: {metrics_line(figures).removeprefix('| ')}", "", *class_table(by_class), sep="\n")
    cli.write_json(args.json, {"model": str(args.model), **figures, **as_json(confusion, by_class)})
