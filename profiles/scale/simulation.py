"""Simulates up to 16,384 ranks: storage, metadata server, decoding, prefetch and allreduce, drawn from recorded times.

    python profiles/scale/simulation.py --check     compares 1, 2 and 4 ranks with what measure.py has measured
    python profiles/scale/simulation.py --out docs/assets/scale.png

An image is read by one of its rank's reads at once (after its opens, which a metadata server serves at a limited rate),
decoded by one of the cores that the ranks of its node share, and consumed in order. Time runs image by image, for all
ranks at once, so that 16,384 ranks take seconds. See docs/scale.md.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

MEASURED = Path(__file__).with_name("measured.json")
TOLERANCE = 0.10
BLOCK = 32  # images that one call decodes (NATIVE_IMAGES)
SIZES = (1, 64, 256, 1024, 4096, 16384)


@dataclass(frozen=True)
class Times:
    """Times to draw from: quantiles, equally spaced."""

    quantiles: np.ndarray

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Returns float64 [count], by inversion of the recorded distribution."""
        places = random.random(count) * (len(self.quantiles) - 1)
        return np.interp(places, np.arange(len(self.quantiles)), self.quantiles)

    def scaled_to(self, mean: float) -> "Times":
        """Returns the same shape with another mean."""
        return Times(self.quantiles * mean / np.trapezoid(self.quantiles, dx=1 / (len(self.quantiles) - 1)))


@dataclass(frozen=True)
class Cluster:
    """Ranks, their storage and their model; times in seconds."""

    ranks: int
    storage_s: Times  # a read, once its file is open
    decode_s: Times  # CPU time of an image, all of the pipeline but `read_cpu_s`
    read_cpu_s: float = 0.0  # CPU time of a read, during which it occupies one of `reads`
    cores: float = 1.0  # of a node, shared by its ranks
    ranks_per_node: int = 1
    batch: int = 16
    reads: int = 4  # at once, of a rank
    prefetch: int = 2  # batches
    decoders: int = 1  # at once, of a rank
    step_s: float = 0.0  # of the model
    hop_s: float = 0.0  # of an allreduce, for each doubling of the ranks
    opens: float = 0.0  # operations at the metadata server, an image
    opens_per_s: float = math.inf  # that it serves
    reads_per_s: float = math.inf  # images that the file system's disks and network deliver
    straggler: float = 0.0  # share of nodes whose storage and cores take twice as long


def simulate(cluster: Cluster, steps: int = 60, seed: int = 0) -> float:
    """Returns the images per second of all ranks in the second half of `steps` steps."""
    random = np.random.default_rng(seed)
    ranks, nodes = cluster.ranks, -(-cluster.ranks // cluster.ranks_per_node)
    local = ranks // nodes
    slow = np.where(np.arange(nodes) < math.ceil(cluster.straggler * nodes), 2.0, 1.0)
    slow = np.repeat(slow[random.permutation(nodes)], local)
    servers = math.ceil(cluster.cores)
    core_free = np.zeros((nodes, servers))
    blocks = steps * cluster.batch // BLOCK
    # Rings: when the last reads were taken; when the last blocks of images were decoded, and taken into batches.
    taken, consumed = np.zeros((cluster.reads, ranks)), np.zeros((cluster.decoders, ranks))
    stepped = np.zeros(steps + 1)  # when all ranks have met after so many steps
    ready = np.zeros((blocks, ranks))
    order_s, gathered = np.zeros(ranks), np.zeros(ranks)
    metadata_s, disks_s, step = 0.0, 0.0, 0  # when these are free
    for block in range(blocks):
        # A decoding call takes its images from the reads before it begins; meanwhile no other call does.
        gathered = np.maximum(gathered, consumed[block % cluster.decoders])
        if cluster.read_cpu_s:
            # Short work, for which no read waits; decoding has that much less of the cores.
            speed = cluster.cores / servers
            run_on_cores(gathered, BLOCK * cluster.read_cpu_s * slow / speed, core_free)
        work = np.zeros(ranks)
        for image in range(block * BLOCK, (block + 1) * BLOCK):
            begin = taken[image % cluster.reads]
            opened, metadata_s = queue(begin, cluster.opens / cluster.opens_per_s, metadata_s)
            opened, disks_s = queue(opened, 1 / cluster.reads_per_s, disks_s)
            read = opened + cluster.storage_s.draw(random, ranks) * slow + cluster.read_cpu_s
            order_s = np.maximum(order_s, read)
            gathered = taken[image % cluster.reads] = np.maximum(order_s, gathered)
            work += cluster.decode_s.draw(random, ranks)
        ready[block] = run_on_cores(gathered, work * slow * servers / cluster.cores, core_free)
        # All steps whose batches are complete.
        while step < steps and ((step + 1) * cluster.batch - 1) // BLOCK <= block:
            have = ready[((step + 1) * cluster.batch - 1) // BLOCK]
            meet = float(np.maximum(have, stepped[step]).max())
            stepped[step + 1] = meet + cluster.step_s + cluster.hop_s * math.log2(ranks)
            step += 1
        # A block waits for its batch to be wanted, which the prefetched batches put off.
        wanted = max(0, block * BLOCK // cluster.batch - cluster.prefetch)
        consumed[block % cluster.decoders] = np.maximum(ready[block], stepped[min(wanted, step)])
    half = step // 2
    return ranks * cluster.batch * (step - half) / (stepped[step] - stepped[half])


def queue(arrive: np.ndarray, each_s: float, free_s: float) -> tuple[np.ndarray, float]:
    """Returns when one server has served all, first come first served, `each_s` seconds each, and when it is free."""
    if not each_s:
        return arrive, free_s
    order, turns = np.argsort(arrive, kind="stable"), np.arange(len(arrive))
    ended = np.maximum.accumulate(np.maximum(arrive[order], free_s) - turns * each_s) + (turns + 1) * each_s
    served = np.empty_like(arrive)
    served[order] = ended
    return served, float(ended[-1])


def run_on_cores(start: np.ndarray, work: np.ndarray, core_free: np.ndarray) -> np.ndarray:
    """Returns when work ends that each rank has for a core of its node from `start` on; takes up the cores."""
    nodes = len(core_free)
    starts, works = start.reshape(nodes, -1), work.reshape(nodes, -1)
    ends = np.empty_like(starts)
    order = np.argsort(starts, axis=1, kind="stable")
    rows = np.arange(nodes)
    for turn in range(starts.shape[1]):
        rank, core = order[:, turn], core_free.argmin(axis=1)
        end = np.maximum(starts[rows, rank], core_free[rows, core]) + works[rows, rank]
        ends[rows, rank] = core_free[rows, core] = end
    return ends.reshape(-1)


def check() -> bool:
    """Prints the rates of measured.json next to simulated ones; returns whether all are within TOLERANCE."""
    measured = json.loads(MEASURED.read_text())
    settings, cores = measured["settings"], measured["cores"]
    cpu_us = {(row["ranks"], row["delay_ms"]): row["cpu_us"] for row in measured["rates"]}
    print(f"{cores} cores; images/s")
    worst = 0.0
    for row in measured["rates"]:
        storage = Times(np.array(row["delays_ms"] or measured["read_ms"]) / 1000)
        decode_us = min(cpu_us[row["ranks"], 0.0], row["cpu_us"])
        cluster = Cluster(
            row["ranks"],
            storage,
            Times(np.array(measured["decode_us"])).scaled_to(decode_us / 1e6),
            read_cpu_s=(row["cpu_us"] - decode_us) / 1e6,
            cores=cores,
            ranks_per_node=row["ranks"],
            batch=settings["batch"],
            reads=settings["reads"],
            prefetch=settings["prefetch"],
            decoders=settings["threads"],
            hop_s=measured["barrier_ms"] / 1000,
        )
        rate = simulate(cluster, 200)
        error = rate / row["images_per_second"] - 1
        worst = max(worst, abs(error))
        print(
            f"{row['ranks']} ranks, {row['delay_ms']:3g} ms: measured {row['images_per_second']:7.0f}"
            f" ({min(row['turns']):.0f} to {max(row['turns']):.0f}), simulated {rate:7.0f}, {error:+.1%}"
        )
    print(f"the largest difference is {worst:.1%}")
    return worst <= TOLERANCE


def scenarios(measured: dict[str, Any]) -> dict[str, Cluster]:
    """Returns ways to keep ImageNet on a cluster: nodes of 4 ranks and 32 cores, models of 2,000 images/s a rank.

    Storage times are the measured ones of a 3 ms late file system, and of the local disk; decoding takes 1.25 ms of a
    core (jobs/README.md). The rest is assumed: 50,000 opens a second, 200 GB/s, 0.5 ms a hop, 1 % slow nodes.
    """
    (late_ms,) = (row["delays_ms"] for row in measured["rates"] if (row["ranks"], row["delay_ms"]) == (1, 3.0))
    late, local = Times(np.array(late_ms) / 1000), Times(np.array(measured["read_ms"]) / 1000)
    decode = Times(np.array(measured["decode_us"])).scaled_to(0.00125)
    shared = Cluster(
        1,
        late,
        decode,
        cores=32,
        ranks_per_node=4,
        batch=32,
        reads=64,
        decoders=8,
        step_s=32 / 2000,
        hop_s=0.0005,
        opens=2,
        opens_per_s=50_000,
        reads_per_s=200e9 / 110e3,
        straggler=0.01,
    )
    return {
        "files and XMLs": shared,
        "index": replace(shared, opens=1),
        "pack": replace(shared, opens=0),
        "stage": replace(shared, opens=0, reads_per_s=math.inf, storage_s=local),
    }


def main() -> int:
    """Checks, or prints the table of scenarios and draws it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of ranks %(default)s")
    args = parser.parse_args()
    if args.check:
        return 0 if check() else 1
    rates: dict[str, list[float]] = {}
    for name, cluster in scenarios(json.loads(MEASURED.read_text())).items():
        for ranks in args.sizes:
            nodes = replace(cluster, ranks=ranks, ranks_per_node=min(ranks, cluster.ranks_per_node))
            rates.setdefault(name, []).append(simulate(nodes, 24))
        cells = (f"{ranks}: {rate:.3g}" for ranks, rate in zip(args.sizes, rates[name], strict=True))
        print(f"{name:15}", *cells, sep="  ")
    if args.out:
        draw(rates, args.sizes, args.out)
    return 0


def draw(rates: dict[str, list[float]], sizes: Sequence[int], out: Path) -> None:
    """Draws images/s by number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2))
    axes.plot(sizes, [2000 * ranks for ranks in sizes], "k:", label="the model alone")
    for name, each in rates.items():
        axes.plot(sizes, each, marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="images/s, all ranks")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
