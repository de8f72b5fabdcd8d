"""The catalog: everything that is known about a split before its first image is opened."""

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import DataConfig, Layout, Remote, WeightedList
from tfpipe.data.annotations import annotation_folders, existing, find_layout, xml_name
from tfpipe.data.filelist import FileList, read_filelist
from tfpipe.data.labels import BY_OBJECT, class_table, image_labels
from tfpipe.data.mixture import Mixture
from tfpipe.data.order import Order
from tfpipe.data.remote import is_optional
from tfpipe.data.shards import Packed
from tfpipe.data.sources import where
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)


WHOLE_IMAGE = np.array([[0, 0, 1, 1]], np.float32)


class Boxes(NamedTuple):
    """All boxes of a split, in the order of the images."""

    images: np.ndarray  # int32 [k]: number of the box's image
    boxes: np.ndarray  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: np.ndarray  # int32 [k]

    def offsets(self, images: int) -> np.ndarray:
        """Returns where each image's boxes start and, last, where all end, as int64 [images + 1]."""
        return np.searchsorted(self.images, np.arange(images + 1))


class MixedList(NamedTuple):
    """One of several filelists that are mixed."""

    images: range
    """Numbers of its images in the joined list."""
    weight: float
    """Share of the samples, relative to the other lists' weights."""


@dataclass(frozen=True)
class Catalog:
    """The images of a split, in the filelist's order, with labels and annotations."""

    split: str
    paths: FileList
    annotation_folders: list[str]
    """Folder of the XMLs for each of `paths.folders`, with a trailing slash; "" if no XML is read."""
    annotated: np.ndarray
    """bool [n]: True if the image needs and has an XML or, with `data.train_box_file`, a row of the table. Always True
    for an image behind HTTP whose XML would be fetched: it may have one."""
    labels: np.ndarray
    """int32 [n]: class number, or labels.BY_OBJECT."""
    classes: tuple[str, ...]
    """Class names, indexed by class number."""
    boxes: Boxes | None = None
    """Boxes that may be cropped, if known from the start; None if the pipeline reads the XMLs."""
    by_lxml: bool = False
    """True if the pipeline parses XMLs with lxml (`data.annotations`), False if with graph ops."""
    by_box: bool = False
    """True if every box is a sample (`data.unit`); `boxes` are then known. False if every image is one."""
    lists: tuple[MixedList, ...] = ()
    """Filelists that are mixed, with the images of each; empty for a single filelist."""
    packed: Packed | None = None
    """Shards that hold the images or crops (`data.source`); None if each image is the file at its path."""
    remote: Remote | None = None
    """Settings to fetch `paths` if they are URLs; None if they are files."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def by_object(self) -> bool:
        """Returns whether objects, not images, have labels."""
        return bool((self.labels == BY_OBJECT).any())

    @property
    def sampled_boxes(self) -> Boxes | None:
        """Returns the boxes if every box is a sample, None if every image is one."""
        return self.boxes if self.by_box else None

    @property
    def samples(self) -> int:
        """Returns the number of samples: of boxes or of images."""
        boxes = self.sampled_boxes
        return len(self) if boxes is None else len(boxes.labels)

    def order(self, config: DataConfig) -> Order | Mixture:
        """Returns the order of the samples; test data ignores `config`: list order, scope "global"."""
        if self.split != "train":
            return Order(self.samples, shuffle=False)
        order = Order(
            self.samples, config.seed, config.shuffle_buffer > 1, config.reshuffle_each_iteration, config.scope
        )
        if not self.lists:
            return order
        ends, boxes = [part.images.stop for part in self.lists], self.sampled_boxes
        if boxes is not None:
            ends = boxes.offsets(len(self))[ends].tolist()
        counts = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        return Mixture.of(order, counts, tuple(part.weight for part in self.lists))

    def image_and_box(self, sample: int) -> tuple[int, int | None]:
        """Returns a sample's image, and the number of its box in that image or None if the sample is the image."""
        boxes = self.sampled_boxes
        if boxes is None:
            return sample, None
        image = int(boxes.images[sample])
        return image, sample - int(np.searchsorted(boxes.images, image))

    def annotation(self, item: int) -> str:
        """Returns the path of the XML of image `item`, "" if it has none."""
        folder = self.annotation_folders[self.paths.folder[item]]
        return folder + xml_name(self.paths.name(item)) if folder and self.annotated[item] else ""


def load_catalog(config: DataConfig, split: str, world: World) -> Catalog:
    """Loads the catalog of `split`, "train" or "test": filelist, labels, and the index or which images have an XML.

    Only rank 0 reads the index or searches for the XMLs; it broadcasts the result.

    Raises:
        ConfigError: a filelist, a label, the class table or a required index cannot be used.
    """
    if config.source is not None:
        from tfpipe.data.packed import load_source

        return load_source(config, split, world)
    if split == "train":
        label_file = config.train_label_file
    elif split == "test" and config.test_filelist is not None:
        label_file = config.test_label_file
    else:
        raise ConfigError(f'no data for split "{split}": it must be "train", or "test" with data.test_filelist set')
    filelist = config.filelist_for(split)
    paths, lists = read_lists(filelist)
    # Test data has the class numbers of training data, so it may need the training list's folders.
    numbered = split == "train" or config.classes is not None
    train_paths = paths if numbered else read_lists(config.filelist_for("train"))[0]
    classes = class_table(config, train_paths)
    labels = image_labels(paths, classes, config, label_file)
    by_lxml = config.annotations == "lxml"
    catalog = Catalog(
        split, paths, [""] * len(paths.folders), np.zeros(len(paths), bool), labels, classes, None, by_lxml, lists=lists
    )
    if paths.remote:
        catalog = replace(catalog, remote=config.remote)
    needs_boxes = config.crop_for(split) in ("boxes", "random_resized")
    if config.annotations != "none" and needs_boxes:
        catalog = _with_annotations(catalog, config, filelist, world)
    known = catalog.boxes is not None or not any(is_optional(f"{path}.xml") for path in catalog.annotation_folders)
    count = f"{'' if known else 'at most '}{catalog.annotated.sum()}"
    logger.info("%s: %d images, %s of them annotated", split, len(catalog), count)
    if split == "train" and config.unit == "box" and needs_boxes:
        catalog = replace(catalog, boxes=catalog.boxes or _read_boxes(catalog, world), by_box=True)
    if split == "train":
        _check_order(catalog, config, world)
    return catalog


def read_lists(filelist: Path | list[WeightedList]) -> tuple[FileList, tuple[MixedList, ...]]:
    """Reads one or several filelists; returns all images and, for several lists, which images are in which list."""
    if isinstance(filelist, Path):
        return read_filelist(filelist), ()
    lists = [read_filelist(entry.path) for entry in filelist]
    if len({paths.remote for paths in lists}) > 1:
        raise ConfigError(
            "data.train_filelist mixes lists of URLs with lists of paths: copy what is remote first, with "
            "`tfpipe stage`"
        )
    ends = np.cumsum([len(paths) for paths in lists]).tolist()
    spans = map(range, [0, *ends], ends)
    mixed = tuple(MixedList(span, entry.weight) for span, entry in zip(spans, filelist, strict=True))
    return FileList.joined(lists), mixed


def _check_order(catalog: Catalog, config: DataConfig, world: World) -> None:
    try:
        order = catalog.order(config)
    except ValueError as error:
        raise ConfigError(f"data.train_filelist cannot be mixed so: {error}") from error
    fewest = min(part.count for part in order.orders) if isinstance(order, Mixture) else order.count
    if config.scope == "shard" and fewest < world.size:
        raise ConfigError(
            f'{where(config)}: {fewest} samples are too few for {world.size} ranks with data.scope "shard"'
        )


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Returns the path of the index of `filelist`: beside it, train.index.parquet for train.txt.

    Two mixed lists have train+more.index.parquet. In the folder `data.index`, where lists of equal names may meet, a
    hash is added, train-1a2b3c4d.index.parquet: the sha256 of the lists' resolved paths.
    """
    lists = [filelist] if isinstance(filelist, Path) else [entry.path for entry in filelist]
    name = "+".join(path.stem for path in lists)
    if config.index is None:
        return lists[0].parent / f"{name}.index.parquet"
    digest = hashlib.sha256(b"\n".join(os.fsencode(path.resolve()) for path in lists)).hexdigest()
    return config.index / f"{name}-{digest[:8]}.index.parquet"


def _with_annotations(
    catalog: Catalog, config: DataConfig, filelist: Path | list[WeightedList], world: World
) -> Catalog:
    """Adds the index's boxes to the catalog or, without an index, which images have an XML."""
    paths = catalog.paths
    source = config.box_file_for(catalog.split) or find_layout(config.layout, paths)
    if isinstance(source, Layout):
        catalog = replace(catalog, annotation_folders=annotation_folders(paths, source))

    def find() -> Any:
        if config.annotations in ("xml", "lxml"):
            return None
        if isinstance(source, Layout) and config.annotations == "auto" and not index_path(config, filelist).exists():
            return None
        # Imported late: pyarrow takes as long to import as a filelist takes to read.
        from tfpipe.data.index import find_index, fingerprint

        return find_index(config, filelist, fingerprint(paths, catalog.classes, catalog.labels, source))

    index = world.from_rank0(find)
    if index is not None:
        return replace(catalog, annotated=index.annotated, boxes=index.boxes)
    assert isinstance(source, Layout), "a table's boxes come from the index only, and find_index raises without one"
    packed = world.from_rank0(lambda: np.packbits(existing(paths, source, world.rank == 0, catalog.remote)))
    return replace(catalog, annotated=np.unpackbits(packed, count=len(paths)).astype(bool))


def _read_boxes(catalog: Catalog, world: World) -> Boxes:
    # Imported late: it needs TensorFlow, to read the XMLs in a graph; nothing else here does.
    from tfpipe.data.boxes import read_boxes

    return read_boxes(catalog, world)
