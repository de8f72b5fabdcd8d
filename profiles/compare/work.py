"""The work that every peer is given: the same files, the same boxes, batches of one size and kind."""

from typing import NamedTuple

from lxml import etree

SIZE = (224, 224)
BATCH = 64  # crops
WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0)

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
    config: str  # the same work as a tfpipe config
    index: str  # the folder of tfpipe's index of them


def read_boxes(xml: str) -> list[Box]:
    """The objects' boxes in a Pascal VOC XML, in pieces of the stated size; the whole image where there are none."""
    if not xml:
        return [WHOLE_IMAGE]
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
    ] or [WHOLE_IMAGE]
