"""Converts a catalog's data to parts that processes share, and back: the list, the labels, and the index's boxes."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import DataConfig, Layout, WeightedList
from tfpipe.data.annotations.cleaning import Boxes, LocatedBoxes
from tfpipe.data.catalog.labels import image_labels
from tfpipe.data.catalog.lists import mixed, paths_of, read_lists
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.shared import Shared, share
from tfpipe.data.catalog.types import Index, MixedList
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.made_from import stamped
from tfpipe.util.mapped import Part

logger = logging.getLogger(__name__)


class Listed(NamedTuple):
    """The images of one or several filelists."""

    paths: FileList
    lists: tuple[MixedList, ...]  # which images are in which list; empty for a single one
    shared: Shared


def load_list(config: DataConfig, filelist: Path | list[WeightedList], world: World) -> Listed:
    """Reads filelists, or maps what another process has read of them; every rank must call.

    Raises ConfigError if a list cannot be used.
    """
    shared = share(config, filelist, world)
    if not shared.places:
        # All ranks have the same images, even if some are added to a folder meanwhile.
        folder = isinstance(filelist, Path) and filelist.is_dir()
        return Listed(*(world.from_rank0(lambda: read_lists(filelist)) if folder else read_lists(filelist)), shared)

    def read() -> Part:
        paths, lists = read_lists(filelist, show=world.rank == 0)
        if stamped(paths_of(filelist)) != shared.files:  # no collective: only the ranks that make a part come here
            raise ConfigError(f"{shared.files[0][0]} changed while it was read: start again")
        about = {"folders": paths.folders, "digest": paths.digest, "ends": [part.images.stop for part in lists]}
        return Part(about, {"names": paths.text, "offsets": paths.offsets, "folder": paths.folder})

    part = shared.part("list", [], read)
    assert part is not None, "a list is always read"
    folders, digest, ends = (part.about[name] for name in ("folders", "digest", "ends"))
    paths = FileList(folders, part.arrays["folder"], part.arrays["names"], part.arrays["offsets"], digest)
    return Listed(paths, mixed(filelist, ends), shared)


def load_labels(listed: Listed, classes: Sequence[str], config: DataConfig, split: str) -> tuple[np.ndarray, list[Any]]:
    """Returns the images' labels, int32 [n], and what they depend on beside the list; every rank must call.

    Raises ConfigError as image_labels does.
    """
    paths, file, shared = listed.paths, config.label_file_for(split), listed.shared
    inputs = [list(classes), config.label_source, shared.stamps([file])]
    part = shared.part("labels", inputs, lambda: Part({}, {"labels": image_labels(paths, classes, config, file)}))
    assert part is not None, "labels are always found"
    return part.arrays["labels"], inputs


def load_boxes(
    shared: Shared, index: Path, source: Layout | Path, inputs: Sequence[Any], find: Callable[[], Index | None]
) -> Index | None:
    """Returns the annotated images and boxes that `find()` reads from the file `index`; every rank must call.

    None if `find` returns None: the index cannot be used. `source` is the layout or the box file, and `inputs` what the
    labels depend on.
    """
    where = source.model_dump() if isinstance(source, Layout) else shared.stamps([source])
    stamps = shared.stamps([index])
    if not shared.places or stamps[0][1].size is None:
        return shared.world.from_rank0(find)
    made = False

    def make() -> Part | None:
        nonlocal made
        made, found = True, find()
        if found is None:
            return None
        boxes = dict(zip(Boxes._fields, found.boxes, strict=True))
        return Part({}, {"annotated": found.annotated, "starts": found.boxes.offsets(len(found.annotated)), **boxes})

    part = shared.part("boxes", [*inputs, where, stamps], make)
    if part is None:
        return None
    if not made and shared.world.rank == 0:
        logger.info("boxes are those of the index %s", index)
    arrays = part.arrays
    boxes = Boxes(*(arrays[name] for name in Boxes._fields))
    return Index(arrays["annotated"], LocatedBoxes.of(boxes, arrays["starts"]))
