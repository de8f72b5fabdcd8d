"""Images read, decoded and cropped by other processes: tf.data service, with an order as exact as in this one.

A server is a dispatcher and a worker of tf.data service in one process, which knows of no other server. The visits of
a rank are cut into blocks; server s of n gets the graph that makes blocks s, s + n, s + 2 n, ..., each one element, and
the rank takes one from each server in turn. So batches are the same, bit for bit, whatever the number of servers, and
a block that a server has not delivered can be made by another: none is lost, and none comes twice.

tf.data service's own ways of sharing a data set between several workers give no order, and its client waits for ever
for a worker that is gone.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.cancellation import CancellationManager
from tensorflow.python.eager.execute import execute_with_cancellation

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.feeds import IMAGES, Feed
from tfpipe.data.scopes import stage
from tfpipe.data.servers import Servers
from tfpipe.data.stream import Part
from tfpipe.data.threads import options, thread_budget
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

# A server works on this many blocks beyond those that the rank has asked for.
AHEAD = 2
# Blocks under way from a server to a rank.
UNDER_WAY = 2
# Of the tables in a graph. Every server is sent its own, and a message of 2 GB makes TensorFlow abort the process.
MOST_BYTES = 500_000_000


class Block(NamedTuple):
    """The crops of IMAGES images, or of those that are left."""

    number: Any  # int64 []: of the block
    crops: Any  # a NamedTuple of tensors or arrays [k, ...]


class Distributed:
    """The elements of a data set, as arrays, made by the server at an address."""

    def __init__(self, make: Callable[[], tf.data.Dataset], address: str) -> None:
        """Args: what makes the data set when its elements are first wanted, and where they are made."""
        self._make, self._address, self._manager = make, address, CancellationManager()

    def __iter__(self) -> Iterator[Any]:
        distribute = tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.OFF,
            f"grpc://{self._address}",
            max_outstanding_requests=UNDER_WAY,
            # Pixels do not get smaller.
            compression=None,
        )
        dataset = self._make().apply(distribute)
        iterator, specs = iter(dataset), tf.nest.flatten(dataset.element_spec)
        attrs = (
            *("output_types", [each.dtype.as_datatype_enum for each in specs]),
            *("output_shapes", [each.shape.as_list() for each in specs]),
        )
        while True:
            try:
                # As next() does, which cannot be cancelled; TensorFlow's CancellationManagerContext holds for all
                # threads, those that train among them.
                found = execute_with_cancellation(
                    "IteratorGetNext",
                    len(specs),
                    [iterator._iterator_resource],
                    attrs,
                    context.context(),
                    self._manager,
                )
            except tf.errors.OutOfRangeError:
                return
            yield tf.nest.pack_sequence_as(dataset.element_spec, [each.numpy() for each in found])

    def cancel(self) -> None:
        """Ends the iteration, from any thread, with tf.errors.CancelledError."""
        self._manager.start_cancel()


def served(
    load: Callable[..., tf.data.Dataset],
    servers: Servers,
    catalog: Catalog,
    config: DataConfig,
    world: World,
) -> tf.data.Dataset:
    """The crops of this rank's visits, as `load` makes them, some images' at a time; made by `servers`.

    Args:
        load: makes a `part` of the visits, as a config says, into a NamedTuple of tensors [k, ...] an image; in graph,
            without Python.
        servers: who does it.
        catalog: of the split.
        config: of the data.
        world: this rank, of how many.

    Raises:
        ConfigError: the catalog is too large to be sent, or names files that need Python to be read.
    """
    check(catalog)
    service = config.service
    assert service is not None, "data.service is set"
    theirs = of_server(config, service.workers, world)

    # Traced once for all servers, with the catalog's tables beside it, held once.
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
    def blocks(first: tf.Tensor) -> tf.data.Dataset:
        part = Part(first, servers.count, IMAGES)
        dataset = together(load(theirs, part=part))
        numbers = tf.data.Dataset.range(first, tf.int64.max, servers.count)
        dataset = tf.data.Dataset.zip(numbers, dataset).map(Block).prefetch(AHEAD)
        return dataset.with_options(server_options(theirs, service.workers, world))

    def open_at(first: int, address: str) -> Distributed:
        return Distributed(lambda: blocks(tf.constant(first, tf.int64)), address)

    spec = blocks(tf.constant(0, tf.int64)).element_spec.crops
    nothing = type(spec)(*(np.zeros([0, *each.shape[1:]], each.dtype.as_numpy_dtype) for each in spec))

    # Python, once for IMAGES images; the trainer pays 0.35 ms an image for what comes, nearly all of it for copies.
    def generate() -> Iterator[tuple[str, Any]]:
        feeds: list[Feed] = []
        try:
            for number in range(servers.count):
                feeds.append(Feed(number, open_at, servers, service.timeout_s))
            for number, feed in zip(itertools.count(), itertools.cycle(feeds), strict=False):
                block = feed.take(number)
                if block is None:
                    return
                yield "", block.crops
        except Exception as error:
            # Raised here, TensorFlow would write it out with the traceback of this thread, also at the process's end.
            yield error.message if isinstance(error, tf.errors.OpError) else str(error), nothing
        finally:
            for feed in feeds:
                feed.close()

    @stage("service")
    def raise_error(error: tf.Tensor, crops: Any) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(error, ""), [error])]):
            return tf.nest.map_structure(tf.identity, crops)

    signature = (tf.TensorSpec([], tf.string), spec)
    return tf.data.Dataset.from_generator(generate, output_signature=signature, name="service").map(raise_error)


def check(catalog: Catalog) -> None:
    """Makes sure that servers can be given this catalog.

    Raises:
        ConfigError: it is too large, or names URLs.
    """
    size = tables_bytes(catalog)
    if size > MOST_BYTES:
        raise ConfigError(
            f"data.service: the {catalog.split} data has {len(catalog)} images, whose paths, labels and boxes take "
            f"{size / 1e6:.4g} MB, and every server is sent them; at most {MOST_BYTES / 1e6:.4g} MB can be: set "
            "data.service to null, or use a shorter filelist"
        )
    url = next((folder for folder in catalog.paths.folders if "://" in folder), None)
    if url is not None:
        raise ConfigError(
            f"data.service: {url} in the {catalog.split} filelist is fetched in Python, which servers do not run: "
            "set data.service to null, or use copies on a file system that the servers see"
        )


def tables_bytes(catalog: Catalog) -> int:
    """Of what of a catalog is in the graphs, as lookup.Lookup and crops.KnownTargets have it; nearly."""
    # Of a name, its two bytes of framing; of an image, its folder, its label and whether there is an XML.
    tables = len(catalog.paths.names) + (2 + 4 + 4 + 1) * len(catalog)
    if catalog.boxes is not None:
        tables += sum(table.nbytes for table in catalog.boxes) + 8 * len(catalog)
    return tables


def together(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """From a NamedTuple of tensors [k, ...] an image to the same of IMAGES images, one after the other."""
    kind, spec = type(dataset.element_spec), dataset.element_spec

    def joined(batch: tf.Tensor | tf.RaggedTensor, of: tf.TensorSpec) -> tf.Tensor:
        # No ragged tensor where the number of crops is fixed.
        values = batch.values if isinstance(batch, tf.RaggedTensor) else tf.reshape(batch, [-1, *of.shape[1:]])
        return tf.ensure_shape(values, [None, *of.shape[1:]])

    @stage("block")
    def join(batch: Any) -> Any:
        return kind(*(joined(each, of) for each, of in zip(batch, spec, strict=True)))

    return dataset.ragged_batch(IMAGES).map(join, name="block")


def of_server(config: DataConfig, workers: int | None, world: World) -> DataConfig:
    """What a server does for a rank: with the threads that are its share, or with those it has."""
    if workers is not None:
        return config.model_copy(update={"threads": max(1, thread_budget(config, world) // workers)})
    if config.threads is not None or config.num_parallel_readers != "auto" or config.parallel.decode is not None:
        return config
    # How many threads that are is known where it runs.
    return config.model_copy(update={"parallel": config.parallel.model_copy(update={"decode": tf.data.AUTOTUNE})})


def server_options(config: DataConfig, workers: int | None, world: World) -> tf.data.Options:
    """Of a pipeline on a server."""
    if workers is not None or config.threads is not None or config.num_parallel_readers == 1:
        return options(config, world)
    return tf.data.Options()
