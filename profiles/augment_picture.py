"""Draws each step of data.augment, and data.mix: python profiles/augment_picture.py [-o docs/assets/augmentation.jpg].

A row is one generated image in five epochs, as training sees it, with the step's `p` at 1; a mixed row is one batch.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from PIL import Image

from tfpipe import build_dataset, make_config
from tfpipe.tools.sample.sample import write_sample
from tfpipe.tools.view import sheet

SIDE, EPOCHS, GAP = 80, 5, 4  # pixels, crops in a row, pixels
ARGUMENTS: dict[str, dict[str, Any]] = {
    "RandAugment": {},
    "TrivialAugmentWide": {},
    "AutoAugment": {},
    "AugMix": {},
    "ColorJitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    "RandomGrayscale": {},
    "GaussianBlur": {"kernel_size": 9, "sigma": [0.1, 3.0]},
    "RandomSolarize": {"threshold": 128},
    "RandomPosterize": {"bits": 2},
    "RandomAutocontrast": {},
    "RandomEqualize": {},
    "RandomInvert": {},
    "RandomAdjustSharpness": {"sharpness_factor": 8},
    "RandomRotation": {"degrees": 30},
    "RandomAffine": {"degrees": 15, "translate": [0.1, 0.1], "scale": [0.7, 1.2], "shear": 15},
    "RandomHorizontalFlip": {},
    "RandomVerticalFlip": {},
    "RandomErasing": {"value": "random"},
}
PARTIAL = {"RandomHorizontalFlip": 0.5}
MIXES: dict[str, dict[str, Any]] = {"mixup": {"mixup": 1.0}, "cutmix": {"cutmix": 1.0}}


def main(path: Path, image: int, only: list[str]) -> None:
    """Writes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        write_sample(Path(folder) / "sample", images=8, val_images=1, scale=0.5)
        files = sorted((Path(folder) / "sample/Data/CLS-LOC/train").rglob("*.JPEG"))
        alone, several = Path(folder) / "alone.txt", Path(folder) / "several.txt"
        alone.write_text(f"{files[image]}\n")
        several.write_text("".join(f"{file}\n" for file in files[:EPOCHS]))
        tiles = [tile("no step", alone)]
        for name, arguments in ((name, ARGUMENTS[name]) for name in only if name in ARGUMENTS):
            step = {"name": name, "p": PARTIAL.get(name, 1.0), **arguments}
            tiles.append(tile(caption(name, arguments), alone, augment=[step]))
        tiles += [tile(caption("mix", mix), several, mix=mix) for name, mix in MIXES.items() if name in only]
    drawn = sheet.draw(f"data.augment: one image in {EPOCHS} epochs; data.mix: a batch", tiles)
    drawn.save(path, quality=72, optimize=True)  # sheet.save's 92 takes 800 kB
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def caption(name: str, arguments: dict[str, Any]) -> str:
    """Returns a step's name with its arguments."""
    return " ".join([name, *(f"{key}={value}" for key, value in arguments.items())])


def tile(text: str, filelist: Path, **data: Any) -> sheet.Tile:
    """Returns the first crops that training sees of a list; a list of one image has it once an epoch."""
    fixed = {"train_filelist": str(filelist), "annotations": "none", "crop": "full", "crop_image_size": [SIDE, SIDE]}
    fixed |= {"resize": "antialias", "batch_size": EPOCHS, "shuffle_buffer": 0}
    images, _ = next(iter(build_dataset(make_config({"data": {**fixed, **data}}))))
    row = Image.new("RGB", (EPOCHS * (SIDE + GAP) - GAP, SIDE), sheet.PAPER)
    for number, pixels in enumerate(np.asarray(images)):
        row.paste(sheet.picture(pixels), (number * (SIDE + GAP), 0))
    return sheet.Tile(row, (text,))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, default=Path("docs/assets/augmentation.jpg"), metavar="FILE", dest="path")
    parser.add_argument("--image", type=int, default=3, choices=range(8), help="number of the generated image")
    names = [*ARGUMENTS, *MIXES]
    parser.add_argument("--only", choices=names, nargs="+", default=names, metavar="STEP", help="steps to draw [all]")
    arguments = parser.parse_args()
    main(arguments.path, arguments.image, arguments.only)
