"""Plans and draws the sample images: stylised photographs of eight classes.

The generators are seeded only with (seed, split, index). Colour reveals no class: a class is an outline and a pattern.
"""

import colorsys
import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

Array = np.ndarray
SPLITS = ("train", "val")
ANNOTATED = 0.425  # share of train images: 544 546 of ILSVRC2012's 1 281 167
GRAY = 0.02
COMMON_SIZES = ((500, 375), (375, 500), (500, 333), (333, 500), (500, 500))  # pixels, as in ILSVRC2012
BYTES_PER_PIXEL = 0.62  # median: 116 KB for 500 x 375


class Thing(NamedTuple):
    """One object: its tight box in pixel edges (0 <= xmin < xmax <= width) and its pose (turn in radians)."""

    box: tuple[int, int, int, int]
    turn: float
    stretch: float


class ImagePlan(NamedTuple):
    """The content of one image; `stem` is its path without suffix, `bytes` the target file size."""

    stem: str
    wnid: str
    width: int
    height: int
    gray: bool
    annotated: bool
    things: tuple[Thing, ...]
    bytes: int


class Look(NamedTuple):
    """The look of a class's objects, within about -1..1, y down."""

    names: str  # as in LOC_synset_mapping.txt
    turn: float  # greatest turn in radians, either way
    outline: str | Callable[[Array], Array]  # corners, of the right half if all are on it; or the radius by angle
    pattern: Callable[[Array, Array], Array]  # by x and y; above 0 in the second colour


CLASSES = {
    "n01440764": Look(
        "tench, Tinca tinca",
        0.6,
        "-1 -.75-.3j -.4-.42j -.1-.66j .3-.5j .62-.13j 1.04-.5j .86 1.04+.5j .62+.13j .34+.5j -.1+.42j -.75+.3j",
        lambda x, y: np.cos(22 * x) * np.cos(22 * y) + 0.2 * np.sign(x + 0.55),  # scales beyond the gill
    ),
    "n01944390": Look(
        "snail",
        0.5,
        "-.9+.62j -1.05+.3j -1.1-.28j -.9-.2j -.6+.25j -.56-.1j -.4-.55j 0-.78j .4-.75j .72-.45j .75+.2j 1.2+.62j",
        lambda x, y: np.cos(np.arctan2(y + 0.12, x - 0.12) + 12 * np.hypot(x - 0.12, y + 0.12)),  # a spiral
    ),
    "n02165456": Look(
        "ladybug, ladybeetle, lady beetle, ladybird, ladybird beetle",
        0.9,
        lambda angle: 0.76 + 0.24 * np.cos(3.5 * (abs(angle) - 1.5)) ** 8,  # legs
        lambda x, y: np.cos(7 * x) * np.cos(8 * abs(y) - 2) - 0.45,  # spots
    ),
    "n02279972": Look(
        "monarch, monarch butterfly, milkweed butterfly, Danaus plexippus",
        0.8,
        ".04-.42j .4-.78j .85-.95j 1.05-.75j .9-.2j .6+.02j .85+.25j .75+.7j .4+.8j .05+.6j",
        lambda x, y: np.cos(np.arctan2(y + 0.05, abs(x)) * 13) - 0.5,  # veins
    ),
    "n02327028": Look(
        "starfish, sea star",
        3.1,
        lambda angle: 0.4 + 0.6 * (0.5 + 0.5 * np.cos(5 * angle)) ** 1.6,
        lambda x, y: np.cos(17 * x) * np.cos(17 * y) - 0.3,  # bumps
    ),
    "n02782093": Look(
        "balloon",
        0.3,
        ".1-1j .4-.93j .66-.7j .77-.35j .7+.05j .22+.55j .11+.67j .19+.7j .19+1j .1+1.02j",
        lambda x, y: np.sin(10 * x / (1.1 - 0.5 * np.clip(y, -1, 1) ** 2)),  # gores
    ),
    "n04192698": Look(
        "shield, buckler",
        3.1,
        lambda angle: np.ones_like(angle),
        lambda x, y: np.cos(16 * np.hypot(x, y)),  # rings
    ),
    "n11939491": Look(
        "daisy",
        3.1,
        lambda angle: 0.58 + 0.42 * abs(np.cos(5.5 * angle)) ** 0.7,
        lambda x, y: 0.34 - np.hypot(x, y),  # the disk of florets
    ),
}
WNIDS = tuple(CLASSES)


def plan(seed: int, split: str, index: int, scale: float = 1.0) -> ImagePlan:
    """Draws the content of image `index` (from 0) of a split; `scale` multiplies its width and height."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    wnid = WNIDS[(index + index // 8 * 3) % len(WNIDS)]  # every 8 images hold each class once, in varying order
    width, height = (max(16, round(side * scale)) for side in _draw_size(rng))
    annotated = split == "val" or bool(rng.random() < ANNOTATED)
    count = int(rng.choice((1, 2, 3), p=(0.75, 0.17, 0.08))) if annotated else 1
    low, high = (0.76, 0.94) if not annotated else ((0.6, 0.94), (0.4, 0.52), (0.32, 0.42))[count - 1]
    things: list[Thing] = []
    for _ in range(count * 12):  # tries; a thing that finds no free place is left out
        if len(things) == count:
            break
        pose = rng.uniform(-1, 1) * CLASSES[wnid].turn, rng.uniform(0.85, 1.18)
        corners = outline(wnid, Thing((0, 0, 0, 0), *pose))
        across, down = np.ptp(corners.real), np.ptp(corners.imag)
        unit = rng.uniform(low, high) * min(width / across, height / down)  # pixels
        w, h = max(4, round(across * unit)), max(4, round(down * unit))
        # The mean of two uniforms: photographers centre one object, but not several.
        where = rng.random((2, 2)).mean(0) if count == 1 else rng.random(2)
        left, top = round((width - w) * where[0]), round((height - h) * where[1])
        thing = Thing((left, top, left + w, top + h), *pose)
        if all(_overlap(thing.box, other.box) < 0.05 for other in things):
            things.append(thing)
    area = width * height / scale**2
    density = BYTES_PER_PIXEL * np.exp(rng.normal(0, 0.4)) * (area / 187500) ** -0.38
    name = f"{wnid}/{wnid}_{index}" if split == "train" else f"ILSVRC2012_val_{index + 1:08d}"
    size = int(width * height * np.clip(density, 0.15, 1.6))
    gray = bool(rng.random() < GRAY)
    return ImagePlan(f"{split}/{name}", wnid, width, height, gray, annotated, tuple(things), size)


def _draw_size(rng: np.random.Generator) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.56:
        return COMMON_SIZES[rng.choice(5, p=(0.46, 0.18, 0.18, 0.09, 0.09))]
    if kind < 0.82:  # the web's other thumbnails
        long, short = 500, int(rng.integers(300, 480))
    else:
        low, high = (75, 500) if kind < 0.945 else (501, 1280) if kind < 0.993 else (1281, 2400)
        long = int(np.exp(rng.uniform(np.log(low), np.log(high))))
        short = round(long / (1.5 if long > 1280 else rng.choice((1.0, 4 / 3, 1.5))))
    return (long, short) if rng.random() < 0.7 else (short, long)


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0) * max(height, 0) / min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))


def outline(wnid: str, thing: Thing) -> Array:
    """Returns the posed silhouette as a closed polygon of complex x + iy, within about -1..1, y down."""
    drawn, angle = CLASSES[wnid].outline, np.linspace(-np.pi, np.pi, 360, endpoint=False)
    if isinstance(drawn, str):
        shape = np.array(drawn.split(), complex)
        if shape.real.min() > 0:
            shape = np.concatenate([shape, -shape[::-1].conjugate()])
    else:
        shape = drawn(angle) * np.exp(1j * angle)
    return (shape.real * thing.stretch + 1j * shape.imag) * np.exp(1j * thing.turn)


def render(seed: int, split: str, index: int, image: ImagePlan) -> bytes:
    """Draws a planned image and returns the JPEG file's bytes, about as many as planned."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index, 1])
    size = (image.width, image.height)
    picture = _background(rng, size)
    # Target bytes per pixel; detail and noise scale with it, otherwise no JPEG quality would reach it.
    density = image.bytes / (image.width * image.height)
    picture *= 1 + 0.18 * density * _cloud(rng, size, rng.uniform(0, 0.3))[..., None]
    for thing in image.things:
        color, alpha = _object(rng, image.wnid, thing)
        left, top, right, bottom = thing.box
        region = picture[top:bottom, left:right]
        region += alpha * (color - region)
    picture += (1 + 12 * density) * rng.standard_normal((*size[::-1], 1), np.float32)
    final = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    return _compressed(final.convert("L") if image.gray else final, image.bytes)


def _compressed(picture: Image.Image, target: int) -> bytes:
    def encoded(quality: float) -> bytes:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=round(quality))
        return file.getvalue()

    # log(size) is almost linear in the log of the quantisation step, which is ~ 101 - quality.
    coarse, fine = np.log(len(encoded(78))), np.log(len(encoded(94)))
    position = (np.log(target) - coarse) / max(fine - coarse, 1e-3)
    return encoded(np.clip(101 - 23 * (7 / 23) ** position, 75, 98))


def _cloud(rng: np.random.Generator, size: tuple[int, int], roughness: float) -> Array:
    """Returns noise of amplitude ~ 1 / frequency**roughness, mean 0 and deviation 1, float32 (height, width)."""
    octaves = max(1, max(size).bit_length() - 2)
    field = np.zeros((2, 2), np.float32)
    for k in range(octaves, -1, -1):
        step = (max(2, size[0] >> k), max(2, size[1] >> k))
        field = np.asarray(Image.fromarray(field).resize(step, Image.Resampling.BICUBIC))
        field = field + 2 ** (roughness * (k - octaves)) * rng.standard_normal(step[::-1], np.float32)
    return (field - field.mean()) / (field.std() + 1e-6)


def _color(rng: np.random.Generator, value: float) -> Array:
    return np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.1, 0.9), value), np.float32) * 255


def _background(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Draws a cloudy surface, in two of five images below a horizon: float32 (height, width, 3), 0..255."""
    dark, bright = _color(rng, rng.uniform(0.1, 0.4)), _color(rng, rng.uniform(0.6, 0.9))
    cloud = _cloud(rng, size, rng.uniform(0.6, 1.1))[..., None]
    if rng.random() < 0.4:
        horizon = round(size[1] * rng.uniform(0.25, 0.55))
        cloud[:horizon] = 0.2 * cloud[:horizon] + 2
    return np.clip(dark + (0.5 + 0.25 * cloud) * (bright - dark), 0, 255).astype(np.float32)


def _object(rng: np.random.Generator, wnid: str, thing: Thing) -> tuple[Array, Array]:
    """Returns colour (height, width, 3) and opacity 0..1 (height, width, 1) of the object, at its box's size."""
    size = (thing.box[2] - thing.box[0], thing.box[3] - thing.box[1])
    shape = outline(wnid, thing)
    left, top, across, down = shape.real.min(), shape.imag.min(), np.ptp(shape.real), np.ptp(shape.imag)
    finer = 3 if max(size) < 400 else 2  # antialiased
    mask = Image.new("L", (size[0] * finer, size[1] * finer))
    corners = np.stack([(shape.real - left) / across * mask.width, (shape.imag - top) / down * mask.height], 1) - 0.5
    ImageDraw.Draw(mask).polygon(corners.ravel().tolist(), fill=255)
    alpha = np.asarray(mask.reduce(finer), np.float32)[..., None] / 255
    # From the pixels of the box back to the coordinates of the class's unposed outline.
    u, v = ((np.arange(n, dtype=np.float32) + 0.5) / n for n in size)
    posed_x, posed_y = (u * across + left)[None], (v * down + top)[:, None]
    cos, sin = np.cos(thing.turn), np.sin(thing.turn)
    x, y = (posed_x * cos + posed_y * sin) / thing.stretch, posed_y * cos - posed_x * sin
    pattern = np.clip(CLASSES[wnid].pattern(x, y) * 4 + 0.5, 0, 1)[..., None]
    # The two colours differ clearly in brightness; the light comes from above.
    value = rng.uniform(0.5, 0.95)
    main, mate = _color(rng, value), _color(rng, value - 0.4 if value > 0.72 else value + 0.4)
    light = 1 - rng.uniform(0.05, 0.25) * (posed_y + rng.uniform(-1, 1) * posed_x)[..., None]
    grain = 1 + 0.06 * _cloud(rng, size, 0.7)[..., None]
    return np.clip((main + pattern * (mate - main)) * light * grain, 0, 255).astype(np.float32), alpha
