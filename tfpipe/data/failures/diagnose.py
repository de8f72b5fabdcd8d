"""Finds the file that stopped the pipeline: TensorFlow reports what is wrong with an image, but not which image."""

import re
from collections.abc import Iterator

import tensorflow as tf

from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import Crops, crop, read, visit
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.runtime.op_errors import reason, unescape
from tfpipe.data.runtime.stage import NO_CROP
from tfpipe.data.split import Failure, Split
from tfpipe.errors import TfpipeError

# More images than any pipeline holds at once, in prefetched batches and parallel calls.
LOOK_AHEAD = 10_000


def find_failure(split: Split, stream: Stream) -> Failure | None:
    """Returns the first of this rank's next LOOK_AHEAD images in `stream` that fails, None if none does.

    Loads them again one at a time, so only a failure costs anything. Deletes the failed image's files from caches.
    """
    samples = visit(split, stream).take(LOOK_AHEAD)
    for done, error in enumerate(replay(samples, split)):
        if isinstance(error, tf.errors.OpError):
            item, _ = split.catalog.image_and_box(int(split.visits(stream, done + 1).item[-1]))
            split.evict(item)
            return split.explain(item, error)
    return None


def replay(samples: tf.data.Dataset, split: Split) -> Iterator[tf.errors.OpError | Crops]:
    """Loads images again, from single `SamplePaths` elements; yields each one's crops, or its error."""
    # Serial calls of one image each, so that errors come in the order of the images.
    serial = split.serial()
    # The same decoder, since one that decodes only part of an image does not notice all damage.
    decoder = choose_decoder(serial.config, serial.catalog.split)._replace(images=1)
    iterator = Cancellable(crop(read(samples, serial), serial, decoder=decoder))
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            yield error


def cannot_use(failure: Failure, split: Split) -> TfpipeError:
    """Returns the error to raise for a file that cannot be used."""
    return TfpipeError(
        f"rank {split.world.rank}: cannot use {failure.path} of the {split.catalog.split} data: {failure.reason}; "
        f"{split.remedy}"
    )


def to_named_error(error: tf.errors.OpError, split: Split, stream: Stream, reached: tf.Tensor | None) -> TfpipeError:
    """Returns the error to raise for `error`; it names the file if a file is at fault.

    `error` was raised by iterating over a dataset of `split` that was built from `stream`, or by the model; `reached`
    (int64 [batch, 2]) are the positions of the last batch received, None if none was.
    """
    world, cause = split.world, split.cause(error)
    if cause is not None:
        return TfpipeError(f"rank {world.rank}: cannot use {cause}")
    stated = re.search(r"assertion failed: \[(data\.(?:service|transform): .*?)\]\s*\[\[", unescape(error.message))
    if stated:
        return TfpipeError(f"rank {world.rank}: {stated[1]}")
    # Only if a stage of the pipeline failed, not the model or another rank, and there are images to load again.
    if split.stores == "images" and "Iterator" in error.message:
        if reached is not None:
            stream = stream.moved(world.rank, Cursor(int(reached[-1, 0])))
        failure = find_failure(split, stream)
        if reason(error) == NO_CROP:
            why = f"e.g. {failure.path}: {failure.reason}" if failure else "none has an object of a known class"
            return TfpipeError(f"rank {world.rank}: {NO_CROP}: {why}; tfpipe check finds all such files")
        if failure is not None:
            return cannot_use(failure, split)
    return TfpipeError(f"rank {world.rank}: stopped: {reason(error)}")
