"""Which file stopped the pipeline: TensorFlow says what is wrong with an image, but not with which."""

import re
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig, Parallel
from tfpipe.data.annotations import read_xml
from tfpipe.data.cache import forget
from tfpipe.data.catalog import Catalog
from tfpipe.data.fetch import packed_name
from tfpipe.data.pipeline import crop, read, visit
from tfpipe.data.stream import Frontier, Stream
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError

# More images than any pipeline has under way at once: its batches prefetched and its parallel calls.
LOOK_AHEAD = 10_000
REPACK = "see what else has changed with tfpipe pack --verify, then pack it anew"


class Failure(NamedTuple):
    """A file that cannot be used."""

    path: str
    reason: str


def find_failure(catalog: Catalog, config: DataConfig, world: World, stream: Stream) -> Failure | None:
    """The first image on this rank's part of `stream` that fails, or None within LOOK_AHEAD images.

    Goes through them again one at a time, which costs nothing until something fails.
    """
    found = first_failure(visit(catalog, config, world, stream).take(LOOK_AHEAD), catalog, config)
    if found is None:
        return None
    done, error = found
    item, _ = catalog.image_and_box(int(stream.visits(catalog.order(config), world, done + 1).item[-1]))
    forget(catalog, config, world, item)
    return failure_of(item, error, catalog)


def first_failure(
    located: tf.data.Dataset, catalog: Catalog, config: DataConfig
) -> tuple[int, tf.errors.OpError] | None:
    """How many of the images `located` (Located, one by one) come before the first that fails, and its error; or None.

    Loads them one at a time.
    """
    # Without parallel calls, and one at a call, the images come in order: the one after the last that came is at fault.
    # From their sources, which are what can be repaired.
    plain = {
        "num_parallel_readers": 1,
        "parallel": Parallel(),
        "decoder": "graph",
        "cache": None,
        "storage_delay_ms": 0,
    }
    serial = config.model_copy(update=plain)
    done = 0
    try:
        for _ in crop(read(located, catalog, serial), catalog, serial):
            done += 1
    except tf.errors.OpError as error:
        return done, error
    return None


def failure_of(item: int, error: tf.errors.OpError, catalog: Catalog) -> Failure:
    """What to say where image `item` was loaded alone and failed with `error`."""
    # With all boxes known, no XML was opened.
    annotation = catalog.annotation(item) if catalog.boxes is None else ""
    path = catalog.paths[item] if catalog.packed is None else packed_name(catalog, item)
    return _xml_failure(annotation) or Failure(path, reason(error))


def _xml_failure(annotation: str) -> Failure | None:
    """What lxml finds wrong with an annotation, by line; None if nothing, or there is none."""
    try:
        if annotation:
            read_xml(annotation)
    except (OSError, ValueError) as error:
        return Failure(annotation, str(error))
    return None


def reason(error: tf.errors.OpError) -> str:
    """What an op says went wrong, without where in the graph it stands."""
    said = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    # Of a Python function: what it raised, without where in it.
    said, traceback, _ = said.partition("\nTraceback ")
    said = re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", said).strip().removesuffix(".")
    return re.sub(r"^\w+Error: ", "", said) if traceback else said


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
    if catalog.packed is not None and reason(error).startswith("record "):
        # It names the record itself.
        return TfpipeError(f"rank {world.rank}: cannot use {reason(error)}; {REPACK}")
    has_images = catalog.packed is None or not catalog.packed.has_crops
    if has_images and "Iterator" in error.message:  # a stage of the pipeline failed, not the model or another rank
        if reached is not None:
            frontiers = list(stream.frontiers)
            frontiers[world.rank] = Frontier(int(reached[-1, 0]))
            stream = stream.at(frontiers)
        failure = find_failure(catalog, config, world, stream)
        if failure is not None:
            return TfpipeError(
                f"rank {world.rank}: cannot use {failure.path} of the {catalog.split} data: {failure.reason}; "
                f"{'repair it or take it out of the filelist' if catalog.packed is None else REPACK}"
            )
    return TfpipeError(f"rank {world.rank}: stopped: {reason(error)}")
