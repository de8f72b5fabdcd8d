"""Counts the crops of a split: in an epoch, in a rank's share, or in the rest of a test pass."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tfpipe.data.catalog.boxes import CHUNK, boxes_of
from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import evenly_spaced
from tfpipe.data.order.stream import Stream
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

# At most this many XMLs are read to count an epoch's crops, at 0.1 ms each.
COUNT_AT_MOST = 5000
UNKNOWN = np.iinfo(np.int64).max


class CropCount(NamedTuple):
    """The number of crops in an epoch, exact or estimated."""

    crops: int
    exact: bool


def count_crops(data: Split) -> CropCount:
    """Returns the number of crops in one epoch of a split over all ranks; the same on every rank.

    It is exact if every image gives one crop, all boxes are known, or at most COUNT_AT_MOST images have an XML; else an
    estimate from so many XMLs, evenly spaced. Mixed lists and weighted samples give an expectation.
    """
    once = _count_items(data)
    return once._replace(crops=once.crops * data.order.repeats)


def _count_items(split: Split) -> CropCount:
    """Returns the number of crops in an epoch of which no sample is repeated."""
    catalog, order = split.catalog, split.order
    if gives_one_crop(split):
        return CropCount(catalog.samples, exact=True)
    if isinstance(order, WeightedOrder):
        return _expected_crops(split, order)
    if not isinstance(order, Mixture):
        return _count(split, range(len(catalog)))
    per_image = [_count(split, part.images).crops / len(part.images) for part in catalog.lists]
    mean = np.dot(per_image, order.shares) / sum(order.shares)
    return CropCount(round(mean * order.count), exact=False)


def _expected_crops(split: Split, order: WeightedOrder) -> CropCount:
    """Returns the expected crops of an epoch of weighted images; without known boxes, from the XMLs of some."""
    catalog = split.catalog
    if catalog.boxes is not None:
        counts = np.diff(catalog.boxes.offsets(len(catalog)))
        return CropCount(round(float(np.average(counts, weights=order.weights)) * order.count), exact=False)
    items = order.items(np.array(evenly_spaced(order.length, COUNT_AT_MOST), np.int64))
    annotated = items[catalog.annotated[items]]
    crops = split.world.from_rank0(lambda: _crops_of(split, annotated))
    plain = 0 if catalog.by_object else len(items) - len(annotated)
    return CropCount(round((plain + crops) / len(items) * order.count), exact=False)


def own_crops(split: Split) -> int | None:
    """Returns the number of crops of a rank's share of the test data; None if only reading the XMLs would tell."""
    catalog, world = split.catalog, split.world
    if catalog.boxes is not None and _several(split):
        return int((catalog.boxes.images % world.size == world.rank).sum())
    annotated = catalog.annotated[slice(world.rank, None, world.size)]
    parsed = split.config.crop_for(catalog.split) == "boxes" and annotated.any()
    return None if split.crops_objects or parsed else len(range(world.rank, len(catalog), world.size))


def crops_left(split: Split, rest: Stream) -> int | None:
    """Returns the crops that `rest` of a test pass holds for a rank; None if only reading the XMLs would tell."""
    if own_crops(split) is None:
        return None
    visits = split.visits(rest, rest.count(split.world.rank, split.order.count))
    most = most_crops(split, visits.item)
    return None if (most == UNKNOWN).any() else int(np.maximum(most - visits.first_crop, 0).sum())


def crops_of_a_pass(split: Split) -> int | None:
    """Returns the crops of a pass over test data on all ranks; None if that is not known before, and for training."""
    if split.training or split.config.on_error == "skip":
        return None
    return own_crops(replace(split, world=World()))


def most_crops(split: Split, items: np.ndarray) -> np.ndarray:
    """Returns int64 [k]: how many crops samples (int64 [k]) give; UNKNOWN if only reading the XML would tell."""
    catalog = split.catalog
    if gives_one_crop(split):
        return np.ones_like(items)
    if catalog.boxes is not None:
        return np.diff(catalog.boxes.offsets(len(catalog)))[items]
    return np.where(catalog.annotated[items], UNKNOWN, 1)


def crops_of_a_sample(split: Split) -> tuple[int | None, int | None]:
    """Returns how many crops a sample gives at least and at most; None if that is not known before."""
    catalog = split.catalog
    if gives_one_crop(split):
        least, most = 1, 1
    elif catalog.boxes is None:
        return None, None
    else:
        counts = np.diff(catalog.boxes.offsets(len(catalog)))
        least, most = int(counts.min()), int(counts.max())
    return None if split.config.on_error == "skip" else least, most


def gives_one_crop(split: Split) -> bool:
    """Returns whether each sample gives one crop."""
    return split.catalog.by_box or not _several(split)


def _several(split: Split) -> bool:
    """Returns whether an image gives a crop for each of its boxes."""
    return split.crops_objects or split.config.crop_for(split.catalog.split) == "boxes"


def check_share(split: Split) -> None:
    """Checks that this rank's share of the training images gives a crop, if the share never changes.

    Raises ConfigError if it does not: the rank would wait for its first batch without end.
    """
    catalog, world = split.catalog, split.world
    if split.config.scope != "shard" or world.size == 1 or catalog.by_box or catalog.lists or not split.crops_objects:
        return
    share = np.arange(world.rank, len(catalog), world.size)
    if catalog.boxes is not None:
        has_crop = bool((catalog.boxes.images % world.size == world.rank).any())
    else:
        annotated = share[catalog.annotated[share]]
        chunks = (annotated[start : start + CHUNK] for start in range(0, len(annotated), CHUNK))
        has_crop = any(_crops_of(split, chunk) for chunk in chunks)
    if not has_crop:
        raise ConfigError(
            f"rank {world.rank}: none of its {len(share)} images of {catalog.display_name} gives a crop: none has an "
            f"XML with an object of the classes {', '.join(catalog.classes)}; set data.scope to "
            '"global", or use fewer ranks'
        )


def _count(split: Split, images: range) -> CropCount:
    catalog = split.catalog
    if catalog.boxes is not None:
        first, last = np.searchsorted(catalog.boxes.images, [images.start, images.stop])
        return CropCount(int(last - first), exact=True)
    annotated = np.flatnonzero(catalog.annotated[images.start : images.stop]) + images.start
    plain = 0 if catalog.by_object else len(images) - len(annotated)
    step = max(1, -(-len(annotated) // COUNT_AT_MOST))
    sampled = annotated[::step]
    crops = split.world.from_rank0(lambda: _crops_of(split, sampled)) if len(sampled) else 0
    return CropCount(plain + round(crops * len(annotated) / max(1, len(sampled))), exact=step == 1)


def _crops_of(split: Split, items: np.ndarray) -> int:
    """Returns the number of crops of `items` (int64 [n]), all of which have an XML, by reading the XMLs."""
    catalog = replace(split.catalog, classes=split.object_classes)
    return len(boxes_of(catalog, split.storage, items, show=split.world.rank == 0).boxes.labels)
