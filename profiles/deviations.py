"""What each of the default's deviations from the plainest tf.data chain gains, one at a time, in turns.

    python profiles/deviations.py -c CONFIG [--only rebatch] [--turns 7]
    python profiles/deviations.py -c CONFIG --only copy --set data.crop=random_resized --set data.batch_size=256

The plainest chain (configs/card.json) is a shuffle buffer, AUTOTUNE for reads and decoders, XMLs read and parsed by
lxml and JPEGs decoded by TensorFlow's ops one image at a call, unbatch, batch, prefetch. A row compares the default
with the default without one deviation; the last one, with the plainest chain. Each turn builds both pipelines from
scratch. Gains are ratios turn by turn: of crops/s, and of CPU time per crop, which other processes disturb less.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from tfpipe import Config, Stream, World, load_config, stages
from tfpipe.data.images.decode import Decoder, choose_decoder
from tfpipe.prepare.index import build_index
from tfpipe.tools.measure import Count, Segment, in_turns, measure

CPUS = len(os.sched_getaffinity(0))
AUTOTUNE = ("data.parallel.read=autotune", "data.parallel.decode=autotune")


@dataclass(frozen=True)
class Chain:
    """The default chain, with some of its deviations taken back."""

    sets: tuple[str, ...] = ()  # overrides of the config
    buffer: bool = False  # shuffles the list in a buffer, instead of computing the order
    one_a_call: bool = False  # parses and decodes one image at a call, instead of 32
    copied: bool = False  # copies crops into batches, instead of writing them there, where an image gives one
    unbatch: bool = False  # unbatch and batch, instead of rebatch


DEFAULT, XML = Chain(), Chain(("data.annotations=xml",))
GRAPH = ("data.decoder=graph",)
ROWS: dict[str, tuple[str, Chain, Chain]] = {
    "order": ("the order is computed; instead of a shuffle buffer of the whole list", DEFAULT, Chain(buffer=True)),
    "numbers": ("64 reads, 5 decodes for 4 CPUs; instead of AUTOTUNE", DEFAULT, Chain(AUTOTUNE)),
    "spare": ("more decode calls than threads; instead of as many", DEFAULT, Chain((f"data.parallel.decode={CPUS}",))),
    "index": ("boxes of an index; instead of XMLs, 32 at a call", DEFAULT, XML),
    "call": ("XMLs and JPEGs 32 at a call; instead of one", XML, Chain(XML.sets, one_a_call=True)),
    "graph": ("tfpipe's decoder; instead of TensorFlow's ops", DEFAULT, Chain(GRAPH)),
    "copy": ("crops written where their batch wants them; instead of copied", DEFAULT, Chain(copied=True)),
    "rebatch": ("rebatch; instead of unbatch and batch", DEFAULT, Chain(unbatch=True)),
    "all": (
        "all of these; instead of the plainest chain",
        DEFAULT,
        Chain((*AUTOTUNE, *XML.sets, *GRAPH), True, unbatch=True, copied=True),
    ),
}


def main(args: argparse.Namespace) -> None:
    """Prints a row for each deviation."""
    with tempfile.TemporaryDirectory() as folder:
        load = partial(_load, args.config, [*args.set, f"data.index={folder}", "data.annotations=index"])
        build_index(load(XML).data, "train", World(), 1)
        print(f"| the default does | crops/s | without | gain, crops/s ({args.turns} turns) | gain, CPU time |")
        print("|---|---|---|---|---|")
        for name in args.only or ROWS:
            text, default, without = ROWS[name]
            chains = {"default": default, "without": without}
            ways = {way: partial(timed, load(chain), chain, args.warm_up) for way, chain in chains.items()}
            found = in_turns(ways, args.turns, args.seconds, show=False)
            print(row(text, found["default"], found["without"]), flush=True)


def _load(path: Path, sets: list[str], chain: Chain) -> Config:
    return load_config(path, [*sets, *chain.sets])


def row(text: str, default: list[Segment], without: list[Segment]) -> str:
    """A line of the table."""
    pairs = list(zip(default, without, strict=True))
    cells = [f"{median(each.crops_per_second for each in way):,.0f}" for way in (default, without)]
    for ratios in (
        [a.crops_per_second / b.crops_per_second for a, b in pairs],
        [(b.cpu_seconds / b.crops) / (a.cpu_seconds / a.crops) for a, b in pairs],
    ):
        cells.append(f"x {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return f"| {text} | {' | '.join(cells)} |"


def timed(config: Config, chain: Chain, warm_up_s: float, seconds: float) -> Segment:
    """A segment of a pipeline built from scratch, after its warm-up."""
    return measure(counts(iter(dataset(config, chain))), seconds, warm_up_s)


def dataset(config: Config, chain: Chain) -> tf.data.Dataset:
    """Batches of (images, labels), uint8 [batch, height, width, channels] and int32 [batch]."""
    data, world = config.data, World()
    listed = data.model_copy(update={"shuffle_buffer": 0}) if chain.buffer else data
    split = stages.load_split(data, "train", world)
    samples = stages.visit(replace(split, config=listed), Stream.start(1))
    if chain.buffer:
        samples = samples.shuffle(len(split.catalog), seed=data.seed)
    crops = stages.crop(stages.read(samples, split), split, decoder=decoder(config, chain))
    if chain.unbatch:
        batches = crops.unbatch().batch(data.batch_size, drop_remainder=True)
    else:
        batches = crops.rebatch(data.batch_size, drop_remainder=True)
    batches = stages.finish(batches, data, with_positions=False)
    return stages.prefetch(batches, data).with_options(stages.options(data, world))


def decoder(config: Config, chain: Chain) -> Decoder | None:
    """The decoder of a chain; None for the default's, whose calls write into batches."""
    chosen = choose_decoder(config.data)
    return chosen._replace(images=1) if chain.one_a_call else chosen if chain.copied else None


def counts(batches: Iterator[tuple[tf.Tensor, tf.Tensor]]) -> Iterator[Count]:
    """Counts crops; a crop counts as an image."""
    done = 0
    for _, labels in batches:
        done += len(labels)
        yield Count(done, done)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", choices=ROWS, nargs="+")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before each turn [%(default)s]")
    main(parser.parse_args())
