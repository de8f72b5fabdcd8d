"""Blood cells drawn in the place of BCCD's photographs."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tests.support.xmls import annotation


def make_blood(root: Path) -> None:
    """A stand-in for BCCD in its layout: many red, some large purple and some small dark discs on an image."""
    kinds = {"RBC": (8, 40, (210, 120, 120)), "WBC": (1, 70, (110, 60, 170)), "Platelets": (1, 14, (90, 50, 120))}
    random_ = np.random.default_rng(0)
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    names = [f"blood{number:03}" for number in range(200)]
    for name in names:
        image = Image.new("RGB", (320, 240), (235, 225, 220))
        objects = []
        for kind, (count, side, colour) in kinds.items():
            for _ in range(count):
                x, y = (int(random_.integers(0, length - side)) for length in image.size)
                ImageDraw.Draw(image).ellipse((x, y, x + side, y + side), fill=colour)
                objects.append((kind, (y, x, y + side, x + side)))
        image.save(root / f"JPEGImages/{name}.jpg")
        (root / f"Annotations/{name}.xml").write_text(annotation(*objects, size=(240, 320)))
    for split, chosen in (("trainval", names[:150]), ("test", names[150:])):
        (root / f"ImageSets/Main/{split}.txt").write_text("\n".join(chosen))
