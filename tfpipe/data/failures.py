"""Finds the file that stopped the pipeline: TensorFlow reports what is wrong with an image, but not which image."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig, Parallel
from tfpipe.data.annotations import objects_in, read_xml
from tfpipe.data.cache import forget
from tfpipe.data.catalog import Catalog
from tfpipe.data.damage import describe
from tfpipe.data.decoders import choose_decoder
from tfpipe.data.fetching import fetcher
from tfpipe.data.gathering import packed_name
from tfpipe.data.pipeline import crop, read, visit
from tfpipe.data.reasons import reason
from tfpipe.data.remote import CANNOT_FETCH
from tfpipe.data.stream import Frontier, Stream
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError

# More images than any pipeline holds at once, in prefetched batches and parallel calls.
LOOK_AHEAD = 10_000
REPACK = "see what else has changed with tfpipe pack --verify, then pack it again"
REPAIR = "repair it or take it out of the filelist; tfpipe check finds all such files"
UNUSUAL = 'lxml alone can read this XML: run tfpipe index, or set data.annotations to "lxml"'


class Failure(NamedTuple):
    """A file that cannot be used, and why."""

    path: str
    reason: str


def find_failure(catalog: Catalog, config: DataConfig, world: World, stream: Stream) -> Failure | None:
    """Returns the first of this rank's next LOOK_AHEAD images in `stream` that fails, None if none does.

    Loads them again one at a time, so only a failure costs anything. Deletes the failed image's files from caches.
    """
    located = visit(catalog, config, world, stream).take(LOOK_AHEAD)
    for done, error in enumerate(replay(located, catalog, config)):
        if error is not None:
            item, _ = catalog.image_and_box(int(stream.visits(catalog.order(config), world, done + 1).item[-1]))
            forget(catalog, config, world, item)
            return explain(catalog, config, item, error)
    return None


def replay(located: tf.data.Dataset, catalog: Catalog, config: DataConfig) -> Iterator[tf.errors.OpError | None]:
    """Loads images again, from single `Located` elements; yields each one's error, or None."""
    # Serial calls of one image each, so that errors come in the order of the images.
    # No caches, since a user can only repair the original files.
    plain = {
        "num_parallel_readers": 1,
        # Remote files are still requested concurrently; they too arrive in order.
        "parallel": Parallel(read=None if catalog.remote is None else "auto"),
        "cache": None,
        "storage_delay_ms": 0,
        "on_error": "raise",
    }
    serial = config.model_copy(update=plain)
    # The same decoder, since one that decodes only part of an image does not notice all damage.
    decoder = choose_decoder(serial)._replace(images=1)
    iterator = iter(crop(read(located, _from_source(catalog), serial), catalog, serial, decoder=decoder))
    while True:
        try:
            next(iterator)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            yield error
        else:
            yield None


def explain(catalog: Catalog, config: DataConfig, item: int, error: tf.errors.OpError) -> Failure:
    """Returns what is wrong with image `item` or its XML, given the `error` raised when it was loaded alone."""
    if catalog.packed is not None:
        return Failure(packed_name(catalog, item), reason(error))
    unreachable = _unreachable(error)
    if unreachable is not None:
        return unreachable
    # If the catalog knows all boxes, no XML was opened.
    annotation = catalog.annotation(item) if catalog.boxes is None else ""
    if catalog.remote is not None:
        return _xml_failure(annotation, _from_source(catalog)) or Failure(catalog.paths[item], reason(error))
    if annotation and annotation in error.message:
        return _xml_failure(annotation, catalog) or Failure(annotation, UNUSUAL)
    path = catalog.paths[item]
    try:
        contents = Path(path).read_bytes()
    except OSError as unread:
        return _xml_failure(annotation, catalog) or Failure(path, unread.strerror or reason(error))
    return _xml_failure(annotation, catalog) or Failure(path, describe(contents, config.num_channels, reason(error)))


def _from_source(catalog: Catalog) -> Catalog:
    """Returns the catalog with settings that fetch URLs one by one, without a cache."""
    if catalog.remote is None:
        return catalog
    return replace(catalog, remote=catalog.remote.model_copy(update={"batch": 1, "cache": None}))


def _unreachable(error: tf.errors.OpError) -> Failure | None:
    """Returns the URL that could not be fetched, None if `error` has another cause."""
    match = re.search(f"(?s){CANNOT_FETCH}(\\S+): (.*?)]?$", reason(error))
    return Failure(match[1], match[2]) if match else None


def _xml_failure(annotation: str, catalog: Catalog) -> Failure | None:
    """Returns lxml's error for an annotation, with its line; None if there is no error or no annotation."""
    try:
        if annotation and catalog.remote is not None:
            text = fetcher(catalog).fetch([annotation])[0]
            if isinstance(text, bytes):
                objects_in([text], [annotation])
        elif annotation:
            read_xml(annotation)
    except (OSError, ValueError) as error:
        return Failure(annotation, str(error))
    return None


def cannot_use(failure: Failure, catalog: Catalog, world: World) -> TfpipeError:
    """Returns the error to raise for a file that cannot be used."""
    return TfpipeError(
        f"rank {world.rank}: cannot use {failure.path} of the {catalog.split} data: {failure.reason}; "
        f"{REPAIR if catalog.packed is None else REPACK}"
    )


def named(
    error: tf.errors.OpError,
    catalog: Catalog,
    config: DataConfig,
    world: World,
    stream: Stream,
    reached: tf.Tensor | None,
) -> TfpipeError:
    """Returns the error to raise for `error`; it names the file if a file is at fault.

    Args:
        error: raised by iterating over a dataset of `catalog`, or by the model.
        catalog: the split's catalog.
        config: the data settings.
        world: this rank and the number of ranks.
        stream: the stream that the dataset was built from.
        reached: int64 [batch, 2], the positions of the last batch received; None if none was.
    """
    if catalog.packed is not None and reason(error).startswith("record "):
        # The error names the record.
        return TfpipeError(f"rank {world.rank}: cannot use {reason(error)}; {REPACK}")
    unserved = re.search(r"assertion failed: \[(data\.service: [^\]]*)\]", error.message)
    if unserved:
        return TfpipeError(f"rank {world.rank}: {unserved[1]}")
    has_images = catalog.packed is None or not catalog.packed.has_crops
    if has_images and "Iterator" in error.message:  # a stage of the pipeline failed, not the model or another rank
        unreachable = _unreachable(error)
        if unreachable is not None:
            return TfpipeError(
                f"rank {world.rank}: cannot use {unreachable.path} of the {catalog.split} data: {unreachable.reason}; "
                "see to the server or the network, or take it out of the filelist"
            )
        if reached is not None:
            frontiers = list(stream.frontiers)
            frontiers[world.rank] = Frontier(int(reached[-1, 0]))
            stream = stream.at(frontiers)
        failure = find_failure(catalog, config, world, stream)
        if failure is not None:
            return cannot_use(failure, catalog, world)
    return TfpipeError(f"rank {world.rank}: stopped: {reason(error)}")
