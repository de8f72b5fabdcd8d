"""Measures the ranks that a launcher has started: all together, in turns with rank 0 alone.

All ranks measure at the same time: each keeps taking batches until all have warmed up, and again until all have
measured. So no rank idles with full buffers, and none has the machine to itself at the end.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import tensorflow as tf

from tfpipe.config import Config, DataConfig
from tfpipe.distributed import World
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.machine import Machine
from tfpipe.tools.measure import Pipelines, Segment, Spread, spread, wait_until_idle
from tfpipe.util.progress import progress

# How often a rank looks whether rank 0, which measures alone, has finished; looking takes CPU time from it.
POLL_S = 0.01


@dataclass(frozen=True)
class RanksReport:
    """The raw measurements of several ranks that share the data, in turns with rank 0 alone."""

    data: DataConfig
    machine: Machine  # as a rank uses it
    machine_alone: Machine  # as rank 0 uses it alone, with all CPUs that it may use
    turns: list[list[Segment]]  # segments of all ranks together, by turn, then by rank
    alone: list[Segment]  # segments of rank 0 alone, by turn

    @property
    def totals(self) -> list[float]:
        """images/s of all ranks together, by turn."""
        return [sum(segment.images_per_second for segment in turn) for turn in self.turns]

    @property
    def each(self) -> Spread:
        """Spread over the ranks of a rank's images/s, which is its median over the turns."""
        return spread([median(segment.images_per_second for segment in rank) for rank in zip(*self.turns, strict=True)])

    @property
    def ratio(self) -> Spread:
        """images/s of all ranks together divided by those of one rank alone, turn by turn."""
        pairs = zip(self.totals, self.alone, strict=True)
        return spread([total / segment.images_per_second for total, segment in pairs])

    @property
    def cpu_ratio(self) -> Spread:
        """CPU time per image of one rank alone divided by that of all: `ratio` if no other process used CPUs."""
        together = [
            1e6 * sum(segment.cpu_seconds for segment in turn) / sum(segment.images for segment in turn)
            for turn in self.turns
        ]
        return spread([segment.cpu_us / cpu_us for segment, cpu_us in zip(self.alone, together, strict=True)])


def run(config: Config, world: World, plan: BenchPlan) -> RanksReport:
    """Measures the training pipeline of `config` on all ranks of `world`; only rank 0's report has turns of it alone.

    Raises ConfigError if the plan, a filelist or a label cannot be used, TfpipeError if a file cannot.
    """
    from mpi4py import MPI

    def arrive() -> Callable[[], bool]:
        return MPI.COMM_WORLD.Ibarrier().Test

    def wait_for_all() -> None:
        all_here = arrive()
        while not all_here():
            time.sleep(POLL_S)

    plan.check(world)
    if world.threads is not None:
        # Training sets these threads too.
        tf.config.threading.set_inter_op_parallelism_threads(world.threads)
        tf.config.threading.set_intra_op_parallelism_threads(world.threads)
    # The ranks start elsewhere in the epoch than the one alone, whose files are in the page cache.
    together = Pipelines(world, plan.warm_up_s, start=0.5).new(config)
    alone = Pipelines(World(), plan.warm_up_s).new(config) if world.rank == 0 else None
    together_segments, alone_segments = [], []
    for _ in progress(range(plan.repeats), plan.repeats, "measuring", "turn", world.rank == 0):
        together_segments.append(together.measure(plan.segment_s, arrive))
        wait_until_idle()
        wait_for_all()
        if alone is not None:
            alone_segments.append(alone.measure(plan.segment_s))
            wait_until_idle()
        wait_for_all()
    turns = [list(turn) for turn in zip(*world.gather(together_segments), strict=True)]
    machine, machine_alone = Machine.here(config.data, world), Machine.here(config.data, World())
    return RanksReport(config.data, machine, machine_alone, turns, alone_segments)
