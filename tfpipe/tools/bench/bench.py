"""Measures the input pipeline's speed against the machine's limit, and finds the stage that bounds it.

Measurements that are compared alternate, since the speed of a host drifts: a segment of the pipeline, one of the
limit, one of each stage, then the next turn.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tfpipe.config import Config, DataConfig, Parallel
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.runtime.autotune import Tuned
from tfpipe.data.sources.registry import load_catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.chains import Chain, Pipeline, failures_named, pieces, prefixes
from tfpipe.tools.bench.headspace import feeds
from tfpipe.tools.bench.machine import DecodeLimit, Machine, limit
from tfpipe.tools.bench.segments import Segment, Spread, in_turns, measure, spread
from tfpipe.util.progress import progress

PIPELINE, LIMIT, SERIAL = "pipeline", "limit", "serial"
# Warm-up before each segment of the pipeline, in which AUTOTUNE, which starts with the iterator, adapts.
WARM_UP_S = 1.0


@dataclass(frozen=True)
class BenchPlan:
    """The measurements to make."""

    seconds: float = 10.0  # total time of each measurement, of the pipeline and of everything compared with it
    repeats: int = 5  # segments into which `seconds` is divided
    stages: bool = False  # measure also the chain up to each stage, and the pieces of `crop` alone
    serial: bool = False  # measure also with one reader and no prefetch
    headspace: bool = False  # measure also the training step, fed by the pipeline and from memory
    ranks: int | None = None  # number of ranks to start on this machine and measure together; None: the launched ranks

    @property
    def segment_s(self) -> float:
        """Duration of one segment."""
        return self.seconds / self.repeats

    @property
    def warm_up_s(self) -> float:
        """Duration of the warm-up before each segment of a pipeline."""
        return min(WARM_UP_S, self.seconds / 2)

    def check(self, world: World) -> None:
        """Checks that the plan can be carried out; raises ConfigError if not."""
        if not 0 < self.seconds < math.inf:
            raise ConfigError(f"--seconds must be above 0 and finite, received {self.seconds:g}")
        if self.ranks is not None and world.size > 1:
            raise ConfigError(
                f"--ranks starts ranks on this machine, but {world.size} are launched already: "
                "leave out --ranks, or the launcher"
            )
        if (self.ranks is not None or world.size > 1) and (self.stages or self.serial or self.headspace):
            raise ConfigError("--stages, --serial and --headspace are of one rank: leave them out, or measure one rank")


@dataclass(frozen=True)
class Report:
    """The raw measurements of one rank."""

    machine: Machine
    data: DataConfig
    images: int
    """Number of images in the list."""
    catalog_s: float
    first_batch_s: list[float]
    """Seconds from building the pipeline to its first batch, for each segment, which builds it again."""
    segments: dict[str, list[Segment]]
    """Segments by the name of the measurement; the n-th ones are of the same turn."""
    stages: tuple[str, ...]
    """Names of the chains up to each stage, the complete pipeline last; () if not measured."""
    pieces: tuple[str, ...]
    """Names of the pieces of `crop` measured alone, over images in memory."""
    tuned: list[Tuned]
    limit: DecodeLimit

    def spread(self, name: str, figure: str = "images_per_second") -> Spread:
        """Returns the spread of a figure, a property of `Segment`, over the segments of a measurement."""
        return spread([getattr(segment, figure) for segment in self.segments[name]])

    def ratio(self, of: str, to: str, figure: str = "images_per_second", times: float = 1.0) -> Spread:
        """Returns the ratio of a figure of measurement `of` to `times` that of `to`, turn by turn."""
        pairs = zip(self.segments[of], self.segments[to], strict=True)
        return spread([getattr(a, figure) / (times * getattr(b, figure)) for a, b in pairs])


def run(config: Config, world: World, plan: BenchPlan) -> Report:
    """Measures the training pipeline of `config`.

    Raises:
        ConfigError: the plan, a filelist or a label cannot be used.
        TfpipeError: a file cannot be used.
    """
    plan.check(world)
    start = time.perf_counter()
    catalog = load_catalog(config.data, "train", world)
    catalog_s = time.perf_counter() - start
    with failures_named(config, world, catalog):
        return _run(config, world, plan, catalog, catalog_s)


def _run(config: Config, world: World, plan: BenchPlan, catalog: Catalog, catalog_s: float) -> Report:
    pipeline = Pipeline(config, world, catalog, plan.warm_up_s)
    decodes, about_limit = limit(catalog, config.data)
    stages = prefixes(config, world, catalog) if plan.stages else []
    alone = pieces(config, world, catalog) if plan.stages else []
    measured: dict[str, Callable[[float], Segment]] = {PIPELINE: pipeline.measure, LIMIT: partial(measure, decodes)}
    if plan.serial:
        measured[SERIAL] = Pipeline(_serial(config), world, catalog, plan.warm_up_s, share=0.5).measure
    if plan.headspace:
        measured |= feeds(config, world, catalog, plan.warm_up_s)
    chains = [*stages, *alone]
    for chain in progress(chains, len(chains), "warming up", "chain", world.rank == 0):
        chain.measure(0, plan.warm_up_s)
        measured[chain.name] = chain.measure

    segments = in_turns(measured, plan.repeats, plan.segment_s, world.rank == 0)
    return Report(
        machine=Machine.here(config.data, world, catalog.source.stores),
        data=config.data,
        images=len(catalog),
        catalog_s=catalog_s,
        first_batch_s=pipeline.first_batch_s,
        segments=segments,
        stages=(*_names(stages), PIPELINE) if stages else (),
        pieces=_names(alone),
        tuned=pipeline.tuned,
        limit=about_limit,
    )


def _serial(config: Config) -> Config:
    update = {"num_parallel_readers": 1, "parallel": Parallel(), "prefetch_buffer_size": 0}
    data = config.data.model_copy(update=update)
    return config.model_copy(update={"data": data})


def _names(chains: list[Chain]) -> tuple[str, ...]:
    return tuple(chain.name for chain in chains)
