"""The chains that bench measures besides the pipeline: up to each of its stages, and pieces of `crop` alone."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.annotations.targets import parse_targets
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.images.windows import full_windows
from tfpipe.data.pipeline import Crops, Encoded, crop, finish, read, visit
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.parallelism import options
from tfpipe.tools.measure import LEAD_IN_S, Count, Pipelines, Segment, measure
from tfpipe.util.retry import retried

# Only the last of this many elements reaches Python, which would otherwise dominate the measurement.
VISITS = 1024
IMAGES = 16
# Files held in memory for the pieces measured alone.
CACHED = 300


class Chain:
    """An iterated dataset, and the way to count its elements."""

    def __init__(self, name: str, dataset: tf.data.Dataset, count: Callable[[Count, Any], Count]) -> None:
        self.name, self._dataset, self._count = name, dataset, count
        self._source = self._deliveries()

    def measure(self, seconds: float, warm_up_s: float = LEAD_IN_S) -> Segment:
        """Measures a segment after a lead-in; from the beginning after an error that may pass."""

        @retried
        def attempt() -> Segment:
            try:
                return measure(self._source, seconds, warm_up_s)
            except tf.errors.OpError:
                self._source = self._deliveries()
                raise

        return attempt()

    def _deliveries(self) -> Iterator[Count]:
        done = Count()
        for element in Cancellable(self._dataset):
            done = self._count(done, element)
            yield done


def prefixes(config: Config, pipelines: Pipelines) -> list[Chain]:
    """Builds the chain up to each stage but the last: visit; + read; + crop; + batch."""
    data, world, catalog = config.data, pipelines.world, pipelines.catalog(config)

    def visits() -> tf.data.Dataset:
        return visit(catalog, data, world, pipelines.stream(pipelines.next_start(config)))

    def encoded() -> tf.data.Dataset:
        return read(visits(), catalog, data, world)

    def crops() -> tf.data.Dataset:
        return crop(encoded(), catalog, data, world)

    def by_visit(_: Count, element: Any) -> Count:
        return Count(pipelines.images_until(tf.reshape(element.visit.position, [1, 1])))

    def by_crops(done: Count, element: Crops) -> Count:
        # An image may yield no crop, and then no position.
        return Count(pipelines.images_until(element.positions)) if len(element.labels) else done

    def by_batch(done: Count, batch: tuple[tf.Tensor, ...]) -> Count:
        return Count(pipelines.images_until(batch[2]), done.crops + len(batch[2]))

    batches = finish(crops().rebatch(data.batch_size, drop_remainder=True), data, with_positions=True)
    unbuffered = _unbuffered(config, pipelines)
    return [
        Chain("visit", _every(VISITS, visits()).with_options(unbuffered), by_visit),
        Chain("read", _every(IMAGES, encoded()).with_options(unbuffered), by_visit),
        Chain("crop", _every(IMAGES, crops()).with_options(unbuffered), by_crops),
        Chain("batch", batches.with_options(unbuffered), by_batch),
    ]


def pieces(config: Config, pipelines: Pipelines) -> list[Chain]:
    """Builds the pieces of `crop`, alone over the same images in memory: parse XMLs; decode and resize whole images."""
    data, world, catalog = config.data, pipelines.world, pipelines.catalog(config)
    decoder = choose_decoder(data)
    encoded = read(visit(catalog, data, world, pipelines.stream(0)), catalog, data, world)
    # At least one batch, also of a list that is shorter: the stream is endless.
    held = encoded.take(max(decoder.images, min(CACHED, len(catalog))))
    files = held.batch(decoder.images, drop_remainder=True).cache().repeat()

    def decode(images: Encoded) -> tf.Tensor:
        numbers = tf.range(decoder.images, dtype=tf.int64)
        full = Windows(numbers, 0 * numbers, full_windows(images.size), images.label)
        return decoder.decode(images.jpeg, images.size, full, tf.zeros(0, tf.bool))

    def parse(images: Encoded) -> tf.Tensor:
        return parse_targets(images.xml, images.xml_path, images.label, images.size, catalog.classes).boxes

    parses = catalog.boxes is None and catalog.annotated.any()
    works = {**({"parse XML": parse} if parses else {}), "decode and resize": decode}
    return [
        Chain(
            name,
            _every(
                IMAGES,
                files.map(tf.autograph.experimental.do_not_convert(work), num_parallel_calls=tf.data.AUTOTUNE),
            ).with_options(_unbuffered(config, pipelines)),
            lambda done, _: Count(done.images + IMAGES * decoder.images),
        )
        for name, work in works.items()
    ]


def _unbuffered(config: Config, pipelines: Pipelines) -> tf.data.Options:
    result = options(config.data, pipelines.world)
    result.experimental_optimization.inject_prefetch = False
    return result


def _every(count: int, dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.shard(count, count - 1)
