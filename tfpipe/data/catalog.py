"""The catalog: all that is known of a split before the first image is opened."""

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations import annotation_folders, existing, find_layout, xml_name
from tfpipe.data.filelist import FileList, read_filelist
from tfpipe.data.labels import BY_OBJECT, class_table, image_labels
from tfpipe.data.order import Order
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)


class Boxes(NamedTuple):
    """All boxes of a split, in the order of the images."""

    images: np.ndarray  # int32 [k]: number of the box's image
    boxes: np.ndarray  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: np.ndarray  # int32 [k]


@dataclass(frozen=True)
class Catalog:
    """One entry per image of a split, in the filelist's order."""

    split: str
    paths: FileList
    annotation_folders: list[str]
    """For each of `paths.folders` where its XMLs are, with a slash at the end; "" where none is needed."""
    annotated: np.ndarray
    """bool: whether there is an XML, and one is needed."""
    labels: np.ndarray
    """int32: class number, or labels.BY_OBJECT."""
    classes: tuple[str, ...]
    """Names of the classes; a class's number is its place."""
    boxes: Boxes | None = None
    """Where every box is a sample of its own, as `data.unit` has it; otherwise None, and every image is one."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def by_object(self) -> bool:
        """Whether objects, not images, have labels."""
        return bool((self.labels == BY_OBJECT).any())

    def order(self, config: DataConfig) -> Order:
        """In which order the samples come; test data is neither shuffled nor kept to its rank."""
        count = len(self) if self.boxes is None else len(self.boxes.labels)
        if self.split != "train":
            return Order(count, shuffle=False)
        return Order(count, config.seed, config.shuffle_buffer > 1, config.reshuffle_each_iteration, config.scope)

    def image_and_box(self, sample: int) -> tuple[int, int | None]:
        """The image that a sample is of, and which of its boxes; None where it is of the image whole."""
        if self.boxes is None:
            return sample, None
        image = int(self.boxes.images[sample])
        return image, sample - int(np.searchsorted(self.boxes.images, image))

    def annotation(self, item: int) -> str:
        """Path of the XML of image `item`, "" where `annotated` is False."""
        if not self.annotated[item]:
            return ""
        return self.annotation_folders[self.paths.folder[item]] + xml_name(self.paths.name(item))


def load_catalog(config: DataConfig, split: str, world: World) -> Catalog:
    """The catalog of `split`, "train" or "test": its filelist, labels and which images have an XML.

    Rank 0 alone looks for the XMLs, and tells the others.

    Raises:
        ConfigError: a list, a label or the class table cannot be used.
    """
    if split == "train":
        filelist, label_file = config.train_filelist, config.train_label_file
    elif split == "test" and config.test_filelist is not None:
        filelist, label_file = config.test_filelist, config.test_label_file
    else:
        raise ConfigError(f'no data for split "{split}": it must be "train", or "test" with data.test_filelist set')
    paths = read_filelist(filelist)
    # Test data is numbered as training data is.
    train_paths = paths if split == "train" or config.classes is not None else read_filelist(config.train_filelist)
    classes = class_table(config, train_paths)
    labels = image_labels(paths, classes, config, label_file)
    folders, annotated = [""] * len(paths.folders), np.zeros(len(paths), bool)
    if config.annotations != "none" and config.crop_for(split) in ("boxes", "random_resized"):
        layout = find_layout(config.layout, paths)
        folders = annotation_folders(paths, layout)
        packed = world.from_rank0(lambda: np.packbits(existing(paths, layout)))
        annotated = np.unpackbits(packed, count=len(paths)).astype(bool)
    catalog = Catalog(split, paths, folders, annotated, labels, classes)
    logger.info("%s: %d images, %d of them with an XML", split, len(catalog), catalog.annotated.sum())
    if split == "train" and config.unit == "box" and config.crop_for(split) in ("boxes", "random_resized"):
        # Reads the XMLs in graph; nothing else here needs TensorFlow.
        from tfpipe.data.boxes import read_boxes

        catalog = replace(catalog, boxes=read_boxes(catalog, world))
    samples = len(catalog) if catalog.boxes is None else len(catalog.boxes.labels)
    if split == "train" and config.scope == "shard" and samples < world.size:
        raise ConfigError(f'{filelist}: {samples} samples are too few for {world.size} ranks with data.scope "shard"')
    return catalog
