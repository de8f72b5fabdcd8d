"""Which file stopped the pipeline: TensorFlow says what is wrong with an image, but not with which."""

import re
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig, Parallel
from tfpipe.data.annotations import read_xml
from tfpipe.data.cache import forget
from tfpipe.data.catalog import Catalog
from tfpipe.data.damage import describe
from tfpipe.data.decoders import choose_decoder
from tfpipe.data.pipeline import crop, read, visit
from tfpipe.data.stream import Frontier, Stream
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError

# More images than any pipeline has under way at once: its batches prefetched and its parallel calls.
LOOK_AHEAD = 10_000
UNUSUAL = 'lxml alone can read this XML: run tfpipe index, or set data.annotations to "lxml"'


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
        "parallel": Parallel(),
        "cache": None,
        "storage_delay_ms": 0,
    }
    serial = config.model_copy(update=plain)
    # By the same decoder, since one that decodes a part alone does not see all damage.
    decoder = choose_decoder(serial)._replace(images=1)
    dataset = read(visit(catalog, config, world, stream).take(LOOK_AHEAD), catalog, serial)
    dataset = crop(dataset, catalog, serial, decoder=decoder)
    done = 0
    try:
        for _ in dataset:
            done += 1
    except tf.errors.OpError as error:
        item, _ = catalog.image_and_box(int(stream.visits(catalog.order(config), world, done + 1).item[-1]))
        forget(catalog, config, world, item)
        return explain(catalog, config, item, error)
    return None


def explain(catalog: Catalog, config: DataConfig, item: int, error: tf.errors.OpError) -> Failure:
    """What is wrong with image `item` or its XML, of which the pipeline said `error`."""
    # With all boxes known, no XML was opened.
    annotation = catalog.annotation(item) if catalog.boxes is None else ""
    if annotation and annotation in error.message:
        return _xml_failure(annotation) or Failure(annotation, UNUSUAL)
    path = catalog.paths[item]
    try:
        contents = Path(path).read_bytes()
    except OSError as unread:
        return _xml_failure(annotation) or Failure(path, unread.strerror or reason(error))
    return _xml_failure(annotation) or Failure(path, describe(contents, config.num_channels, reason(error)))


def _xml_failure(annotation: str) -> Failure | None:
    """What lxml finds wrong with an annotation, by line; None if nothing, or there is none."""
    try:
        if annotation:
            read_xml(annotation)
    except (OSError, ValueError) as error:
        return Failure(annotation, str(error))
    return None


def cannot_use(failure: Failure, catalog: Catalog, world: World) -> TfpipeError:
    """What to raise where a file is at fault."""
    return TfpipeError(
        f"rank {world.rank}: cannot use {failure.path} of the {catalog.split} data: {failure.reason}; "
        "repair it or take it out of the filelist"
    )


def reason(error: tf.errors.OpError) -> str:
    """What an op says went wrong, without where in the graph it stands."""
    said = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    said = re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", said).split(" [Op:")[0]
    # As an assertion says it in a graph, and outside.
    said = re.sub(r"^assertion failed: \[(.*)\]$", r"\1", said.strip()).replace("] [", " ")
    return re.sub(r"(?s)^Expected 'tf\.Tensor.*Summarized data: b'(.*)'$", r"\1", said).removesuffix(".")


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
        if reached is not None:
            frontiers = list(stream.frontiers)
            frontiers[world.rank] = Frontier(int(reached[-1, 0]))
            stream = stream.at(frontiers)
        failure = find_failure(catalog, config, world, stream)
        if failure is not None:
            return cannot_use(failure, catalog, world)
    return TfpipeError(f"rank {world.rank}: stopped: {reason(error)}")
