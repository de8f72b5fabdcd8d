"""Measures the input pipeline's speed against the machine's limit, and the cost of its stages.

The chain up to each stage is made of the pipeline's own stages.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.config import Config, DataConfig
from tfpipe.data.pipeline import Crops, build_batches, crop, finish, mix, read, stage_names, target, transform, visit
from tfpipe.data.runtime import autotune
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.marks import marking
from tfpipe.data.runtime.parallelism import options, thread_budget
from tfpipe.data.runtime.recording import TracedBatch
from tfpipe.data.runtime.tracing import Tracer, Window
from tfpipe.data.split import Split, sample_names
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.headspace import REPLAY, TRAINING, Headspace, feeds, headspace
from tfpipe.tools.bench.machine import DecodeLimit, Machine, limit
from tfpipe.tools.measure import LEAD_IN_S, Count, Pipelines, Segment, Spread, in_turns, measure, ratio_of, spread_of
from tfpipe.tools.report.diagnosis import ChainFigures, StageCost
from tfpipe.tools.report.runs import PIPELINE_FILE
from tfpipe.util.json_text import to_json
from tfpipe.util.progress import progress
from tfpipe.util.resources import private_memory
from tfpipe.util.retry import retried

PIPELINE, LIMIT = "pipeline", "limit"
# Warm-up before each segment of the pipeline, in which AUTOTUNE, which starts with the iterator, adapts.
WARM_UP_S = 1.0
# Only the last of this many elements of a chain reaches Python, which would otherwise dominate the measurement.
COUNTED_VISITS = 1024
COUNTED_IMAGES = 16


@dataclass(frozen=True)
class BenchPlan:
    """The measurements to make."""

    seconds: float = 10.0  # total time of each measurement, of the pipeline and of everything compared with it
    repeats: int = 5  # segments into which `seconds` is divided
    stages: bool = False  # measure also the chain up to each stage
    headspace: bool = False  # measure also the training step, fed by the pipeline and from memory

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
        if world.size > 1 and (self.stages or self.headspace):
            raise ConfigError("--stages and --headspace are of one rank: leave them out, or measure one rank")


@dataclass(frozen=True)
class Report:
    """The raw measurements of one rank."""

    machine: Machine
    data: DataConfig
    images: int  # number of images in the list
    catalog_s: float
    first_batch_s: list[float]
    """Seconds from building the pipeline to its first batch, for each segment, which builds it again."""
    segments: dict[str, list[Segment]]  # segments by the name of the measurement; the n-th ones are of the same turn
    stages: tuple[str, ...]  # names of the chains up to each stage, the complete pipeline last; () if not measured
    tuned: list[autotune.TunedValue]
    limit: DecodeLimit
    memory: tuple[int, int]
    """Bytes shared with no other process: before the list was read, with TensorFlow imported, and at the end."""

    def spread(self, name: str, figure: str = "images_per_second") -> Spread:
        """Returns the spread of a figure, a property of `Segment`, over the segments of a measurement."""
        return spread_of(self.segments[name], figure)

    def ratio(self, of: str, to: str, figure: str = "images_per_second") -> Spread:
        """Returns the ratio of a figure of measurement `of` to that of `to`, turn by turn."""
        return ratio_of(self.segments[of], self.segments[to], figure)

    @property
    def ratio_to_limit(self) -> Spread:
        """The pipeline's rate divided by the limit, which is one thread's on each CPU, turn by turn."""
        return Spread(*(ratio / self.machine.cpus for ratio in self.ratio(PIPELINE, LIMIT)))

    @property
    def costs(self) -> list[StageCost]:
        """The cost of each stage: the chain with it minus the chain without it, turn by turn; [] if not measured."""
        if not self.stages:
            return []
        chains = [[(segment.us, segment.cpu_us) for segment in self.segments[name]] for name in self.stages]
        added = np.median(np.diff(chains, axis=0, prepend=0.0), axis=1)
        names = (*self.stages[:-1], "prefetch")
        return [StageCost(name, *cost) for name, cost in zip(names, added.tolist(), strict=True)]

    @property
    def figures(self) -> ChainFigures:
        """The figures that a diagnosis takes."""
        machine = self.machine
        busy, wanted, cpu_us = (self.spread(PIPELINE, figure).median for figure in ("busy", "wanted_cpus", "cpu_us"))
        return ChainFigures(self.data, machine.cpus, machine.threads, machine.reads, busy, wanted, cpu_us, self.costs)

    @property
    def headspace(self) -> Headspace:
        """The headspace of the training step, which must have been measured."""
        return headspace(self.segments[TRAINING], self.segments[REPLAY], self.data.batch_size)


def run(config: Config, world: World, plan: BenchPlan) -> Report:
    """Measures the training pipeline of `config`.

    Raises ConfigError if the plan, a filelist or a label cannot be used, TfpipeError if a file cannot.
    """
    plan.check(world)
    before_bytes, start = private_memory(), time.perf_counter()
    pipelines = Pipelines(world, plan.warm_up_s)
    pipelines.split(config)
    catalog_s = time.perf_counter() - start
    with pipelines.failures_named(config):
        split, pipeline = pipelines.split(config), pipelines.new(config)
        decodes, about_limit = limit(split)
        stages = prefixes(config, pipelines) if plan.stages else []
        measured: dict[str, Callable[[float], Segment]] = {PIPELINE: pipeline.measure, LIMIT: partial(measure, decodes)}
        if plan.headspace:
            measured |= feeds(config, pipelines)
        for chain in progress(stages, len(stages), "warming up", "chain", world.rank == 0):
            chain.measure(0, plan.warm_up_s)
            measured[chain.name] = chain.measure
        segments = in_turns(measured, plan.repeats, plan.segment_s, world.rank == 0)
    return Report(
        machine=Machine.here(config.data, world, split.stores),
        data=config.data,
        images=len(split.catalog),
        catalog_s=catalog_s,
        first_batch_s=pipeline.first_batch_s,
        segments=segments,
        stages=(*(chain.name for chain in stages), PIPELINE) if stages else (),
        tuned=pipeline.tuned,
        limit=about_limit,
        memory=(before_bytes, private_memory()),
    )


class Chain:
    """An iterated dataset, and the way to count its elements."""

    def __init__(self, name: str, dataset: tf.data.Dataset, count: Callable[[Count, Any], Count]) -> None:
        self.name, self._dataset, self._count = name, dataset, count
        self._source = self._deliveries()

    @retried
    def measure(self, seconds: float, warm_up_s: float = LEAD_IN_S) -> Segment:
        """Measures a segment after a lead-in; from the beginning after an error that may pass."""
        try:
            return measure(self._source, seconds, warm_up_s)
        except tf.errors.OpError:
            self._source = self._deliveries()
            raise

    def _deliveries(self) -> Iterator[Count]:
        done = Count()
        for element in Cancellable(self._dataset):
            done = self._count(done, element)
            yield done


def prefixes(config: Config, pipelines: Pipelines) -> list[Chain]:
    """Builds the chain up to each stage but the last: visit; + read; + crop; + batch; + transform, if there is one."""
    data, split = config.data, pipelines.split(config)

    def chain(*stages: Callable[[tf.data.Dataset, Split], tf.data.Dataset]) -> tf.data.Dataset:
        dataset = visit(split, pipelines.stream(pipelines.next_start(config)))
        for stage in stages:
            dataset = stage(dataset, split)
        return dataset

    def by_visit(_: Count, element: Any) -> Count:
        return Count(pipelines.images_until(tf.reshape(element.visit.position, [1, 1])))

    def by_crops(done: Count, element: Crops) -> Count:
        # An image may yield no crop, and then no position.
        return Count(pipelines.images_until(element.positions)) if len(element.labels) else done

    def by_batch(done: Count, batch: tuple[tf.Tensor, ...]) -> Count:
        return Count(pipelines.images_until(batch[-1]), done.crops + len(batch[-1]))

    batched = mix(target(chain(read, crop).rebatch(data.batch_size, drop_remainder=True), split), split)
    batches = finish(batched, data, with_positions=True)
    unbuffered = options(data, pipelines.world)
    unbuffered.experimental_optimization.inject_prefetch = False
    chains = {"batch": batches, **({} if data.transform is None else {"transform": transform(batches, data)})}
    return [
        Chain("visit", _every(COUNTED_VISITS, chain()).with_options(unbuffered), by_visit),
        Chain("read", _every(COUNTED_IMAGES, chain(read)).with_options(unbuffered), by_visit),
        Chain("crop", _every(COUNTED_IMAGES, chain(read, crop)).with_options(unbuffered), by_crops),
        *(Chain(name, dataset.with_options(unbuffered), by_batch) for name, dataset in chains.items()),
    ]


def _every(count: int, dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.shard(count, count - 1)


def trace(config: Config, world: World, window: Window, folder: Path) -> None:
    """Takes batches, one per step, and writes a trace of the steps in `window` to `folder`, for `tfpipe report`.

    Raises ConfigError if a filelist or a label cannot be used, TfpipeError if a file cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # With the number of threads, which the report cannot know otherwise.
    data = config.data.model_copy(update={"threads": thread_budget(config.data, world)})
    recorded = config.model_copy(update={"data": data})
    (folder / "config.json").write_text(recorded.model_dump_json(indent=2) + "\n")
    pipelines = Pipelines(world, 0.0)
    split = pipelines.split(config)
    tracer = Tracer(folder, window, world.rank, partial(sample_names, split))
    batches = pipelines.batches(config, 0, partial(marking()(build_batches), with_ready=True))
    while tracer.steps < window.end:
        tracer.begin()
        began_s = time.time()
        batch = next(batches)
        taken_s = time.time()
        # A batch is its whole step: nothing trains on it.
        times_s = (began_s, min(taken_s, float(batch.ready)), taken_s, taken_s, 0.0)
        tracer.end(TracedBatch(tracer.steps, *times_s, batch.positions.numpy()))
    stages = [vars(stage) for stage in autotune.stages(batches.iterator, stage_names(split))]
    (folder / PIPELINE_FILE).write_text(to_json(stages) + "\n")
