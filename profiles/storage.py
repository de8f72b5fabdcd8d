"""How many images to read at once, and AUTOTUNE in comparison: the pipeline's rate by how late the storage is.

    python profiles/storage.py -c CONFIG --reads 2 16 32 64 128 autotune --delay-ms 0 3 20

"autotune" leaves data.parallel.read and data.parallel.decode to tf.data; a number is of reads, decodes stay "auto".
Each turn builds every pipeline from scratch and measures it after a warm-up. Medians, and ratios turn by turn to 64
reads, the default.
"""

import argparse
import os
from pathlib import Path
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
DEFAULT = "64"


def main(args: argparse.Namespace) -> None:
    """Prints a line for each number of reads."""
    from tfpipe import World, load_config
    from tfpipe.tools.measure import Pipelines, in_turns

    pipelines = Pipelines(World.detect(), args.warm_up)
    for delay_ms in args.delay_ms:
        os.environ["TFPIPE_STORAGE_DELAY_MS"] = str(delay_ms)
        ways = {}
        for reads in dict.fromkeys([*args.reads, DEFAULT]):
            decode = "autotune" if reads == "autotune" else "auto"
            sets = [f"data.parallel.read={reads}", f"data.parallel.decode={decode}"]
            config = load_config(args.config, [*args.set, *sets])
            ways[reads] = pipelines.new(config).measure
        for reads, segments in (found := in_turns(ways, args.turns, args.seconds, show=False)).items():
            rates = [segment.crops_per_second for segment in segments]
            base = [segment.crops_per_second for segment in found[DEFAULT]]
            ratio = median(a / b for a, b in zip(rates, base, strict=True))
            extent = f"{min(rates):.0f} to {max(rates):.0f}"
            busy = median(segment.busy for segment in segments)
            head = f"{delay_ms:5.0f} ms {reads:>8} reads {median(rates):8.0f} crops/s ({extent})"
            print(f"{head}  x {ratio:.2f}  {busy:.2f} CPUs", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--reads", nargs="+", default=["2", "16", "32", DEFAULT, "128", "autotune"])
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[0, 3, 20])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--warm-up", type=float, default=0.8, help="seconds before each turn [%(default)s]")
    main(parser.parse_args())
