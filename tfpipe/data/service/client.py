"""Reads, decodes and crops images in other processes, by tf.data service, in the same exact order as in this process.

A worker process is a tf.data service dispatcher plus worker and knows of no other one. A rank's samples are cut into
blocks; worker s of n gets a graph that makes blocks s, s + n, s + 2 n, ..., one per element, and the rank takes a block
from each worker in turn. So batches are the same, bit for bit, for any number of workers, and a block that a worker
has not delivered can be made by another: none is lost or duplicated.

tf.data service's own sharding of a dataset over workers gives no order, and its client waits forever for a dead worker.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.order.stream import BlockRange
from tfpipe.data.runtime.clock import DELAY_MS, simulated_delay_s
from tfpipe.data.runtime.parallelism import options, thread_budget
from tfpipe.data.runtime.stage import stage
from tfpipe.data.service.feeds import IMAGES, Feed, Open, WorkerDataset
from tfpipe.data.service.workers import Workers
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted

# Blocks that a worker prefetches beyond those that the rank has requested.
PREFETCHED = 2
# Seconds without data after which a worker counts as dead; 32 images must not take longer.
TIMEOUT_S = 120.0
# TensorFlow's error of a worker of another version, and tfpipe's.
NO_OP = "Op type not registered 'Tfpipe"
OTHER_VERSION = "data.service: a worker lacks an op of tfpipe's library in C: install this version of tfpipe there"
# Upper bound of a graph's tables, which are sent to each worker: a message of 2 GB makes TensorFlow abort the process.
MOST_BYTES = 500_000_000


class Block(NamedTuple):
    """The crops of IMAGES images; the last block of a pass may have fewer."""

    number: Any  # int64 []: number of the block
    crops: Any  # a NamedTuple of tensors or arrays [k, ...]


def serve_crops(load: Callable[..., tf.data.Dataset], workers: Workers, split: Split) -> tf.data.Dataset:
    """Builds the dataset of this rank's crops, IMAGES images per element, which workers make by `load`.

    Given the split, a `part` of the rank's samples and a `decoder`, `load` builds a dataset of NamedTuples of tensors
    [k, ...], as many images per element as the decoder takes; in graph, without Python. `data.service` must be set.

    Raises ConfigError if the catalog is too large to be sent, or Python is needed, by its URLs, the decoder or a delay.
    """
    check(split.catalog)
    theirs = for_worker(split.config, split.world)
    decoder = choose_decoder(theirs, split.catalog.split)
    decoder = decoder._replace(images=min(decoder.images, IMAGES))

    # Traced once for all workers; the catalog's tables are captured, so they are held once.
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
    def blocks(first: tf.Tensor) -> tf.data.Dataset:
        part = BlockRange(first, workers.count, IMAGES)
        dataset = load(replace(split, config=theirs), part=part, decoder=decoder)
        if decoder.images != IMAGES:
            dataset = in_blocks(dataset)
        numbers = tf.data.Dataset.range(first, tf.int64.max, workers.count)
        dataset = tf.data.Dataset.zip(numbers, dataset).map(Block).prefetch(PREFETCHED)
        tunes_itself = theirs.threads is None and theirs.num_parallel_readers != 1
        # A worker elsewhere has its own number of threads unless the config sets one.
        return dataset.with_options(tf.data.Options() if tunes_itself else options(theirs, split.world))

    def open_at(first: int, address: str) -> WorkerDataset:
        return WorkerDataset(lambda: blocks(tf.constant(first, tf.int64)), address)

    spec = blocks(tf.constant(0, tf.int64)).element_spec.crops
    nothing = tf.nest.map_structure(lambda field: np.zeros([0, *field.shape[1:]], field.dtype.as_numpy_dtype), spec)
    received = partial(_receive, open_at, workers, TIMEOUT_S, nothing)
    signature = (tf.TensorSpec([], tf.string), spec)
    return tf.data.Dataset.from_generator(received, output_signature=signature, name="service").map(_raise_error)


def _receive(open_at: Open, workers: Workers, timeout_s: float, nothing: Any) -> Iterator[tuple[str, Any]]:
    """Yields ("", crops) for each block in order, or an error message and `nothing`.

    Python is called once per IMAGES images; receiving costs the trainer 0.35 ms per image, nearly all of it for copies.
    """
    feeds: list[Feed] = []
    try:
        for number in range(workers.count):
            feeds.append(Feed(number, open_at, workers, timeout_s))
        for number, feed in enumerate(itertools.cycle(feeds)):
            if (block := feed.take(number)) is None:
                return
            yield "", block.crops
    except Exception as error:
        # If raised here, TensorFlow would log it with this thread's traceback, even at the end of the process.
        message = error.message if isinstance(error, tf.errors.OpError) else str(error)
        yield OTHER_VERSION if NO_OP in message else message, nothing
    finally:
        for feed in feeds:
            feed.close()


@stage("service")
def _raise_error(error: tf.Tensor, crops: Any) -> Any:
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
        return tf.nest.map_structure(tf.identity, crops)


def check(catalog: Catalog) -> None:
    """Raises ConfigError if a catalog cannot be sent to workers: it is larger than MOST_BYTES, or read in Python."""
    if simulated_delay_s():
        raise ConfigError(f"data.service: {DELAY_MS} delays reads in Python, which workers do not run: unset it")
    if (size := tables_bytes(catalog)) > MOST_BYTES:
        raise ConfigError(
            f"data.service: the {catalog.split} data has {counted(len(catalog), 'image')}, whose paths, labels, boxes "
            f"take {size / 1e6:.4g} MB, which every worker receives; at most {MOST_BYTES / 1e6:.4g} MB can be sent: "
            "set data.service to null, or use a shorter filelist"
        )
    if url := next((folder for folder in catalog.paths.folders if "://" in folder), None):
        raise ConfigError(
            f"data.service: {url} in the {catalog.split} filelist is fetched in Python, which workers do not run: "
            "set data.service to null, or use copies on a file system that the workers see"
        )


def tables_bytes(catalog: Catalog) -> int:
    """Estimates the bytes of a catalog's tensors in a graph, those of locate.Lookup and targets.KnownTargets."""
    # Per image: 8 bytes of its name's start, 4 of its folder's number, 4 of its label, 1 of `annotated`.
    tables = len(catalog.paths.names) + (8 + 4 + 4 + 1) * len(catalog)
    if catalog.boxes is not None:
        tables += sum(table.nbytes for table in catalog.boxes) + 8 * len(catalog)
        tables += 0 if catalog.stated is None else 8 * catalog.samples
    return tables


def in_blocks(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Concatenates NamedTuples of tensors [k, ...], an image per element, to elements of IMAGES images."""
    spec = dataset.element_spec

    def concat(batch: tf.Tensor | tf.RaggedTensor, field_spec: tf.TensorSpec) -> tf.Tensor:
        # If every image has the same number of crops, ragged_batch gives a dense tensor.
        values = batch.values if isinstance(batch, tf.RaggedTensor) else tf.reshape(batch, [-1, *field_spec.shape[1:]])
        return tf.ensure_shape(values, [None, *field_spec.shape[1:]])

    @stage("block")
    def join(batch: Any) -> Any:
        return tf.nest.map_structure(concat, batch, spec)

    return dataset.ragged_batch(IMAGES).map(join, name="block")


def for_worker(config: DataConfig, world: World) -> DataConfig:
    """Returns the config for a worker: a local one gets its share of the rank's threads, a remote one uses its own."""
    if isinstance(config.service, int):
        return config.model_copy(update={"threads": max(1, thread_budget(config, world) // config.service)})
    if config.threads is not None or config.num_parallel_readers != "auto" or config.parallel.decode is not None:
        return config
    # Only the worker knows the number of its threads, so tf.data tunes the parallelism there.
    return config.model_copy(update={"parallel": config.parallel.model_copy(update={"decode": tf.data.AUTOTUNE})})
