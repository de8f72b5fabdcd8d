"""What crops kept in memory give (`data.cache_stage`): python profiles/cached.py -c CONFIG.

Crops/s, of the first epoch and of later ones.
"""

import argparse
import math
import time
from statistics import median

from tfpipe import World, build_dataset, load_config
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.sources.registry import load_split

WAYS = {
    "not kept": ["data.cache=null"],
    "kept": ["data.cache=memory", "data.cache_stage=crops", "data.flip=false"],
    "kept, mirrored at random": ["data.cache=memory", "data.cache_stage=crops", "data.flip=true"],
}


def rates(config: str, settings: list[str], epochs: int) -> list[float]:
    """Crops/s of each epoch, as near as whole batches come to it."""
    loaded = load_config(config, settings)
    split = load_split(loaded.data, "train", World())
    batches = math.ceil(count_crops(split).crops / loaded.data.batch_size)
    iterator, found = iter(build_dataset(loaded, data=split)), []
    for _ in range(epochs):
        start = time.perf_counter()
        for _ in range(batches):
            next(iterator)
        found.append(batches * loaded.data.batch_size / (time.perf_counter() - start))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--config", required=True)
    parser.add_argument("--epochs", type=int, default=8, help="at least 3 [%(default)s]")
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args()
    turns = [
        {name: rates(chosen.config, how, chosen.epochs) for name, how in WAYS.items()} for _ in range(chosen.turns)
    ]
    for name in WAYS:
        first = median(turn[name][0] for turn in turns)
        # The second still waits for the last of the first.
        later = median(rate for turn in turns for rate in turn[name][2:])
        ratio = median(median(turn[name][2:]) / median(turn["not kept"][2:]) for turn in turns)
        print(f"{name}: first epoch {first:,.0f}, later ones {later:,.0f} crops/s, {ratio:.1f} times those not kept")
