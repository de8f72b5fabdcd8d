"""The section `data.targets`: what comes with each crop as its labels."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PositiveInt

from tfpipe.config.data_sections import Layout
from tfpipe.config.section import Section

Kind = Literal["label", "labels", "number", "boxes", "mask", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Kinds whose labels are those of an image's objects.
OF_OBJECTS = ("boxes", "labels")
# Kinds whose images have no class.
UNCLASSED = ("number", "mask", "none")
# Kinds whose labels are of places in the crop.
PLACED = ("boxes", "mask")
# Steps of data.augment that leave every pixel where it is, so that boxes and masks stay right.
IN_PLACE = frozenset((
    "ColorJitter", "GaussianBlur", "RandomAdjustSharpness", "RandomAutocontrast", "RandomEqualize", "RandomErasing",
    "RandomGrayscale", "RandomInvert", "RandomPosterize", "RandomSolarize",
))  # fmt: skip


class TargetsConfig(Section):
    """The labels of batches."""

    kind: Kind = "label"
    """"label": the number of the crop's class, int32 [batch]. "labels": an image's classes, 1 for each that it has and
    0 for the others, float32 [batch, classes]: those of its objects, or of a column of lists. "number": the number in
    the column `source.columns.label`, float32 [batch], or the numbers of its lists, all of one length, [batch, length].
    "boxes": a dictionary of the boxes in the crop, float32 [batch, n, 4], xmin, ymin, xmax, ymax, and of their
    "labels", int32 [batch, n]; -1 fills an image's rows up to n. "mask": the class number of each pixel, uint8 [batch,
    height, width], from a PNG beside each image. "none": nothing; a batch is (images,), and images need no classes.
    `crop` and `label_source` have other defaults with some."""
    box_unit: Literal["pixels", "relative"] = "pixels"
    """Unit of the boxes: pixels of the crop, or shares of its sides, in [0, 1]."""
    min_visible: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Smallest share of a box's area that is inside the crop; a box of which less is inside is left out."""
    max_boxes: PositiveInt | Literal["ragged"] | None = None
    """The n of the boxes' shape; null: as many as the image has that has most. More boxes in an image are an error.
    "ragged": boxes and their labels are tf.RaggedTensors, without rows of -1, and in tfpipe.torch a list of a
    dictionary for each image, as torchvision's detectors take them."""
    masks: Layout | None = None
    """Place of the mask of an image of a filelist: the folder of the images, as in {"images": "JPEGImages",
    "annotations": "SegmentationClass"}, is replaced by that of the annotations, and the name's extension by .png. null:
    beside the image. A table has them in the column `source.columns.mask`."""

    @property
    def needs_boxes(self) -> bool:
        """Whether all boxes that are used have to be known before the first image is read."""
        return self.kind in (*OF_OBJECTS, "mask")

    @property
    def test_crop(self) -> str | None:
        """The crop of test data if training has random ones; None for that of data with one label."""
        return "full" if self.needs_boxes or self.kind == "none" else None

    def of_objects(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the classes by which boxes are chosen, given all; () if images have no class, and all boxes count."""
        return () if self.kind in UNCLASSED else classes

    @property
    def unread(self) -> dict[str, Any]:
        """Keys of `data` with which the same files are found, and no XML is read: for commands that work on files."""
        return {"targets": TargetsConfig(), "crop": "boxes", "test_crop": "boxes"} if self.kind in OF_OBJECTS else {}

    @property
    def defaults(self) -> dict[str, str]:
        """The values of keys of `data` that null stands for."""
        source = "object" if self.kind in OF_OBJECTS else "directory"
        return {"crop": self.test_crop or "boxes", "label_source": source}


def _of_kind(targets: Any) -> Any:
    return {"kind": targets} if isinstance(targets, str) else targets


# A text is short for its kind.
Targets = Annotated[TargetsConfig, BeforeValidator(_of_kind)]
