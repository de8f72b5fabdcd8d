"""Measures several ranks together: on this machine against one rank alone, or as a launcher has started them.

All ranks measure at the same time: each keeps taking batches until all have warmed up, and again until all have
measured. So no rank idles with full buffers, and none has the machine to itself at the end.
"""

import logging
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from statistics import median
from typing import Any

import tensorflow as tf

from tfpipe.config import Config, DataConfig
from tfpipe.data.sources.registry import load_catalog
from tfpipe.distributed import World, cpu_share
from tfpipe.errors import TfpipeError
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.chains import Pipeline
from tfpipe.tools.bench.machine import Machine
from tfpipe.tools.bench.segments import Arrive, Segment, Spread, spread, wait_until_idle
from tfpipe.util.progress import progress


@dataclass(frozen=True)
class Ranks:
    """The segments of ranks that share the data."""

    machine: Machine  # the machine of rank 0
    turns: list[list[Segment]]  # segments by turn, then by rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.turns[0])

    @property
    def totals(self) -> list[float]:
        """images/s of all ranks together, by turn."""
        return [sum(segment.images_per_second for segment in turn) for turn in self.turns]

    @property
    def cpu_us(self) -> list[float]:
        """Microseconds of CPU time per image, over all ranks, by turn."""
        return [
            1e6 * sum(segment.cpu_seconds for segment in turn) / sum(segment.images for segment in turn)
            for turn in self.turns
        ]

    @property
    def each(self) -> Spread:
        """Spread over the ranks of a rank's images/s, which is its median over the turns."""
        return spread([median(segment.images_per_second for segment in rank) for rank in zip(*self.turns, strict=True)])


@dataclass(frozen=True)
class RanksReport:
    """The raw measurements of several ranks."""

    data: DataConfig
    together: Ranks
    alone: Ranks | None  # one rank alone, measured in turns with the others; None if a launcher has started the ranks

    @property
    def ratio(self) -> Spread | None:
        """images/s of all ranks together divided by those of one rank alone, turn by turn."""
        if self.alone is None:
            return None
        return spread([a / b for a, b in zip(self.together.totals, self.alone.totals, strict=True)])

    @property
    def cpu_ratio(self) -> Spread | None:
        """CPU time per image of one rank alone divided by that of all: `ratio` if no other process used CPUs."""
        if self.alone is None:
            return None
        return spread([a / b for a, b in zip(self.alone.cpu_us, self.together.cpu_us, strict=True)])


def run(config: Config, world: World, plan: BenchPlan) -> RanksReport:
    """Measures the training pipeline of `config` on `plan.ranks` ranks of this machine, or on those of `world`.

    Raises:
        ConfigError: the plan, a filelist or a label cannot be used.
        TfpipeError: a file cannot be used, or a rank has ended.
    """
    plan.check(world)
    return _launched(config, world, plan) if plan.ranks is None else _started(config, plan, plan.ranks)


def _launched(config: Config, world: World, plan: BenchPlan) -> RanksReport:
    from mpi4py import MPI

    rank = _Rank(config, world, plan.warm_up_s)
    turns = progress(range(plan.repeats), plan.repeats, "measuring", "segment", world.rank == 0)
    segments = [rank.measure(plan.segment_s, lambda: MPI.COMM_WORLD.Ibarrier().Test) for _ in turns]
    by_turn = [list(turn) for turn in zip(*world.gather(segments), strict=True)]
    return RanksReport(config.data, Ranks(Machine.here(config.data, world), by_turn), None)


def _started(config: Config, plan: BenchPlan, ranks: int) -> RanksReport:
    alone, together = [], []
    with _Processes(config, 1, plan.warm_up_s) as single, _Processes(config, ranks, plan.warm_up_s) as several:
        for turn in progress(range(2 * plan.repeats), 2 * plan.repeats, "measuring", "segment"):
            if turn % 2 == 0:
                alone.append(single.measure(plan.segment_s))
            else:
                together.append(several.measure(plan.segment_s))
        return RanksReport(config.data, Ranks(several.machine, together), Ranks(single.machine, alone))


class _Rank:
    """This process as a rank; between segments it has no pipeline, so that none prefetches."""

    def __init__(self, config: Config, world: World, warm_up_s: float) -> None:
        if world.size > 1 and world.threads is not None:
            # Training sets these threads too.
            tf.config.threading.set_inter_op_parallelism_threads(world.threads)
            tf.config.threading.set_intra_op_parallelism_threads(world.threads)
        catalog = load_catalog(config.data, "train", world)
        # Starts elsewhere in the epoch than the rank alone, whose files are in the page cache.
        self._pipeline = Pipeline(config, world, catalog, warm_up_s, share=0.5 if world.size > 1 else 0.0)

    def measure(self, seconds: float, arrive: Arrive) -> Segment:
        segment = self._pipeline.measure(seconds, arrive)
        wait_until_idle()
        return segment


class _Processes(AbstractContextManager):
    """The ranks of a world as processes of this machine, each with its share of the CPUs."""

    def __init__(self, config: Config, size: int, warm_up_s: float) -> None:
        # A fork would copy locks that TensorFlow's threads hold.
        context = get_context("spawn")
        threads = cpu_share(len(os.sched_getaffinity(0)), os.cpu_count() or 1, size)
        self._processes, self._connections = [], []
        for rank in range(size):
            here, there = context.Pipe()
            world = World(rank, size, local_rank=rank, local_size=size, threads=threads)
            process = context.Process(target=_serve, args=(there, config, world, warm_up_s), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._connections.append(here)
        self.machine = Machine.here(config.data, world)

    def measure(self, seconds: float) -> list[Segment]:
        """Measures a segment on every rank at the same time."""
        self._tell(seconds)
        for _ in ("warmed up", "measured"):
            self._answers()
            self._tell(True)
        return self._answers()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _tell(self, message: Any) -> None:
        for link in self._connections:
            with suppress(OSError):  # the rank has ended, which `_answers` reports
                link.send(message)

    def _answers(self) -> list[Any]:
        """Returns the next message of each rank, by rank; raises the error of the first rank that fails."""
        answers: dict[connection.Connection, Any] = {}
        while len(answers) < len(self._connections):
            ready = connection.wait([link for link in self._connections if link not in answers])
            for link in (link for link in self._connections if link in ready):
                try:
                    answer = answers[link] = link.recv()
                except (EOFError, OSError) as error:
                    rank = f"rank {self._connections.index(link)} of {len(self._connections)}"
                    raise TfpipeError(f"{rank} has ended; if memory was short, measure fewer: --ranks") from error
                if isinstance(answer, Exception):
                    raise answer
        return [answers[link] for link in self._connections]


def _serve(parent: connection.Connection, config: Config, world: World, warm_up_s: float) -> None:
    """Runs in the process of a rank: measures on request, until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if world.size > 1:  # the rank alone has logged it already
        logging.disable(logging.WARNING)

    def arrive() -> Callable[[], bool]:
        parent.send("here")
        return lambda: parent.poll() and parent.recv()

    try:
        rank = _Rank(config, world, warm_up_s)
        while True:
            parent.send(rank.measure(parent.recv(), arrive))
    except TfpipeError as error:
        parent.send(error)
    except (EOFError, BrokenPipeError):
        return
