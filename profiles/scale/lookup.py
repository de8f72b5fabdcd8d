"""CPU time of a mapped catalog in the pipeline: python profiles/scale/lookup.py -c CONFIG [--turns 9].

In turns over the same list, held in memory and mapped from files: microseconds of CPU time for a position, its path and
its label, and for an image through the whole pipeline.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main(args: argparse.Namespace) -> None:
    """Prints a row for each way and chain, and the ratio turn by turn."""
    from tfpipe import World, build_dataset, load_config
    from tfpipe.data.catalog import shared
    from tfpipe.data.order.stream import Stream
    from tfpipe.data.pipeline import visit
    from tfpipe.data.sources.registry import load_catalog
    from tfpipe.tools.bench.segments import wait_until_idle

    chains: dict[tuple[str, str], tuple[Iterator[Any], int, int]] = {}
    with tempfile.TemporaryDirectory() as index:
        config = load_config(args.config, [*args.set, f"data.index={index}"])
        for name, small in (("held", 2**62), ("mapped", 0)):
            shared.SMALL_BYTES = small
            catalog = load_catalog(config.data, "train", World())
            order = visit(catalog, config.data, World(), Stream.start(1)).batch(args.positions // 50)
            chains["positions", name] = (iter(order), 50, args.positions // 50)
            dataset = build_dataset(config, "train", World(), catalog=catalog)
            chains["images", name] = (iter(dataset), args.images // config.data.batch_size, config.data.batch_size)
        taken: dict[tuple[str, str], list[float]] = {key: [] for key in chains}
        for turn in range(args.turns + 1):
            # In both directions, so that neither way always comes after the other.
            for key, (iterator, steps, size) in list(chains.items())[:: 1 if turn % 2 else -1]:
                started = time.process_time()
                for _ in range(steps):
                    next(iterator)
                wait_until_idle()  # what is read ahead is of this chain
                if turn:  # the first warms up
                    taken[key].append(1e6 * (time.process_time() - started) / steps / size)
    for chain in ("positions", "images"):
        held, mapped = taken[chain, "held"], taken[chain, "mapped"]
        ratio = statistics.median(after / before for before, after in zip(held, mapped, strict=True))
        print(
            f"{chain}: held {statistics.median(held):.2f} us (least {min(held):.2f}), mapped "
            f"{statistics.median(mapped):.2f} us (least {min(mapped):.2f}) of CPU time, ratio turn by turn {ratio:.4f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--positions", type=int, default=200_000)
    parser.add_argument("--images", type=int, default=1024)
    main(parser.parse_args())
