"""Writes a synthetic data set in the layout of ILSVRC2012 CLS-LOC: patterned shapes of eight classes before clouds.

Each image depends only on its split, its index and the seed, so the bytes do not depend on the number of workers.
Colour reveals no class: a class is an outline and a pattern.
"""

import colorsys
import io
import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress
from tfpipe.util.resources import usable_cpus

VERSION = 3  # of the pictures: increase it when the same arguments yield other bytes
MARKER = "sample.json"  # has the arguments from the beginning, and the summary when all files are written
OBJECT = (
    "\t<object>\n\t\t<name>{}</name>\n\t\t<pose>Unspecified</pose>\n\t\t<truncated>0</truncated>\n"
    "\t\t<difficult>0</difficult>\n\t\t<bndbox>\n\t\t\t<xmin>{}</xmin>\n\t\t\t<ymin>{}</ymin>\n"
    "\t\t\t<xmax>{}</xmax>\n\t\t\t<ymax>{}</ymax>\n\t\t</bndbox>\n\t</object>\n"
)
SPLITS = ("train", "val")
ANNOTATED, GRAY = 0.425, 0.02  # shares of train images: 544 546 of ILSVRC2012's 1 281 167 have boxes
COMMON_SIZES = ((500, 375), (375, 500), (500, 333), (333, 500), (500, 500))  # pixels, as in ILSVRC2012
# Median noise in levels, and quality, that give files of about 0.6 bytes a pixel, as in ILSVRC2012.
NOISE, QUALITY = 10.0, 95
ANGLES = np.linspace(-np.pi, np.pi, 720)


class Thing(NamedTuple):
    """One object: its tight box in pixel edges (0 <= xmin < xmax <= width) and its turn in radians."""

    box: tuple[int, int, int, int]
    turn: float


class ImagePlan(NamedTuple):
    """The content of one image; `stem` is its path without suffix."""

    stem: str
    wnid: str
    width: int
    height: int
    gray: bool
    annotated: bool
    things: tuple[Thing, ...]


class Look(NamedTuple):
    """The look of a class's objects: an outline of radius 1, and a pattern of two colours."""

    names: str  # as in LOC_synset_mapping.txt
    lobes: int  # of the outline
    depth: float  # of the outline between the lobes
    waves: tuple[float, float, float]  # radians a unit of the pattern: to the right, down, and outwards

    def radius(self, angle: np.ndarray) -> np.ndarray:
        """Returns the outline's radius by angle, at most 1."""
        return 1 - self.depth * (0.5 - 0.5 * np.cos(self.lobes * angle))

    def extent(self, turn: float) -> tuple[float, float, float, float]:
        """Returns left, top, width and height of the turned outline."""
        shape = self.radius(ANGLES) * np.exp(1j * (ANGLES + turn))
        return shape.real.min(), shape.imag.min(), np.ptp(shape.real), np.ptp(shape.imag)


CLASSES = {
    "n01440764": Look("tench, Tinca tinca", 2, 0.6, (16, 16, 0)),
    "n01944390": Look("snail", 1, 0.5, (0, 0, 10)),
    "n02165456": Look("ladybug, ladybeetle, lady beetle, ladybird, ladybird beetle", 7, 0.2, (7, 8, 0)),
    "n02279972": Look("monarch, monarch butterfly, milkweed butterfly, Danaus plexippus", 4, 0.6, (0, 16, 0)),
    "n02327028": Look("starfish, sea star", 5, 0.7, (16, 16, 0)),
    "n02782093": Look("balloon", 3, 0.3, (10, 0, 0)),
    "n04192698": Look("shield, buckler", 0, 0.0, (0, 0, 16)),
    "n11939491": Look("daisy", 11, 0.5, (0, 0, 5)),
}


def plan(seed: int, split: str, index: int, scale: float = 1.0) -> ImagePlan:
    """Draws the content of image `index` (from 0) of a split; `scale` multiplies its width and height."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    wnid = [*CLASSES][(index + index // 8 * 3) % 8]  # every 8 images hold each class once, in varying order
    sides = np.array(COMMON_SIZES[rng.choice(5, p=(0.46, 0.18, 0.18, 0.09, 0.09))])
    if rng.random() < 0.25:
        sides = sides * (0.15 * 32 ** rng.beta(2, 2.6))  # up to 2400 pixels
    width, height = (max(16, round(side * scale)) for side in sides)
    annotated, gray = split == "val" or bool(rng.random() < ANNOTATED), bool(rng.random() < GRAY)
    count = int(rng.choice((1, 2, 3), p=(0.75, 0.17, 0.08))) if annotated else 1
    low, column = (0.6 if annotated else 0.76), width / count
    things = []
    for number in range(count):  # next to each other
        turn = float(rng.uniform(-0.6, 0.6))
        _, _, across, down = CLASSES[wnid].extent(turn)
        unit = rng.uniform(low, 0.94) * min(column / across, height / down)  # pixels
        w, h = max(4, round(across * unit)), max(4, round(down * unit))
        # The mean of two uniforms: photographers centre objects.
        x, y = rng.random((2, 2)).mean(0)
        left, top = round(number * column + x * (column - w)), round(y * (height - h))
        things.append(Thing((left, top, left + w, top + h), turn))
    name = f"{wnid}/{wnid}_{index}" if split == "train" else f"ILSVRC2012_val_{index + 1:08d}"
    return ImagePlan(f"{split}/{name}", wnid, width, height, gray, annotated, tuple(things))


def render(seed: int, split: str, index: int, image: ImagePlan) -> bytes:
    """Draws a planned image and returns the JPEG file's bytes."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index, 1])
    picture = _background(rng, (image.width, image.height))
    for thing in image.things:
        color, alpha = _object(rng, CLASSES[image.wnid], thing)
        left, top, right, bottom = thing.box
        region = picture[top:bottom, left:right]
        region += alpha * (color - region)
    picture += NOISE * np.exp(rng.normal(0, 0.5)) * rng.standard_normal((*picture.shape[:2], 1), np.float32)
    final, file = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)), io.BytesIO()
    (final.convert("L") if image.gray else final).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _color(rng: np.random.Generator, value: float) -> np.ndarray:
    return np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.1, 0.9), value), np.float32) * 255


def _background(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Draws clouds between a dark and a bright colour: float32 (height, width, 3)."""
    dark, bright = _color(rng, rng.uniform(0.1, 0.4)), _color(rng, rng.uniform(0.6, 0.9))
    fields = [Image.fromarray(rng.random((cells, cells), np.float32) / cells) for cells in (3, 9, 27)]
    cloud = np.sum([np.asarray(field.resize(size, Image.Resampling.BICUBIC)) for field in fields], 0)
    return dark + 2 * cloud[..., None] * (bright - dark)


def _object(rng: np.random.Generator, look: Look, thing: Thing) -> tuple[np.ndarray, np.ndarray]:
    """Returns colour (height, width, 3) and opacity 0..1 (height, width, 1) of the object, at its box's size."""
    width, height = thing.box[2] - thing.box[0], thing.box[3] - thing.box[1]
    left, top, across, down = look.extent(thing.turn)
    x, y = left + (np.arange(width) + 0.5) / width * across, top + (np.arange(height) + 0.5) / height * down
    place = (x + 1j * y[:, None]) * np.exp(-1j * thing.turn)
    # The edge is a pixel wide.
    alpha = np.clip((look.radius(np.angle(place)) - abs(place)) * width / across + 0.5, 0, 1)
    waves = np.prod([np.cos(k * z) for k, z in zip(look.waves, (place.real, place.imag, abs(place)), strict=True)], 0)
    # The two colours differ clearly in brightness.
    value = rng.uniform(0.5, 0.95)
    main, mate = _color(rng, value), _color(rng, value - 0.4 if value > 0.72 else value + 0.4)
    return main + np.clip(2 * waves + 0.5, 0, 1)[..., None] * (mate - main), alpha[..., None]


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
    workers = usable_cpus() if workers is None else workers
    if images < 8 or val_images < 1 or not 0 < scale <= 4 or seed < 0 or workers < 1:
        raise ConfigError(
            "a sample takes images >= 8, val >= 1, 0 < scale <= 4, seed >= 0 and workers >= 1; given were "
            f"{images}, {val_images}, {scale}, {seed} and {workers}"
        )
    arguments = {"version": VERSION, "images": images, "val": val_images, "scale": scale, "seed": seed}
    finished = _finished_summary(out, arguments)
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


def _finished_summary(out: Path, arguments: dict) -> SampleSummary | None:
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
