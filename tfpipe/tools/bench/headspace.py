"""How much training could win from a faster pipeline: its step fed by the pipeline, against batches held in memory.

After SPDL's headspace analysis. Both run in turns; the pipeline is gone while batches from memory are trained, so that
its threads take no CPU from them. What it finds is an upper bound: no input costs less than one that is there already.
Where the model runs on the CPUs that decode, most of it is what decoding takes from the step, not waiting.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.catalog import Catalog
from tfpipe.data.pipeline import build_dataset
from tfpipe.distributed import World
from tfpipe.tools.bench.chains import Pipeline
from tfpipe.tools.bench.segments import Count, Segment, Spread, measure, spread

TRAINING, REPLAY = "training", "training from memory"
# Batches held: enough that none stays in the CPU's caches.
BATCHES = 10
# Uncounted, before all turns: the first traces the graph, the second may trace again.
WARM_UP_STEPS = 3
# Before each segment: a new pipeline fills its buffers, and works harder than it will.
SETTLE_STEPS = 4
# Less than this cannot be told from nothing: a host's speed drifts more from turn to turn.
LITTLE = 0.05

Work = Callable[[Any], object]


class Headspace(NamedTuple):
    """Of a training step, over the turns."""

    step_ms: Spread
    """Fed by the pipeline."""
    replay_ms: Spread
    """Fed from memory."""
    share: Spread
    """Of the step's time, the most that any work on the pipeline could win; below 0 by chance alone."""

    @property
    def meaning(self) -> str:
        """In one sentence."""
        percent = max(0.0, 100 * self.share.median)
        if self.share.median < LITTLE:
            return f"training is bound by its own step: no pipeline work can win more than {percent:.0f} %"
        return f"faster input could win up to {percent:.0f} % of the step; see tfpipe bench --stages"


def headspace(training: Sequence[Segment], replay: Sequence[Segment], batch_size: int) -> Headspace:
    """What segments of both say, turn by turn; `batch_size` crops are a step."""

    def step_ms(segment: Segment) -> float:
        return 1e3 * batch_size / segment.crops_per_second

    pairs = zip(training, replay, strict=True)
    return Headspace(
        spread([step_ms(each) for each in training]),
        spread([step_ms(each) for each in replay]),
        spread([1 - step_ms(b) / step_ms(a) for a, b in pairs]),
    )


def feeds(
    config: Config, world: World, catalog: Catalog, warm_up_s: float, step: Work | None = None
) -> dict[str, Callable[[float], Segment]]:
    """What measures a segment of so many seconds of training, by what feeds it.

    Args:
        config: of the run.
        world: one rank.
        catalog: of the training data.
        warm_up_s: before each segment; longer where the steps are.
        step: trains a batch; None for the step of `config`.
    """
    step = step or training_step(config, world, catalog)
    dataset = build_dataset(config, "train", world, with_positions=True, catalog=catalog)
    batches = list(islice(dataset, BATCHES))
    for batch in islice(cycle(batches), WARM_UP_STEPS):
        start = time.perf_counter()
        step(batch)
    settle_s = max(warm_up_s, SETTLE_STEPS * (time.perf_counter() - start))
    # At another place of the epoch than the pipeline alone, which else has just read the same files.
    fed = Pipeline(config, world, catalog, settle_s, share=0.25, work=step)
    return {TRAINING: fed.measure, REPLAY: partial(_replayed, step, batches, world, warm_up_s)}


def training_step(config: Config, world: World, catalog: Catalog) -> Work:
    """The step that training takes on a batch of (images, labels, positions), and waits for."""
    # Imports Keras, which nothing else here needs.
    from tfpipe.training.loop import compile_model
    from tfpipe.training.start import find_start

    # For the schedule of the learning rate alone.
    steps = config.training.steps_per_epoch or max(1, catalog.samples // config.data.batch_size)
    start = find_start(config, world, Path(), catalog, steps, resume=False, anyway=False)
    model = compile_model(config, world, config.data.num_classes or len(catalog.classes), steps, start)
    step = tf.function(model.train_step, reduce_retracing=True, autograph=False)
    wishes = tf.constant(model.wishes, tf.float32)

    def train(batch: Any) -> None:
        images, labels, _ = batch
        _, agreed, _ = step((images, labels, wishes))
        agreed.numpy()  # as training waits for it

    return train


def _replayed(step: Work, batches: Sequence[Any], world: World, warm_up_s: float, seconds: float) -> Segment:
    return measure(_replay(step, batches, world), seconds, warm_up_s)


def _replay(step: Work, batches: Sequence[Any], world: World) -> Iterator[Count]:
    # A batch may hold many crops of one image, or one: they count as those of all batches do.
    crops = sum(len(labels) for _, labels, _ in batches)
    images = (int(batches[-1][2][-1, 0]) - int(batches[0][2][0, 0])) // world.size + 1
    done = 0
    for batch in cycle(batches):
        step(batch)
        done += len(batch[1])
        yield Count(done * images // crops, done)
