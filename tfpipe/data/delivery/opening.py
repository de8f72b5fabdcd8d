"""Opens a rank's pipeline where its position is, and makes a tf.data.Dataset of what is handed out."""

import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.batch import Batch
from tfpipe.data.delivery.lengths import Lengths
from tfpipe.data.delivery.taker import Prepare, Taker
from tfpipe.data.failures.batches import Batches
from tfpipe.data.order.progress import Progress
from tfpipe.data.order.stream import Stream
from tfpipe.data.runtime.shutdown import close_at_exit
from tfpipe.native import core

Build = Callable[..., tf.data.Dataset]
logger = logging.getLogger(__name__)
TURNED = (
    "EXIF turns some of the images that this process decodes, which are taken as they are stored, as ImageNet's are: "
    'set data.exif to "apply" to turn them, and their boxes, or to "ignore" if they are meant so'
)


class Opener:
    """Opens the pipeline where a rank is, with the thread that takes its batches.

    It has no reference to the Loader: the thread ends when the Loader is dropped.
    """

    def __init__(self, config: Config, build: Build, lengths: Lengths, timeout_s: float) -> None:
        """Builds by `build`, which is pipeline.build_batches; a batch may take `timeout_s` seconds."""
        self._config, self._lengths, self.timeout_s = config, lengths, timeout_s
        split = lengths.data
        self._warns_of_exif = "exif" not in split.config.model_fields_set  # a config that has the key knows of it
        self._build = lambda config, stream: build(config, split.catalog.split, split.world, stream, split)
        self.start = Stream.start(split.world.size)
        """The whole stream, whose dataset is built once: test passes repeat it."""
        self._whole = cache(lambda: self._build(config, self.start))
        self.prepare: Callable[[Batches, int | None], Prepare] | None = None
        """Returns a function by which the thread prepares batches, given them and, of a padded pass, their number."""
        self.ahead = 0
        """Batches that the thread prepares before they are asked for."""

    def __call__(self, progress: Progress) -> Taker:
        at, split = progress.at, self._lengths.data
        step = at.given.step
        # Here, as all ranks may have to ask for it, and not in the thread.
        schedule = self._lengths.schedule if split.config.has_phases else None

        def build(stream: Stream, taken: int) -> tf.data.Dataset:
            if schedule is not None:
                phase, steps = schedule.phase_after(step + taken)
                return self._build(self._config.at(phase.epoch), stream).take(steps)
            return self._whole() if stream is self.start else self._build(self._config, stream)

        batches, rest = Batches(build, split, progress.ahead), None
        if self._lengths.is_padded and (rest := self._lengths.rest_of_pass(at.stream)) is not None:
            rest -= step - at.first.step

        def prepare(source: Iterator[Batch]) -> Iterator[Any]:
            function: Prepare = iter if self.prepare is None else self.prepare(batches, rest)
            return function(map(self._warn, source))

        return Taker(batches, step + 1, self.timeout_s, prepare, self.ahead)

    def _warn(self, batch: Batch) -> Batch:
        if self._warns_of_exif and core().pop_unturned():
            self._warns_of_exif = False
            logger.warning(TURNED)
        return batch

    def element_spec(self, opened: Batches) -> Batch:
        """Returns the types and shapes of all batches, None for a size that changes with the phases."""
        config, split = self._config, self._lengths.data
        if not split.config.has_phases:
            return opened.element_spec
        phases = self._lengths.schedule.phases
        specs = [self._build(config.at(phase.epoch), self.start).element_spec for phase in phases]
        return tf.nest.map_structure(lambda spec, *more: spec.most_specific_common_supertype(more), *specs)


def as_dataset(begin: Callable[[], Iterator[Any]], spec: Any, length: int | None) -> tf.data.Dataset:
    """Returns a dataset of which each iteration takes the batches of `begin()`, of `spec`, when they are asked for.

    `length` is the number of batches of every iteration, or None if it is not known or varies. An error of `begin`
    or its batches is TensorFlow's UnknownError, with the same text.
    """
    dataset = tf.data.Dataset.from_generator(begin, output_signature=spec)
    if length is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    # Keras drops iterators in cycles of references. Python's collector may find one in any thread, also in a thread of
    # that very iterator's, e.g. of a prefetch, which would then wait for its own end: so the dataset has no threads.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = options.autotune.enabled = False
    return close_at_exit(dataset.with_options(options))
