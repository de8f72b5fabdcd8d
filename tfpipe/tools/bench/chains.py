"""The datasets that bench measures: the pipeline, the chain up to each of its stages, and pieces of a stage alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.annotations.targets import parse_targets
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.failures.batches import Batches
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.images.windows import full_windows
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import Crops, Encoded, build_batches, crop, finish, read, stage_names, visit
from tfpipe.data.runtime.autotune import Tuned, tuned
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.parallelism import options
from tfpipe.distributed import World
from tfpipe.tools.bench.segments import LEAD_IN_S, Arrive, Count, Segment, alone, measure
from tfpipe.util.retry import retried

# Only the last of this many elements reaches Python, which would otherwise dominate the measurement.
VISITS = 1024
IMAGES = 16
# Files held in memory for the pieces measured alone.
CACHED = 300


class Pipeline:
    """The complete training pipeline.

    Each segment builds it again, from where the last one ended: AUTOTUNE would double the buffer of an idle pipeline.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        catalog: Catalog,
        warm_up_s: float,
        share: float = 0.0,
        work: Callable[[Any], object] | None = None,
    ) -> None:
        """Starts at `share` of the epoch, so that the files that another pipeline has read are not in the page cache.

        A batch counts as delivered when `work`, if given, has processed it.
        """
        self.first_batch_s: list[float] = []
        """Seconds from building the pipeline to its first batch, by segment."""
        self.tuned: list[Tuned] = []
        """AUTOTUNE's choices at the end of the last segment."""
        self._config, self._world, self._catalog, self._warm_up_s = config, world, catalog, warm_up_s
        self._done = int(share * len(catalog)) // world.size
        self._work, self._work_s = work, 0.0

    def measure(self, seconds: float, arrive: Arrive = alone) -> Segment:
        """Measures a segment after the warm-up."""
        start = time.perf_counter()
        stream = _stream(self._world, self._done)
        batches = Batches(
            lambda rest: build_batches(self._config, "train", self._world, rest, self._catalog),
            *(self._catalog, self._config.data, self._world, stream),
        )
        source = self._deliveries(batches)
        next(source)
        self.first_batch_s.append(time.perf_counter() - start)
        segment = measure(source, seconds, self._warm_up_s, arrive)
        self.tuned = tuned(batches.iterator, stage_names(self._catalog, self._config.data))
        return segment

    def _deliveries(self, iterator: Iterator[Any]) -> Iterator[Count]:
        batches = iterator if self._work is None else self._worked(iterator, self._work)
        for done in _counts(batches, lambda done, batch: _add(done, batch.positions, self._world)):
            self._done = done.images
            yield done._replace(work_s=self._work_s)

    def _worked(self, iterator: Iterator[Any], work: Callable[[Any], object]) -> Iterator[Any]:
        for element in iterator:
            begin_s = time.perf_counter()
            work(element)
            self._work_s += time.perf_counter() - begin_s
            yield element


@contextmanager
def failures_named(config: Config, world: World, catalog: Catalog) -> Iterator[None]:
    """Replaces TensorFlow's errors inside `with` by a TfpipeError that names the file."""
    try:
        yield
    except tf.errors.OpError as error:
        raise to_named_error(error, catalog, config.data, world, Stream.start(world.size), None) from error


class Chain:
    """An iterated dataset, and the way to count its elements."""

    def __init__(self, name: str, dataset: tf.data.Dataset, count: Callable[[Count, Any], Count]) -> None:
        self.name = name
        self._begin = lambda: _counts(Cancellable(dataset), count)
        self._source = self._begin()

    def measure(self, seconds: float, warm_up_s: float = LEAD_IN_S) -> Segment:
        """Measures a segment after a lead-in; from the beginning after an error that may pass."""

        @retried
        def attempt() -> Segment:
            try:
                return measure(self._source, seconds, warm_up_s)
            except tf.errors.OpError:
                self._source = self._begin()
                raise

        return attempt()


def prefixes(config: Config, world: World, catalog: Catalog) -> list[Chain]:
    """Builds the chain up to each stage but the last: visit; + read; + crop; + batch."""
    data = config.data

    def visits(share: float) -> tf.data.Dataset:
        # Each chain starts elsewhere in the epoch, so that files read by the one before are not in the page cache.
        return visit(catalog, data, world, _stream(world, int(share * len(catalog)) // world.size))

    def encoded(share: float) -> tf.data.Dataset:
        return read(visits(share), catalog, data, world)

    def crops(share: float) -> tf.data.Dataset:
        return crop(encoded(share), catalog, data, world)

    batches = crops(0.75).rebatch(data.batch_size, drop_remainder=True)

    def at(position: Callable[[Any], tf.Tensor]) -> Callable[[Count, Any], Count]:
        return lambda _, element: Count(_images(position(element), world))

    def by_crops(done: Count, element: Crops) -> Count:
        # An image may yield no crop, and then no position.
        return Count(_images(element.positions[-1, 0], world)) if len(element.labels) else done

    return [
        Chain(name, dataset.with_options(_unbuffered(config, world)), count)
        for name, dataset, count in (
            ("visit", _every(VISITS, visits(0)), at(lambda element: element.visit.position)),
            ("read", _every(IMAGES, encoded(0.25)), at(lambda element: element.visit.position)),
            ("crop", _every(IMAGES, crops(0.5)), by_crops),
            ("batch", finish(batches, data, with_positions=True), lambda done, batch: _add(done, batch[2], world)),
        )
    ]


def pieces(config: Config, world: World, catalog: Catalog) -> list[Chain]:
    """Builds the pieces of `crop`, alone over the same images in memory: parse XMLs; decode and resize whole images."""
    data = config.data
    decoder = choose_decoder(data)
    encoded = read(visit(catalog, data, world, Stream.start(world.size)), catalog, data, world)
    # At least one batch, also of a list that is shorter: the stream is endless.
    held = encoded.take(max(decoder.images, min(CACHED, len(catalog))))
    files = held.batch(decoder.images, drop_remainder=True).cache().repeat()

    def decode(images: Encoded) -> tf.Tensor:
        numbers = tf.range(decoder.images, dtype=tf.int64)
        full = Windows(numbers, 0 * numbers, full_windows(images.size), images.label)
        return decoder.decode(images.jpeg, images.size, full, tf.zeros(0, tf.bool))

    def chain(name: str, work: Callable[[Encoded], tf.Tensor]) -> Chain:
        done = files.map(tf.autograph.experimental.do_not_convert(work), num_parallel_calls=tf.data.AUTOTUNE)
        dataset = _every(IMAGES, done).with_options(_unbuffered(config, world))
        return Chain(name, dataset, lambda done, _: Count(done.images + IMAGES * decoder.images))

    def parse(images: Encoded) -> tf.Tensor:
        return parse_targets(images.xml, images.xml_path, images.label, images.size, catalog.classes).boxes

    result = [chain("decode and resize", decode)]
    if catalog.boxes is None and catalog.annotated.any():
        result.insert(0, chain("parse XML", parse))
    return result


def _stream(world: World, visits: int) -> Stream:
    """Returns the stream after this rank has made `visits` visits."""
    return Stream.start(world.size).moved(world.rank, Cursor(world.rank + visits * world.size))


def _counts(iterator: Iterator[Any], count: Callable[[Count, Any], Count]) -> Iterator[Count]:
    done = Count()
    for element in iterator:
        done = count(done, element)
        yield done


def _unbuffered(config: Config, world: World) -> tf.data.Options:
    result = options(config.data, world)
    result.experimental_optimization.inject_prefetch = False
    return result


def _every(count: int, dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.shard(count, count - 1)


def _add(done: Count, positions: tf.Tensor, world: World) -> Count:
    """Returns what is done after the next batch, of these positions, int64 [batch, 2]."""
    return Count(_images(positions[-1, 0], world), done.crops + len(positions))


def _images(position: tf.Tensor, world: World) -> int:
    """Returns the number of this rank's visits from the stream's start up to and including `position`."""
    return int(position) // world.size + 1
