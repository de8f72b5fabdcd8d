"""The rows in tfpipe's Python: the two limits, tfpipe on its packs, and on the loose files."""

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import simplejpeg
from given import BATCH, SIDE, Batch, Work, check, shuffles

import tfpipe as package


def limit(work: Work) -> Iterator[Batch]:
    """One thread; all is in memory. Decodes into a batch, or copies into one what is raw."""
    given, batch = work.given, np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
    jpegs = [] if work.raw else [given.jpeg(item) for item in range(len(given))]
    pixels = np.array(given.pixels) if work.raw else None
    for items in shuffles(len(given), work.passes):
        images = batch[: len(items)]
        if work.raw:
            # The mode "raise" would copy twice.
            np.take(pixels, items, axis=0, out=images, mode="clip")
        else:
            for image, item in zip(images, items, strict=True):
                simplejpeg.decode_jpeg(jpegs[item], buffer=image)
        yield images, given.labels[items]


def tfpipe(work: Work) -> Iterator[Batch]:
    """What `tfpipe pack` made."""
    return _tfpipe(work, "raw" if work.raw else "crops")


def loose(work: Work) -> Iterator[Batch]:
    """The files and XMLs that were packed."""
    return _tfpipe(work, "loose")


def _tfpipe(work: Work, config: str) -> Iterator[Batch]:
    settings = [f"data.threads={work.threads}", f"data.batch_size={BATCH}"]
    loaded = package.load_config(work.given.folder / f"{config}.json", settings)
    once = work.passes == 1
    dataset = package.build_dataset(loaded, "train", package.World.detect(), with_positions=once)
    if not once:
        yield from dataset
        return
    # The stream is endless; of an image with several boxes, all crops are at one position.
    batches = -(-len(work.given) // BATCH)
    epoch, left = [], len(work.given)
    for images, labels, _ in islice(dataset, batches):
        epoch.append((images.numpy()[:left], labels.numpy()[:left]))
        left -= BATCH
    yield from epoch


__all__ = ["ROWS", "check"]

ROWS: dict[str, Callable[[Work], Iterator[Batch]]] = {each.__name__: each for each in (limit, tfpipe, loose)}
