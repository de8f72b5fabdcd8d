"""How many images to read at once: the pipeline's rate for several numbers, by how late the storage is.

    python profiles/storage.py -c CONFIG --reads 2 16 32 64 128 --delay-ms 0 3 20

Interleaved: each turn builds every pipeline anew and measures it after a warm-up. Medians, and ratios turn by turn to
the first number.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
WARM_UP_S, SEGMENT_S = 0.8, 1.2


def main() -> None:
    """Prints a line for each number of reads."""
    from tfpipe import load_config
    from tfpipe.tools.bench.segments import wait_until_idle

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", required=True)
    parser.add_argument("--reads", type=int, nargs="+", default=[2, 16, 32, 64, 128])
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[0, 3, 20])
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    for delay_ms in args.delay_ms:
        rates: dict[int, list[float]] = {reads: [] for reads in args.reads}
        for _ in range(args.turns):
            for reads in args.reads:
                sets = [f"data.parallel.read={reads}", f"data.storage_delay_ms={delay_ms}"]
                rates[reads].append(crops_per_second(load_config(args.config, sets)))
                wait_until_idle()
        for reads, each in rates.items():
            ratio = statistics.median(a / b for a, b in zip(each, rates[args.reads[0]], strict=True))
            extent = f"{min(each):.0f} to {max(each):.0f}"
            print(
                f"{delay_ms:5.0f} ms {reads:5} reads {statistics.median(each):8.0f} crops/s ({extent})  x {ratio:.2f}"
            )


def crops_per_second(config) -> float:
    """Of a pipeline built anew, after its warm-up."""
    from tfpipe import World, build_dataset

    batches = iter(build_dataset(config, "train", World.detect()))
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_S:
        next(batches)
    start, crops = time.perf_counter(), 0
    while time.perf_counter() - start < SEGMENT_S:
        crops += len(next(batches)[1])
    return crops / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
