"""Headspace: the gain of a perfect pipeline, from a training step fed by the pipeline and one fed from memory.

It follows SPDL's headspace analysis. Both steps run in turns; while batches from memory are trained no pipeline
exists, so that its threads take no CPU from them. The result is an upper bound: no input costs less than batches in
memory. If the model runs on the CPUs that decode, most of the gain is CPU time taken by decoding, not waiting.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.batch import Batch, weighed
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.loader import Loader
from tfpipe.data.pipeline import build_batches
from tfpipe.distributed import World
from tfpipe.tools.bench.chains import Pipeline
from tfpipe.tools.bench.segments import Count, Segment, Spread, measure, spread
from tfpipe.tools.report.neighbour import SWEEP

TRAINING, REPLAY = "training", "training from memory"
# Batches held in memory: enough that none stays in the CPU's caches.
BATCHES = 10
# Uncounted steps before all turns: the first traces the graph, the second may trace again.
WARM_UP_STEPS = 3
# Uncounted steps before each segment: a new pipeline fills its buffers, and works harder than later.
SETTLE_STEPS = 4
# A smaller share cannot be distinguished from 0: a host's speed drifts more from turn to turn.
LITTLE = 0.05
# A step that waits a smaller share of its time does not wait for its input.
WAITS = 0.05

Work = Callable[[Any], object]


class Headspace(NamedTuple):
    """Headspace of a training step, over the turns."""

    step_ms: Spread  # duration of a step fed by the pipeline
    replay_ms: Spread  # duration of a step fed from memory
    share: Spread  # largest share of the step's time that a faster pipeline could save; below 0 only by chance
    wait: Spread  # share of the time of a step fed by the pipeline that it waits for its batch

    @property
    def is_noisy(self) -> bool:
        """True if the pipeline is a noisy neighbour: the step does not wait, and yet it is slower than from memory."""
        return self.wait.median < WAITS and self.share.median >= LITTLE

    @property
    def meaning(self) -> str:
        """The conclusion, in one sentence."""
        percent = max(0.0, 100 * self.share.median)
        if self.is_noisy:
            return (
                f"NOISY NEIGHBOUR: a step waits {100 * self.wait.median:.0f} % of its time, and is still "
                f"{percent:.0f} % slower than from memory: the pipeline takes the model's CPUs; "
                f"{SWEEP} finds the share that gives the most steps/s"
            )
        if self.share.median < LITTLE:
            return f"training is bound by its own step: no pipeline work can win more than {percent:.0f} %"
        return f"faster input could win up to {percent:.0f} % of the step; see tfpipe bench --stages"


def headspace(training: Sequence[Segment], replay: Sequence[Segment], batch_size: int) -> Headspace:
    """Computes the headspace from the segments of both, turn by turn; a step has `batch_size` crops."""

    def step_ms(segment: Segment) -> float:
        return 1e3 * batch_size / segment.crops_per_second

    pairs = zip(training, replay, strict=True)
    return Headspace(
        spread([step_ms(segment) for segment in training]),
        spread([step_ms(segment) for segment in replay]),
        spread([1 - step_ms(b) / step_ms(a) for a, b in pairs]),
        spread([segment.wait_share for segment in training]),
    )


def feeds(
    config: Config, world: World, catalog: Catalog, warm_up_s: float, step: Work | None = None
) -> dict[str, Callable[[float], Segment]]:
    """Returns, by the name of the feed, a function that measures a training segment of a given length in seconds.

    `world` has one rank; `warm_up_s` is the shortest warm-up before each segment, in seconds, which slow steps prolong;
    `step` trains a batch, None for the step of `config`.
    """
    step = step or training_step(config, world, catalog)
    replay, settle_s = from_memory(config, world, catalog, warm_up_s, step)
    # Starts elsewhere in the epoch than the pipeline alone, so that it does not find the files in the page cache.
    fed = Pipeline(config, world, catalog, settle_s, share=0.25, work=step)
    return {TRAINING: fed.measure, REPLAY: replay}


def from_memory(
    config: Config, world: World, catalog: Catalog, warm_up_s: float, step: Work
) -> tuple[Callable[[float], Segment], float]:
    """Warms `step` up; returns the measurement of it from memory, and the warm-up in seconds that a pipeline needs."""
    dataset = build_batches(config, "train", world, catalog=catalog)
    batches = list(islice(dataset, BATCHES))
    for batch in islice(cycle(batches), WARM_UP_STEPS):
        start = time.perf_counter()
        step(batch)
    settle_s = max(warm_up_s, SETTLE_STEPS * (time.perf_counter() - start))
    return partial(_replayed, step, batches, world, warm_up_s), settle_s


def training_step(config: Config, world: World, catalog: Catalog) -> Work:
    """Builds a function that trains one step on a `Batch`, and waits for its end."""
    # These import Keras, which nothing else here needs.
    from tfpipe.training.checkpointing.start import Start, first_state
    from tfpipe.training.loop import compile_model

    # Used only by the learning rate schedule.
    steps = config.training.steps_per_epoch or max(1, catalog.samples // config.data.batch_size)
    start = Start(first_state(Loader(config, "train", world, catalog=catalog), steps))
    model = compile_model(config, world, config.data.num_classes or len(catalog.classes), steps, start)
    step = tf.function(model.train_step, reduce_retracing=True, autograph=False)
    requests = tf.constant(model.requests, tf.float32)

    def train(batch: Batch) -> None:
        _, granted, _ = step((*weighed(batch.data, "tfpipe bench"), requests))
        granted.numpy()  # training waits for it too

    return train


def _replayed(step: Work, batches: Sequence[Any], world: World, warm_up_s: float, seconds: float) -> Segment:
    return measure(_replay(step, batches, world), seconds, warm_up_s)


def _replay(step: Work, batches: Sequence[Any], world: World) -> Iterator[Count]:
    # Batches hold different numbers of crops per image: count images by the average over all batches.
    crops = sum(len(batch.positions) for batch in batches)
    images = (int(batches[-1].positions[-1, 0]) - int(batches[0].positions[0, 0])) // world.size + 1
    done = 0
    for batch in cycle(batches):
        step(batch)
        done += len(batch.positions)
        yield Count(done * images // crops, done)
