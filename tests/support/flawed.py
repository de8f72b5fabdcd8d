"""One image for each way in which an annotation or an image can be odd, and what an index says of it."""

import json
from pathlib import Path

from PIL import Image

from tests.support.targets import CLASSES
from tests.support.xmls import annotation
from tfpipe import load_config
from tfpipe.config import Config

OWN = "n02"
# Size stated (width, height), objects (None: no XML), codes.
FLAWS = {
    "fine": ((100, 80), [(OWN, (10, 10, 50, 60))], []),
    "gray": ((100, 80), [(OWN, (10, 10, 50, 60))], ["gray"]),
    "cmyk": ((100, 80), [(OWN, (10, 10, 50, 60))], ["cmyk"]),
    "png": ((100, 80), [(OWN, (10, 10, 50, 60))], ["not jpeg"]),
    "bare": ((100, 80), [], ["no object"]),
    "unsized": (None, [(OWN, (10, 10, 50, 60))], ["no size"]),
    "halves": ((0.5, 0.5), [(OWN, (10, 10, 50, 60))], ["no size"]),
    "larger": ((200, 160), [(OWN, (10, 10, 50, 60))], ["size differs"]),
    "swapped": ((100, 80), [(OWN, (50, 10, 10, 60))], ["box swapped"]),
    "outside": ((100, 80), [(OWN, (-5, 10, 50, 60)), (OWN, (10, 10, 50, 101))], ["box out of range"]),
    "empty": ((100, 80), [(OWN, (10, 10, 10, 60))], ["box empty"]),
    "twice": ((100, 80), [(OWN, (10, 10, 50, 60)), (OWN, (9, 10, 50, 60)), (OWN, (10, 10, 50, 60))], ["box twice"]),
    "unknown": ((100, 80), [("cow", (10, 10, 50, 60))], ["class unknown"]),
    "other": ((100, 80), [("n01", (10, 10, 50, 60))], ["class differs"]),
    "all": (
        (50, 80),
        [("n03", (70, 7, 3, -3)), ("x", (5, 5, 5, 9))],
        ["size differs", "box swapped", "box out of range", "box empty", "class unknown", "class differs"],
    ),
    "plain": (None, None, []),
}  # fmt: skip


def write_tree(root: Path) -> Config:
    """One image (80 high, 100 wide) for each of FLAWS."""
    images, xmls = root / "JPEGImages" / OWN, root / "Annotations" / OWN
    images.mkdir(parents=True)
    xmls.mkdir(parents=True)
    for name, (size, objects, _) in FLAWS.items():
        mode = {"gray": "L", "cmyk": "CMYK"}.get(name, "RGB")
        Image.new(mode, (100, 80)).save(images / f"{name}.jpg", "PNG" if name == "png" else "JPEG")
        if objects is not None:
            xml = annotation(*objects, size=size and size[::-1])
            (xmls / f"{name}.xml").write_text(xml)
    (root / "train.txt").write_text("".join(f"JPEGImages/{OWN}/{name}.jpg\n" for name in FLAWS))
    (root / "c.json").write_text(json.dumps({"data": {"train_filelist": "train.txt", "classes": list(CLASSES)}}))
    return load_config(root / "c.json")
