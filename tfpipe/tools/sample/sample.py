"""Writes a synthetic data set in the layout of ILSVRC2012 CLS-LOC: patterned shapes of eight classes.

Each image depends only on its split, its index and the seed, so the bytes do not depend on the number of workers.
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tfpipe.errors import ConfigError
from tfpipe.tools.sample.pictures import CLASSES, ImagePlan, plan, render
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress

VERSION = 3  # of the pictures: increase it when the same arguments yield other bytes
MARKER = "sample.json"  # has the arguments from the beginning, and the summary when all files are written
OBJECT = (
    "\t<object>\n\t\t<name>{}</name>\n\t\t<pose>Unspecified</pose>\n\t\t<truncated>0</truncated>\n"
    "\t\t<difficult>0</difficult>\n\t\t<bndbox>\n\t\t\t<xmin>{}</xmin>\n\t\t\t<ymin>{}</ymin>\n"
    "\t\t\t<xmax>{}</xmax>\n\t\t\t<ymax>{}</ymax>\n\t\t</bndbox>\n\t</object>\n"
)


class SampleSummary(NamedTuple):
    """Counts of a data set; `bytes` is the size of its JPEG files."""

    train_images: int
    val_images: int
    classes: int
    annotated_train_images: int
    train_boxes: int
    val_boxes: int
    bytes: int


def write_sample(
    out: Path, images: int, val_images: int | None = None, scale: float = 1.0, seed: int = 0, workers: int | None = None
) -> SampleSummary:
    """Writes a data set below `out`; returns at once if it exists already.

    `val_images` are by default a fifth of `images` and at least 8; `scale` is a factor on ImageNet's widths and
    heights; `workers` are processes, by default one per CPU. Raises ConfigError if an argument is out of range, or
    `out` holds other files.
    """
    val_images = max(images // 5, 8) if val_images is None else val_images
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    if images < 8 or val_images < 1 or not 0 < scale <= 4 or seed < 0 or workers < 1:
        raise ConfigError(
            "a sample takes images >= 8, val >= 1, 0 < scale <= 4, seed >= 0 and workers >= 1; given were "
            f"{images}, {val_images}, {scale}, {seed} and {workers}"
        )
    arguments = {"version": VERSION, "images": images, "val": val_images, "scale": scale, "seed": seed}
    finished = _finished(out, arguments)
    if finished is not None:
        return finished
    for folder in ("Data", "Annotations"):
        for part in ("val", *(f"train/{wnid}" for wnid in CLASSES)):
            (out / folder / "CLS-LOC" / part).mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text(json.dumps({"arguments": arguments}))
    items = [("train", k) for k in range(images)] + [("val", k) for k in range(val_images)]
    written = parallel(partial(_write_image, out, seed, scale), items, workers, __name__)
    drawn = list(progress(written, len(items), "writing sample images", "image"))
    train, val = ([image for image, _ in part] for part in (drawn[:images], drawn[images:]))
    _write_labels(out, val)
    boxes, val_boxes = (sum(len(image.things) for image in part if image.annotated) for part in (train, val))
    annotated, size = sum(image.annotated for image in train), sum(size for _, size in drawn)
    summary = SampleSummary(images, val_images, len(CLASSES), annotated, boxes, val_boxes, size)
    with atomic_write(out / MARKER) as marker:
        marker.write_text(json.dumps({"arguments": arguments, "summary": summary._asdict()}, indent=1) + "\n")
    return summary


def _finished(out: Path, arguments: dict) -> SampleSummary | None:
    """Returns the summary of a finished data set of these arguments; None if `out` is free or the set unfinished."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        content = json.loads((out / MARKER).read_text())
    except (ValueError, OSError):
        content = {}
    if content.get("arguments") != arguments:
        raise ConfigError(
            f"{out} holds other files, or a sample of other arguments than {arguments}: delete that folder, or give a "
            "new or an empty one"
        )
    # Writing an unfinished one again yields the same bytes.
    return SampleSummary(**content["summary"]) if "summary" in content else None


def _write_image(out: Path, seed: int, scale: float, item: tuple[str, int]) -> tuple[ImagePlan, int]:
    image = plan(seed, *item, scale)
    data = render(seed, *item, image)
    (out / f"Data/CLS-LOC/{image.stem}.JPEG").write_bytes(data)
    if image.annotated:
        objects = "".join(OBJECT.format(image.wnid, *thing.box) for thing in image.things)
        folder = image.wnid if item[0] == "train" else "val"
        (out / f"Annotations/CLS-LOC/{image.stem}.xml").write_text(
            f"<annotation>\n\t<folder>{folder}</folder>\n\t<filename>{Path(image.stem).name}</filename>\n"
            "\t<source>\n\t\t<database>ImageNet database</database>\n\t</source>\n"
            f"\t<size>\n\t\t<width>{image.width}</width>\n\t\t<height>{image.height}</height>\n"
            f"\t\t<depth>{1 if image.gray else 3}</depth>\n\t</size>\n\t<segmented>0</segmented>\n"
            f"{objects}</annotation>\n"
        )
    return image, len(data)


def _write_labels(out: Path, val: list[ImagePlan]) -> None:
    rows = ["ImageId,PredictionString"]
    for image in val:  # a space follows every box, even the last, as in Kaggle's file
        boxes = "".join("{} {} {} {} {} ".format(image.wnid, *thing.box) for thing in image.things)
        rows.append(f"{Path(image.stem).name},{boxes}")
    for file, lines in (
        ("LOC_val_solution.csv", rows),
        ("LOC_synset_mapping.txt", [f"{wnid} {look.names}" for wnid, look in CLASSES.items()]),
        ("imagenet_2012_validation_synset_labels.txt", [image.wnid for image in val]),
    ):
        (out / file).write_text("\n".join(lines) + "\n")
