"""A tree with one of each oddity that `tfpipe check` finds."""

import gzip
import json
from pathlib import Path

from tests.support.images import cmyk, encoded, picture, turned
from tests.support.xmls import bndbox, note, sides, thing

SIZE = (30, 40)


def xml(*parts: str) -> bytes:
    return note(*parts, size=sides("40", "30")).encode()


def good(number: int) -> bytes:
    return encoded(picture(*SIZE, number))


# Image and XML (None: none) of the training list, in its order; "n03" has no image.
TRAIN: dict[str, tuple[bytes | None, bytes | None]] = {
    "n01/fine": (good(0), xml(thing("<name>n01</name>", bndbox("1", "2", "30", "20")))),
    "n01/plain": (good(1), None),
    "n01/gone": (None, None),
    "n01/half": (good(3)[:700], None),
    "n01/zip": (gzip.compress(good(4), mtime=0), None),
    "n01/inks": (cmyk(picture(*SIZE, 5)), None),
    "n02/turned": (turned(picture(*SIZE, 6)), None),
    "n02/bad": (good(7), b"<annotation>"),
    "n02/utf16": (good(8), xml(thing("<name>n02</name>")).decode().encode("utf-16")),
    "n02/named": (good(9), xml("<filename>%s</filename>")),
    "n02/copy": (good(0), None),
    "n02/wide": (good(11), xml(thing("<name>n02</name>", bndbox("-5", "2", "300", "20")))),
    "n04/label": (good(12), None),
}
EXPECTED = {
    "missing": ["gone"],
    "truncated": ["half", "half"],
    "no image": ["zip"],
    "bad xml": ["bad"],
    "unknown label": ["label"],
    "listed twice": ["plain", "half"],
    "in both lists": ["fine"],
    "same contents": ["copy"],
    "no xml": ["plain", "gone", "half", "zip", "inks", "turned", "copy", "label", "plain", "half"],
    "file name": ["named"],
    "orientation": ["turned"],
    "cmyk": ["inks"],
    "no object": ["named"],
    "box out of range": ["wide"],
}


def write_tree(root: Path) -> Path:
    """A config whose training list has one of each, and whose test list has one of them and a good image."""
    for name, (image, text) in {**TRAIN, "n01/test": (good(20), None)}.items():
        for folder, suffix, contents in (("JPEGImages", "jpg", image), ("Annotations", "xml", text)):
            path = root / folder / f"{name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if contents is not None:
                path.write_bytes(contents)
    lines = [f"JPEGImages/{name}.jpg\n" for name in TRAIN]
    (root / "train.txt").write_text("".join([*lines, lines[1], "\n", lines[3]]))
    (root / "test.txt").write_text("JPEGImages/n01/test.jpg\nJPEGImages/n01/fine.jpg\n")
    data = {"train_filelist": "train.txt", "test_filelist": "test.txt", "classes": ["n01", "n02", "n03"]}
    (root / "c.json").write_text(json.dumps({"data": data}))
    return root / "c.json"
