"""The catalog: all that is known of a split before the first image is opened."""

import logging
from dataclasses import dataclass

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations import existing, find_layout
from tfpipe.data.filelist import read_filelist
from tfpipe.data.labels import BY_OBJECT, class_table, image_labels
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Catalog:
    """One entry per image of a split, in the filelist's order."""

    split: str
    paths: list[str]
    annotations: list[str]
    """Path of the XML, "" where there is none or none is needed."""
    labels: np.ndarray
    """int32: class number, or labels.BY_OBJECT."""
    classes: tuple[str, ...]
    """Names of the classes; a class's number is its place."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def by_object(self) -> bool:
        """Whether objects, not images, have labels."""
        return bool((self.labels == BY_OBJECT).any())

    @property
    def annotated(self) -> int:
        """How many images have an XML."""
        return sum(map(bool, self.annotations))


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
    annotations = [""] * len(paths)
    if config.annotations != "none" and config.crop_for(split) in ("boxes", "random_resized"):
        layout = find_layout(config.layout, paths)
        annotations = world.from_rank0(lambda: existing(paths, layout))
    catalog = Catalog(split, paths, annotations, labels, classes)
    logger.info("%s: %d images, %d of them with an XML", split, len(catalog), catalog.annotated)
    return catalog
