"""Headspace: the gain of a perfect pipeline, from a training step fed by the pipeline and one fed from memory.

It follows SPDL's headspace analysis. Both steps run in turns; while batches from memory are trained no pipeline
exists, so that its threads take no CPU from them. The result is an upper bound: no input costs less than batches in
memory. If the model runs on the CPUs that decode, most of the gain is CPU time taken by decoding, not waiting.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.batch import Batch, split_weights
from tfpipe.data.loader import Loader
from tfpipe.tools.measure import Count, Pipelines, Segment, Spread, Work, measure, spread, spread_of
from tfpipe.tools.report.diagnosis import LITTLE, SWEEP, WAITS

TRAINING, REPLAY = "training", "training from memory"
# Batches held in memory: enough that none stays in the CPU's caches.
BATCHES = 10
# Uncounted steps before all turns: the first traces the graph, the second may trace again.
WARM_UP_STEPS = 3
# Uncounted steps before each segment: a new pipeline fills its buffers, and works harder than later.
SETTLE_STEPS = 4


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
    step_ms, replay_ms = ([1e3 * batch_size / each.crops_per_second for each in part] for part in (training, replay))
    shares = [1 - replayed / fed for fed, replayed in zip(step_ms, replay_ms, strict=True)]
    return Headspace(spread(step_ms), spread(replay_ms), spread(shares), spread_of(training, "wait_share"))


def feeds(config: Config, pipelines: Pipelines, step: Work | None = None) -> dict[str, Callable[[float], Segment]]:
    """Returns, by the name of the feed, a function that measures a training segment of a given length in seconds.

    `step` trains a batch, None for the step of `config`; there is one rank.
    """
    step = step or training_step(config, pipelines)
    replay, settle_s = from_memory(config, pipelines, step)
    return {TRAINING: pipelines.new(config, step, settle_s).measure, REPLAY: replay}


def from_memory(config: Config, pipelines: Pipelines, step: Work) -> tuple[Callable[[float], Segment], float]:
    """Warms `step` up; returns the measurement of it from memory, and the warm-up in seconds that a pipeline needs."""
    batches = list(islice(pipelines.batches(config, pipelines.next_start(config)), BATCHES))
    for batch in islice(cycle(batches), WARM_UP_STEPS):
        start = time.perf_counter()
        step(batch)
    settle_s = max(pipelines.warm_up_s, SETTLE_STEPS * (time.perf_counter() - start))
    # Batches hold different numbers of crops per image: count images by the average over all batches.
    crops = sum(len(batch.positions) for batch in batches)
    before = pipelines.images_until(batches[0].positions[:1]) - 1
    images = pipelines.images_until(batches[-1].positions) - before

    def replay() -> Iterator[Count]:
        done = 0
        for batch in cycle(batches):
            step(batch)
            done += len(batch.positions)
            yield Count(done * images // crops, done)

    return lambda seconds: measure(replay(), seconds, pipelines.warm_up_s), settle_s


def training_step(config: Config, pipelines: Pipelines) -> Work:
    """Builds a function that trains one step on a `Batch`, and waits for its end."""
    # These import Keras, which nothing else here needs.
    from tfpipe.training.checkpointing.start import Start, first_state
    from tfpipe.training.loop import compile_model

    split = pipelines.split(config)
    world = split.world
    # Used only by the learning rate schedule.
    steps = config.training.steps_per_epoch or max(1, split.order.length // config.data.batch_size)
    start = Start(first_state(Loader(config, "train", world, data=split), steps))
    model = compile_model(config, world, split.outputs, steps, start)
    step = tf.function(model.train_step, reduce_retracing=True, autograph=False)
    requests = tf.constant(model.requests, tf.float32)

    def train(batch: Batch) -> None:
        _, granted, _ = step((*split_weights(batch.data, "tfpipe bench"), requests))
        granted.numpy()  # training waits for it too

    return train
