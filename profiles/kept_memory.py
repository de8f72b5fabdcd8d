"""What it gains that freed memory is kept for the next batch: python profiles/kept_memory.py CONFIG [--turns 20].

Two processes with the same pipeline take turns: one as tfpipe sets malloc, one as glibc has it. Ratios turn by turn.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parent / "compare"))
from turns import Peer, answers, take_turns

from tfpipe import World, build_dataset, load_config

# Set to its default, it changes nothing, but tfpipe then leaves malloc as it is.
GLIBC = {"GLIBC_TUNABLES": "glibc.malloc.perturb=0"}
ENVIRONMENTS = {"kept": {}, "glibc's": GLIBC}


def serve(config: str) -> None:
    """In a process: for each line SECONDS that it reads, what that many seconds of training batches give."""
    output = answers()
    batches = iter(build_dataset(load_config(config), world=World()))
    size = int(next(batches)[0].shape[0])
    print("{}", file=output, flush=True)
    for line in sys.stdin:
        next(batches)
        start, before, crops = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), 0
        while (elapsed := time.perf_counter() - start) < float(line):
            next(batches)
            crops += size
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        each = {"crops": crops, "seconds": elapsed, "cpu_seconds": cpu_s, "peak_mb": after.ru_maxrss / 1000}
        print(json.dumps({**each, "pages": after.ru_minflt - before.ru_minflt}), file=output, flush=True)


def main(args: argparse.Namespace) -> None:
    """Prints both rows, and the gain."""
    with tempfile.TemporaryDirectory() as folder:
        peers = []
        try:
            for name, environment in ENVIRONMENTS.items():
                os.environ.pop("GLIBC_TUNABLES", None)
                os.environ.update(environment)
                command = [sys.executable, __file__, str(args.config), "--serve"]
                peers.append(Peer(name, command, Path(folder) / f"{name}.log"))
                peers[-1].answer()
            turns = take_turns(peers, args.turns, args.seconds)
        finally:
            for peer in peers:
                peer.end()
    print(
        "| freed memory | crops/s | CPU time a crop, us | fresh pages a crop | peak memory, MB |\n|---|---|---|---|---|"
    )
    figures = {name: [figures_of(turn[name]) for turn in turns] for name in ENVIRONMENTS}
    for name, rows in figures.items():
        rate, cpu_us, pages, peak = (median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {rate:,.0f} | {cpu_us:.0f} | {pages:.1f} | {peak:,.0f} |")
    pairs = list(zip(*figures.values(), strict=True))
    rates, cpus = [kept[0] / other[0] for kept, other in pairs], [kept[1] / other[1] for kept, other in pairs]
    print(f"kept: x {median(rates):.3f} ({min(rates):.2f} to {max(rates):.2f}) of the rate,", end=" ")
    print(f"x {median(cpus):.3f} ({min(cpus):.2f} to {max(cpus):.2f}) of the CPU time")


def figures_of(turn: dict[str, float]) -> tuple[float, ...]:
    """Crops/s, CPU microseconds a crop, fresh pages a crop, peak memory in MB."""
    crops = turn["crops"]
    return crops / turn["seconds"], 1e6 * turn["cpu_seconds"] / crops, turn["pages"] / crops, turn["peak_mb"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    serve(str(arguments.config)) if arguments.serve else main(arguments)
