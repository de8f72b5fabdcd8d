"""The work that every peer is given: the same files, the same boxes or range of crops, batches of one size and kind."""

import math
import random
from typing import NamedTuple

from lxml import etree

SIZE = (224, 224)
BATCH = 64  # crops
# Of detection: whole images with their boxes, as MLPerf's RetinaNet gets Open Images.
DETECT_SIZE, DETECT_BATCH = (800, 800), 24
WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0)
# Of a random crop: share of the image's area, width by height, draws at most, as torchvision's defaults are.
AREA, ASPECT, DRAWS = (0.08, 1.0), (3 / 4, 4 / 3), 10
# tfpipe's rows of random crops: the names of their configs, and of the folders of packs.
RANDOM = ("loose", "loose_entries", "original", "original_entries", "coefficients")

Box = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax, as shares of the image's height and width


class File(NamedTuple):
    """An image, and the path of its annotation: "" for none, since tfpipe knows that from listing folders."""

    image: str
    xml: str


class Work(NamedTuple):
    """What a peer does."""

    files: list[File]
    passes: int  # over the files, each in the order given
    threads: int  # threads or worker processes
    folder: str  # of tfpipe's configs of the same work, NAME.json, of its indexes and packs, and of FFCV's files
    kind: str  # "boxes": a crop of each box; "random": one of each image, mirrored or not; others: the whole image


def read_boxes(xml: str, none: tuple[Box, ...] = (WHOLE_IMAGE,)) -> list[Box]:
    """The objects' boxes in a Pascal VOC XML, in pieces of the stated size; `none` where there are none."""
    if not xml:
        return [*none]
    root = etree.parse(xml).getroot()
    height, width = (float(root.findtext(f"size/{side}")) for side in ("height", "width"))
    return [
        (
            float(box.findtext("ymin")) / height,
            float(box.findtext("xmin")) / width,
            float(box.findtext("ymax")) / height,
            float(box.findtext("xmax")) / width,
        )
        for box in root.iterfind("object/bndbox")
    ] or [*none]


def boxes_in_pixels(xml: str) -> list[Box]:
    """The objects' boxes as detectors take them: xmin, ymin, xmax, ymax in pixels of the resized image."""
    high, wide = DETECT_SIZE
    return [(left * wide, top * high, right * wide, bottom * high) for top, left, bottom, right in read_boxes(xml, ())]


def random_window(height: int, width: int) -> tuple[int, int, int, int]:
    """Draws a window as torchvision's RandomResizedCrop does: top, left, height, width in pixels."""
    for _ in range(DRAWS):
        area = height * width * random.uniform(*AREA)
        aspect = math.exp(random.uniform(*map(math.log, ASPECT)))
        high, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < high <= height and 0 < wide <= width:
            return random.randint(0, height - high), random.randint(0, width - wide), high, wide
    return 0, 0, height, width
