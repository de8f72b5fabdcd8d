"""Writes the most probable classes of images to a CSV, by a trained model and the pipeline of its test data.

Under mpirun each rank takes its share of the images.
"""

import argparse

from tfpipe.cli import arguments as cli
from tfpipe.errors import counted
from tfpipe.util.console import figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        type=cli.path,
        metavar="IMAGES",
        help="filelists, folders or images, which are used whole [the config's test data]",
    )
    cli.add_model(parser)
    parser.add_argument("-o", "--out", type=cli.output, required=True, metavar="FILE", help="the CSV to write")
    parser.add_argument(
        "--top", type=cli.whole(1), metavar="K", help="write the K most probable classes [5, or all if there are fewer]"
    )


def run(args: argparse.Namespace) -> None:
    config = cli.read_trained(args)
    if not args.inputs:
        cli.check_data(config.data, test=True)
    world = cli.start_trained(args, config)
    from tfpipe.tools.trained.predict import predict, write_predictions

    predicted = predict(config, args.model, args.inputs, args.top, world)
    if world.rank > 0:
        return
    write_predictions(predicted, args.out)
    count, seconds = len(predicted.predictions.positions), predicted.seconds
    print(f"{args.out}: {counted(count, 'row')}, in {seconds:.1f} s, {figure(count / seconds)} a second")
    for position, failure in predicted.dropped[:5]:
        print(f"left out: {failure.path}: {failure.reason} (image {position})")
    if len(predicted.dropped) > 5:
        print(f"left out: {counted(len(predicted.dropped), 'image')} in all")
