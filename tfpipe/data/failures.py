"""Which file stopped the pipeline: TensorFlow says what is wrong with an image, but not with which."""

import re
from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig, Parallel
from tfpipe.data.annotations import objects_in, read_xml
from tfpipe.data.cache import forget
from tfpipe.data.catalog import Catalog
from tfpipe.data.fetching import fetcher
from tfpipe.data.pipeline import crop, read, visit
from tfpipe.data.remote import CANNOT_FETCH
from tfpipe.data.stream import Frontier, Stream
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError

# More images than any pipeline has under way at once: its batches prefetched and its parallel calls.
LOOK_AHEAD = 10_000


class Failure(NamedTuple):
    """A file that cannot be used."""

    path: str
    reason: str


def find_failure(catalog: Catalog, config: DataConfig, world: World, stream: Stream) -> Failure | None:
    """The first image on this rank's part of `stream` that fails, or None within LOOK_AHEAD images.

    Goes through them again one at a time, which costs nothing until something fails.
    """
    # Without parallel calls, and one at a call, the images come in order: the one after the last that came is at fault.
    # From their sources, which are what can be repaired.
    plain = {
        "num_parallel_readers": 1,
        # Requests are made at once all the same, and come in order too.
        "parallel": Parallel(read=None if catalog.remote is None else "auto"),
        "decoder": "graph",
        "cache": None,
        "storage_delay_ms": 0,
    }
    serial = config.model_copy(update=plain)
    source = catalog
    if catalog.remote is not None:
        source = replace(catalog, remote=catalog.remote.model_copy(update={"batch": 1, "cache": None}))
    dataset = crop(read(visit(catalog, config, world, stream).take(LOOK_AHEAD), source, serial), catalog, serial)
    done = 0
    try:
        for _ in dataset:
            done += 1
    except tf.errors.OpError as error:
        unreachable = _unreachable(error)
        if unreachable is not None:
            return unreachable
        item, _ = catalog.image_and_box(int(stream.visits(catalog.order(config), world, done + 1).item[-1]))
        forget(catalog, config, world, item)
        # With all boxes known, no XML was opened.
        annotation = catalog.annotation(item) if catalog.boxes is None else ""
        return _xml_failure(annotation, source) or Failure(catalog.paths[item], reason(error))
    return None


def _unreachable(error: tf.errors.OpError) -> Failure | None:
    """The URL that could not be fetched, if that is what went wrong."""
    found = re.search(f"(?s){CANNOT_FETCH}(\\S+): (.*?)]?$", reason(error))
    return Failure(found[1], found[2]) if found else None


def _xml_failure(annotation: str, catalog: Catalog) -> Failure | None:
    """What lxml finds wrong with an annotation, by line; None if nothing, or there is none."""
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


def reason(error: tf.errors.OpError) -> str:
    """What an op says went wrong, without where in the graph it stands."""
    said = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    return re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", said).strip().removesuffix(".")


def named(
    error: tf.errors.OpError,
    catalog: Catalog,
    config: DataConfig,
    world: World,
    stream: Stream,
    reached: tf.Tensor | None,
) -> TfpipeError:
    """What to raise for `error`: with the file's name, where a file is at fault.

    Args:
        error: from iterating over a dataset of `catalog`, or from the model.
        catalog: of the split.
        config: of the data.
        world: which rank this is.
        stream: what the dataset set out from.
        reached: int64 [batch, 2], the positions of the last batch that came; None if none did.
    """
    if "Iterator" in error.message:  # a stage of the pipeline failed, not the model or another rank
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
            return TfpipeError(
                f"rank {world.rank}: cannot use {failure.path} of the {catalog.split} data: {failure.reason}; "
                "repair it or take it out of the filelist"
            )
    return TfpipeError(f"rank {world.rank}: stopped: {reason(error)}")
