"""The catalog: all that is known of a split before the first image is opened."""

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
        """int64 [images + 1]: where each image's boxes start, and where the last one's end."""
        return np.searchsorted(self.images, np.arange(images + 1))


class MixedList(NamedTuple):
    """One of several filelists that are mixed."""

    images: range
    """Numbers of its images."""
    weight: float
    """How much of the samples it gives, in proportion to the others'."""


@dataclass(frozen=True)
class Catalog:
    """One entry per image of a split, in the filelist's order."""

    split: str
    paths: FileList
    annotation_folders: list[str]
    """For each of `paths.folders` where its XMLs are, with a slash at the end; "" where none is needed, or read."""
    annotated: np.ndarray
    """bool: whether there is an XML or, with `data.train_box_file`, a row of the table, and one is needed. Of an image
    behind HTTP, whether there may be one."""
    labels: np.ndarray
    """int32: class number, or labels.BY_OBJECT."""
    classes: tuple[str, ...]
    """Names of the classes; a class's number is its place."""
    boxes: Boxes | None = None
    """What may be cropped from each image, where that is known from the start; None where its XML is to be read."""
    by_lxml: bool = False
    """Whether lxml reads the XMLs in training, as `data.annotations` has it; otherwise the graph does."""
    by_box: bool = False
    """Whether every box is a sample of its own, as `data.unit` has it; then `boxes` are known. Otherwise images are."""
    lists: tuple[MixedList, ...] = ()
    """Where several filelists are mixed: which images are whose. Empty for one."""
    packed: Packed | None = None
    """Where the images or crops are, if packed, as `data.source` has it; None where each is the file at its path."""
    remote: Remote | None = None
    """How the files are fetched where `paths` are URLs; None where they are not."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def by_object(self) -> bool:
        """Whether objects, not images, have labels."""
        return bool((self.labels == BY_OBJECT).any())

    @property
    def sampled_boxes(self) -> Boxes | None:
        """The boxes, where every one is a sample of its own; None where images are."""
        return self.boxes if self.by_box else None

    @property
    def samples(self) -> int:
        """How many there are: boxes or images."""
        boxes = self.sampled_boxes
        return len(self) if boxes is None else len(boxes.labels)

    def order(self, config: DataConfig) -> Order | Mixture:
        """In which order the samples come; test data is neither shuffled nor kept to its rank."""
        if self.split != "train":
            return Order(self.samples, shuffle=False)
        order = Order(
            self.samples, config.seed, config.shuffle_buffer > 1, config.reshuffle_each_iteration, config.scope
        )
        if not self.lists:
            return order
        ends, boxes = [each.images.stop for each in self.lists], self.sampled_boxes
        if boxes is not None:
            ends = boxes.offsets(len(self))[ends].tolist()
        counts = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        return Mixture.of(order, counts, tuple(each.weight for each in self.lists))

    def image_and_box(self, sample: int) -> tuple[int, int | None]:
        """The image that a sample is of, and which of its boxes; None where it is of the image whole."""
        boxes = self.sampled_boxes
        if boxes is None:
            return sample, None
        image = int(boxes.images[sample])
        return image, sample - int(np.searchsorted(boxes.images, image))

    def annotation(self, item: int) -> str:
        """Path of the XML of image `item`, "" where there is none."""
        folder = self.annotation_folders[self.paths.folder[item]]
        return folder + xml_name(self.paths.name(item)) if folder and self.annotated[item] else ""


def load_catalog(config: DataConfig, split: str, world: World) -> Catalog:
    """The catalog of `split`, "train" or "test": its filelist, labels, and its index or which images have an XML.

    Rank 0 alone reads the index or looks for the XMLs, and tells the others.

    Raises:
        ConfigError: a list, a label, the class table or an index that must be there cannot be used.
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
    # Test data is numbered as training data is.
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
    known = catalog.boxes is not None or not any(is_optional(f"{each}.xml") for each in catalog.annotation_folders)
    count = f"{'' if known else 'at most '}{catalog.annotated.sum()}"
    logger.info("%s: %d images, %s of them annotated", split, len(catalog), count)
    if split == "train" and config.unit == "box" and needs_boxes:
        catalog = replace(catalog, boxes=catalog.boxes or _read_boxes(catalog, world), by_box=True)
    if split == "train":
        _check_order(catalog, config, world)
    return catalog


def read_lists(filelist: Path | list[WeightedList]) -> tuple[FileList, tuple[MixedList, ...]]:
    """All images of one or several lists; and which are whose, where they are several."""
    if isinstance(filelist, Path):
        return read_filelist(filelist), ()
    lists = [read_filelist(each.path) for each in filelist]
    if len({each.remote for each in lists}) > 1:
        raise ConfigError(
            "data.train_filelist mixes lists of URLs with lists of paths: copy what is remote first, with "
            "`tfpipe stage`"
        )
    ends = np.cumsum([len(each) for each in lists]).tolist()
    spans = map(range, [0, *ends], ends)
    mixed = tuple(MixedList(span, each.weight) for span, each in zip(spans, filelist, strict=True))
    return FileList.joined(lists), mixed


def _check_order(catalog: Catalog, config: DataConfig, world: World) -> None:
    try:
        order = catalog.order(config)
    except ValueError as error:
        raise ConfigError(f"data.train_filelist cannot be mixed so: {error}") from error
    fewest = min(each.count for each in order.orders) if isinstance(order, Mixture) else order.count
    if config.scope == "shard" and fewest < world.size:
        raise ConfigError(
            f'{where(config)}: {fewest} samples are too few for {world.size} ranks with data.scope "shard"'
        )


def index_path(config: DataConfig, filelist: Path | list[WeightedList]) -> Path:
    """Where the index of `filelist` is: beside it, train.index.parquet of train.txt, train+more.index.parquet of two.

    In the folder `data.index`, which lists of the same name may share, train-1a2b3c4d.index.parquet, by the sha256 of
    the lists' resolved paths.
    """
    lists = [filelist] if isinstance(filelist, Path) else [each.path for each in filelist]
    name = "+".join(each.stem for each in lists)
    if config.index is None:
        return lists[0].parent / f"{name}.index.parquet"
    digest = hashlib.sha256(b"\n".join(os.fsencode(each.resolve()) for each in lists)).hexdigest()
    return config.index / f"{name}-{digest[:8]}.index.parquet"


def _with_annotations(
    catalog: Catalog, config: DataConfig, filelist: Path | list[WeightedList], world: World
) -> Catalog:
    """The catalog with its index's boxes, or else, without boxes, with what XMLs there are."""
    paths = catalog.paths
    source = config.box_file_for(catalog.split) or find_layout(config.layout, paths)
    if isinstance(source, Layout):
        catalog = replace(catalog, annotation_folders=annotation_folders(paths, source))

    def find() -> Any:
        if config.annotations in ("xml", "lxml"):
            return None
        if isinstance(source, Layout) and config.annotations == "auto" and not index_path(config, filelist).exists():
            return None
        # Imports pyarrow, which takes as long as reading a list.
        from tfpipe.data.index import find_index, fingerprint

        return find_index(config, filelist, fingerprint(paths, catalog.classes, catalog.labels, source))

    index = world.from_rank0(find)
    if index is not None:
        return replace(catalog, annotated=index.annotated, boxes=index.boxes)
    assert isinstance(source, Layout), "a table's boxes come by the index alone, without which find_index raises"
    packed = world.from_rank0(lambda: np.packbits(existing(paths, source, world.rank == 0, catalog.remote)))
    return replace(catalog, annotated=np.unpackbits(packed, count=len(paths)).astype(bool))


def _read_boxes(catalog: Catalog, world: World) -> Boxes:
    # Reads the XMLs in graph; nothing else here needs TensorFlow.
    from tfpipe.data.boxes import read_boxes

    return read_boxes(catalog, world)
