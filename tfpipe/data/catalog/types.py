"""The catalog: everything known about a split before its first image is opened, as plain data."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT, Boxes
from tfpipe.data.catalog.layout import xml_name
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.weights import sample_weights
from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from tfpipe.data.sources.source import Source


class MixedList(NamedTuple):
    """One of several filelists that are mixed."""

    images: range  # numbers of its images in the joined list
    weight: float  # share of the samples, relative to the other lists' weights


class Index(NamedTuple):
    """The columns of an annotation index that training needs."""

    annotated: np.ndarray  # bool [n]: which images have an XML, or a row in the box file
    boxes: Boxes


@dataclass(frozen=True)
class Catalog:
    """The images of a split, in the filelist's order, with labels and annotations."""

    split: str
    source: "Source"
    """Reads the images, and names them in messages."""
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
    by_box: bool = False
    """True if every box is a sample (`data.unit`); `boxes` are then known. False if every image is one."""
    lists: tuple[MixedList, ...] = ()
    """Filelists that are mixed, with the images of each; empty for a single filelist."""
    weights: np.ndarray | None = None
    """float64 [n]: how often each image comes in training, relative to the others of its class if `data.class_weights`
    is set, otherwise to all others; None if all come alike."""

    def __post_init__(self) -> None:
        """Raises ConfigError if the parts are not of as many images or folders: a source of a user's own may err."""
        images, folders = len(self.paths), len(self.paths.folders)
        for name, count in (("annotation_folders", folders), ("annotated", images), ("labels", images)):
            received = len(getattr(self, name))
            if received != count:
                raise ConfigError(
                    f"the catalog of the {self.split} data has {received} {name} for {images} images in {folders} "
                    f"folders; expected {count}"
                    + ('; without XMLs give [""] * len(paths.folders)' if name == "annotation_folders" else "")
                )

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
        """Returns the order of the samples; test data ignores `config`: list order, scope "global".

        Raises ConfigError if weights cannot be used.
        """
        if self.split != "train":
            return Order(self.samples, shuffle=False)
        about = (self.samples, config.seed, config.shuffle_buffer > 1, config.reshuffle_each_iteration, config.scope)
        weights = sample_weights(self, config)
        if weights is not None:
            return WeightedOrder(*about, weights)
        order = Order(*about)
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
