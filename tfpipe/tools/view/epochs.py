"""Shows one image as training sees it in several epochs, before and after its augmentation."""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
from PIL import Image

from tfpipe.config import Config
from tfpipe.data.batch import weighed
from tfpipe.data.failures.batches import Batches
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import build_batches
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.tools.view.sheet import GAP_PX, PAPER, Tile, magnified

ALONE = World()
# Positions looked up at a time; an epoch of ImageNet takes a second.
BLOCK = 2**16


def find_visits(split: Split, first: int) -> Iterator[tuple[int, int]]:
    """Yields (epoch, position) of each epoch's first visit of the image at position `first`, from there on."""
    order = split.order
    (item,) = order.items(np.array([first], np.int64))
    for epoch in count(first // len(order.positions(0, ALONE))):
        positions = order.positions(epoch, ALONE)
        for start in range(max(first, positions.start), positions.stop, BLOCK):
            block = np.arange(start, min(start + BLOCK, positions.stop))
            visits = block[order.items(block) == item]
            if visits.size:  # a sample that is weighted or repeated comes several times
                yield epoch, int(visits[0])
                break


def draw_epochs(config: Config, split: Split, first: int, epochs: int) -> list[Tile]:
    """Returns a tile for each of the first `epochs` epochs in which the image at position `first` comes, from its own.

    A tile has the image's first crop, or its first view, before `data.augment`, and below it after.

    Raises tf.errors.OpError.
    """
    data = config.data.by_view[0].model_copy(update={"batch_size": 1, "mix": None})
    plain = data.model_copy(update={"augment": []})
    tiles = []
    for epoch, position in islice(find_visits(split, first), epochs):
        crops = [_crop(config.model_copy(update={"data": each}), split, position) for each in (plain, data)]
        tiles.append(Tile(_stacked(crops), (f"epoch {epoch}", f"position {position}")))
    return tiles


def _crop(config: Config, split: Split, position: int) -> np.ndarray:
    """Returns the first crop from a stream position on, uint8 [height, width, channels]."""
    stream = Stream.start(1).at([Cursor(position)])
    adapted = split.adapted(config.data, ALONE)
    batches = Batches(lambda rest: build_batches(config, "train", ALONE, rest, adapted), adapted, stream)
    (batch,) = islice(batches, 1)
    images, _, _ = weighed(batch.data, "tfpipe view")
    return np.asarray(images[0])


def _stacked(crops: list[np.ndarray]) -> Image.Image:
    pictures = [magnified(crop) for crop in crops]
    width, height = pictures[0].size
    stacked = Image.new("RGB", (width, 2 * height + GAP_PX), PAPER)
    for number, picture in enumerate(pictures):
        stacked.paste(picture, (0, number * (height + GAP_PX)))
    return stacked
