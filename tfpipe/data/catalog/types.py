"""The catalog: everything known about a split before its first image is opened, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tfpipe.data.annotations.cleaning import BY_OBJECT, Boxes
from tfpipe.data.annotations.formats import FORMATS
from tfpipe.data.catalog.layout import annotation_name
from tfpipe.data.catalog.paths import FileList
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger

# Whole numbers beyond are rounded as float32.
MOST_FLOAT32 = 2**24
ROUNDED = (
    "whole numbers up to 2^24 in a column with empty cells or fractions, which is float32: fill the cells with whole "
    "numbers of at most 63 bits, or write texts"
)


def first_rounded(numbers: np.ndarray) -> int | None:
    """Returns the place of the first of whole numbers that float32 would round, as ids; None if it rounds none.

    `numbers` are float64 [n], NaN where there is none.
    """
    large = np.abs(numbers) > MOST_FLOAT32
    whole = np.isnan(numbers) | (numbers == np.round(numbers))
    return int(np.argmax(large)) if large.any() and whole.all() else None


class TextColumn(NamedTuple):
    """Texts of n images."""

    text: np.ndarray  # uint8 [m]: the texts in UTF-8, each followed by a line end
    starts: np.ndarray  # int64 [n + 1]: start of each text, and the end of the last one's line

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextColumn":
        """Makes a column of texts; a line end within a text becomes the character NUL. Raises ConfigError for a NUL."""
        nul = next((text for text in texts if "\0" in text), None)
        if nul is not None:
            raise ConfigError(
                f"data.source.columns.extra: received the text {nul[:80]!a}, with the character NUL: take it out"
            )
        lines = [text.replace("\n", "\0").encode() + b"\n" for text in texts]
        starts = np.cumsum([0, *map(len, lines)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(lines), np.uint8), starts)


class MixedList(NamedTuple):
    """One of several filelists that are mixed."""

    images: range  # numbers of its images in the joined list
    weight: float  # share of the samples, relative to the other lists' weights


class Index(NamedTuple):
    """The columns of an annotation index that training needs."""

    annotated: np.ndarray  # bool [n]: which images have an XML, or a row in the box file
    boxes: Boxes
    uneven: bool = False  # whether a few images are huge next to the others
    left_out: Mapping[str, tuple[int, str]] = {}  # counts of a Ledger


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
    by_box: bool = False
    """True if every box is a sample (`data.unit`); `boxes` are then known. False if every image is one."""
    lists: tuple[MixedList, ...] = ()
    """Filelists that are mixed, with the images of each; empty for a single filelist."""
    weights: np.ndarray | None = None
    """float64 [n]: how often each image comes in training, relative to the others of its class if `data.class_weights`
    is set, otherwise to all others; None if all come alike."""
    masks: FileList | None = None
    """Path of each image's mask, with `data.targets` "mask"; `boxes` are then known."""
    values: Mapping[str, np.ndarray | TextColumn] = field(default_factory=dict)
    """Columns that come with each crop, by their names: [n] or [n, length] numbers, or texts. "number" is that of
    `data.targets`."""
    version: str = ""
    """Digest of the versions of tables behind URLs; "" if there are none, or a server states no version."""
    uneven: bool = False
    """True if an annotation index says that a few images have many times the pixels of the others."""
    stated: np.ndarray | None = None
    """float32 [n, 2]: heights and widths that `boxes` were divided by, as their source states them; None if it does not
    state any. Not those of relative boxes."""
    annotation_format: str = "voc"
    """Format of the annotations, a key of FORMATS."""
    display_name: str = ""
    """Name of the data for a message."""
    ledger: Ledger = field(default_factory=Ledger)
    """Counts what the data holds and training does not use: files, members, objects."""
    jpeg: dict[str, Any] | None = None
    """JPEG quality and subsampling if crops were encoded again; a run that resumes must have the same."""

    def __post_init__(self) -> None:
        """Raises ConfigError if the parts are not of as many images or folders: a source of a user's own may err."""
        images, folders = len(self.paths), len(self.paths.folders)
        for name, count in (("annotation_folders", folders), ("annotated", images), ("labels", images)):
            received = len(getattr(self, name))
            if received != count:
                raise ConfigError(
                    f"the catalog of the {self.split} data has {received} {name} for {counted(images, 'image')} in "
                    f"{counted(folders, 'folder')}; expected {count}"
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

    def image_and_box(self, sample: int) -> tuple[int, int | None]:
        """Returns a sample's image, and the number of its box in that image or None if the sample is the image."""
        boxes = self.sampled_boxes
        if boxes is None:
            return sample, None
        image = int(boxes.images[sample])
        return image, sample - int(np.searchsorted(boxes.images, image))

    @property
    def reads_annotations(self) -> bool:
        """Returns whether a file is read besides each image's: its mask or, if boxes are not known, its XML."""
        return self.boxes is None or self.masks is not None

    def files_of(self, item: int) -> list[str]:
        """Returns the paths or URLs of an image and of its mask or, if it is parsed, of its XML."""
        annotation = self.annotation(item) if self.reads_annotations else ""
        return [path for path in (self.paths[item], annotation) if path]

    def annotation(self, item: int) -> str:
        """Returns the path of the mask or, without masks, of the XML of image `item`, "" if it has none."""
        if self.masks is not None:
            return self.masks[item]
        folder = self.annotation_folders[self.paths.folder[item]]
        if not folder or not self.annotated[item]:
            return ""
        return folder + annotation_name(self.paths.name(item), FORMATS[self.annotation_format].suffix)
