"""Reads the boxes of many images at once, before training: to count crops, or if every box is a sample of its own."""

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, Boxes, is_stated, numbered, targets
from tfpipe.data.annotations.voc import VocObjects, find_objects
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.sampling import evenly_spaced
from tfpipe.data.order.stream import Stream
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress

if TYPE_CHECKING:
    from tfpipe.data.sources.source import Source

# At most this many XMLs are read to count an epoch's crops, at 0.1 ms each.
COUNT_AT_MOST = 5000
# XMLs read by one call; and how many there are before several processes read them, which take a second to start.
CHUNK = 256
MANY = 4 * COUNT_AT_MOST


class CropCount(NamedTuple):
    """The number of crops in an epoch, exact or estimated."""

    crops: int
    exact: bool


def count_crops(catalog: Catalog, config: DataConfig, world: World) -> CropCount:
    """Returns the number of crops in one epoch of `catalog` over all ranks; the same on every rank.

    It is exact if every image gives one crop, all boxes are known, or at most COUNT_AT_MOST images have an XML.
    Otherwise it is estimated from at most that many XMLs, evenly spaced in the list. Mixed lists and weighted samples
    give an expectation.
    """
    one_each = config.crop_for(catalog.split) in ("center", "full")
    one_each |= config.crop_for(catalog.split) == "random_resized" and not catalog.by_object
    if one_each or catalog.by_box:
        return CropCount(catalog.samples, exact=True)
    order = catalog.order(config)
    if isinstance(order, WeightedOrder):
        return _expected(catalog, order, world)
    if not isinstance(order, Mixture):
        return _count(catalog, range(len(catalog)), world)
    per_image = [_count(catalog, part.images, world).crops / len(part.images) for part in catalog.lists]
    mean = np.dot(per_image, order.shares) / sum(order.shares)
    return CropCount(round(mean * order.count), exact=False)


def _expected(catalog: Catalog, order: WeightedOrder, world: World) -> CropCount:
    """Returns the expected crops of an epoch of weighted images; without known boxes, from the XMLs of some."""
    if catalog.boxes is not None:
        counts = np.diff(catalog.boxes.offsets(len(catalog)))
        return CropCount(round(float(np.average(counts, weights=order.weights)) * order.count), exact=False)
    items = order.items(np.array(evenly_spaced(order.count, COUNT_AT_MOST), np.int64))
    annotated = items[catalog.annotated[items]]
    crops = world.from_rank0(lambda: len(_read(catalog, annotated, show=world.rank == 0).labels))
    plain = 0 if catalog.by_object else len(items) - len(annotated)
    return CropCount(round((plain + crops) / len(items) * order.count), exact=False)


def own_crops(catalog: Catalog, config: DataConfig, world: World) -> int | None:
    """Returns the number of crops of a rank's share of the test data; None if only reading the XMLs would tell."""
    if catalog.boxes is not None and (catalog.by_object or config.crop_for(catalog.split) == "boxes"):
        return int((catalog.boxes.images % world.size == world.rank).sum())
    parsed = config.crop_for(catalog.split) == "boxes" and catalog.annotated[slice(world.rank, None, world.size)].any()
    return None if catalog.by_object or parsed else len(range(world.rank, len(catalog), world.size))


def crops_left(catalog: Catalog, config: DataConfig, world: World, rest: Stream) -> int | None:
    """Returns the crops that `rest` of a test pass holds for a rank; None if only reading the XMLs would tell."""
    if own_crops(catalog, config, world) is None:
        return None
    visits = rest.visits(catalog.order(config), world, len(catalog) // world.size + 1)
    there = visits.position < len(catalog)
    images, first = visits.item[there], visits.first_crop[there]
    counts = np.ones_like(images)
    if catalog.boxes is not None and (catalog.by_object or config.crop_for(catalog.split) == "boxes"):
        counts = np.diff(catalog.boxes.offsets(len(catalog)))[images]
    return int(np.maximum(counts - first, 0).sum())


def check_share(catalog: Catalog, config: DataConfig, world: World) -> None:
    """Checks that this rank's share of the training images gives a crop, if the share never changes.

    Raises ConfigError if it does not: the rank would wait for its first batch for ever.
    """
    if config.scope != "shard" or world.size == 1 or catalog.by_box or catalog.lists or not catalog.by_object:
        return
    share = np.arange(world.rank, len(catalog), world.size)
    if catalog.boxes is not None:
        found = bool((catalog.boxes.images % world.size == world.rank).any())
    else:
        annotated = share[catalog.annotated[share]]
        chunks = (annotated[start : start + CHUNK] for start in range(0, len(annotated), CHUNK))
        found = any(len(_read(catalog, chunk, show=False).labels) for chunk in chunks)
    if not found:
        raise ConfigError(
            f"rank {world.rank}: none of its {len(share)} images of {catalog.source.place} gives a crop: none has an "
            f"XML with an object of the classes {', '.join(catalog.classes)}; set data.scope to "
            '"global", or use fewer ranks'
        )


def _count(catalog: Catalog, images: range, world: World) -> CropCount:
    """Counts the crops of `images`, each image visited once."""
    if catalog.boxes is not None:
        first, last = np.searchsorted(catalog.boxes.images, [images.start, images.stop])
        return CropCount(int(last - first), exact=True)
    annotated = np.flatnonzero(catalog.annotated[images.start : images.stop]) + images.start
    plain = 0 if catalog.by_object else len(images) - len(annotated)
    step = max(1, -(-len(annotated) // COUNT_AT_MOST))
    chosen = annotated[::step]
    crops = world.from_rank0(lambda: len(_read(catalog, chosen, show=world.rank == 0).labels)) if len(chosen) else 0
    return CropCount(plain + round(crops * len(annotated) / max(1, len(chosen))), exact=step == 1)


def read_boxes(catalog: Catalog, world: World) -> Boxes:
    """Returns every box of `catalog`, the same on every rank; the ranks share the reading.

    Raises ConfigError if an XML cannot be used; the message names it.
    """
    annotated = np.flatnonzero(catalog.annotated)
    parts = world.on_all(lambda: _read(catalog, world.mine(annotated), show=world.rank == 0))
    if not catalog.by_object:
        plain = np.flatnonzero(~catalog.annotated)
        parts.append(Boxes(plain, np.repeat(WHOLE_IMAGE, len(plain), axis=0), catalog.labels[plain]))
    images, boxes, labels = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(images, kind="stable")
    return Boxes(images[order].astype(np.int32), boxes[order], labels[order])


def _read(catalog: Catalog, items: np.ndarray, show: bool) -> Boxes:
    """Reads the boxes of `items`, all of which have an XML; in several processes if they are MANY."""
    numbers = {name: number for number, name in enumerate(catalog.classes)}
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    tasks = ([catalog.annotation(item) for item in chunk.tolist()] for chunk in chunks)
    processes = len(os.sched_getaffinity(0)) if len(items) > MANY else 1
    parts = [Boxes(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))]
    try:
        found = parallel(partial(read_objects, catalog.source), tasks, processes, __name__)
        for chunk, xmls in zip(chunks, progress(found, len(chunks), "reading boxes", "chunk", show), strict=True):
            sizes = np.array([xml.size for xml in xmls], np.float32)
            unstated = np.flatnonzero(~is_stated(sizes) & np.array([bool(xml.names) for xml in xmls]))
            if unstated.size:
                sizes[unstated] = catalog.source.sizes([catalog.paths[item] for item in chunk[unstated].tolist()])
            images, boxes, labels = targets(numbered(xmls, numbers), catalog.labels[chunk], sizes)
            parts.append(Boxes(chunk[images], boxes, labels))
    except (OSError, ValueError, TfpipeError) as error:
        raise ConfigError(f"cannot read the boxes of {catalog.split} data: {error}; {catalog.source.remedy}") from error
    return Boxes(*map(np.concatenate, zip(*parts, strict=True)))


def read_objects(source: "Source", paths: list[str]) -> list[VocObjects]:
    """Reads XMLs through `source`; an XML that is missing, if it may be, counts as one without objects.

    Raises OSError, ValueError or TfpipeError if one cannot be read, or is no annotation; the message names it.
    """
    texts = source.contents(paths)
    return [
        VocObjects([], [], [1.0, 1.0]) if text is None else find_objects(text, path)
        for path, text in zip(paths, texts, strict=True)
    ]
