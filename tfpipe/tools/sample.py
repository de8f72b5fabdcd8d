"""Writes a synthetic data set in the layout of ILSVRC2012 CLS-LOC: drawn like photographs, eight classes.

What an image holds (`plan`) is drawn apart from how it looks (`render`), both from generators seeded with
(seed, split, index) alone, so the bytes do not depend on the number of workers.
"""

import colorsys
import io
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from tfpipe.errors import ConfigError
from tfpipe.progress import progress

Array = np.ndarray
VERSION = 1  # of the pictures: raise it when the same arguments give other bytes
MARKER, PARTIAL = "sample.json", "sample.json.partial"  # the second until all is written
SPLITS = ("train", "val")
CLASSES = {  # WNID: names as in LOC_synset_mapping.txt and greatest turn (radians, either way)
    "n01440764": ("tench, Tinca tinca", 0.6),
    "n01944390": ("snail", 0.5),
    "n02165456": ("ladybug, ladybeetle, lady beetle, ladybird, ladybird beetle", 0.9),
    "n02279972": ("monarch, monarch butterfly, milkweed butterfly, Danaus plexippus", 0.8),
    "n02327028": ("starfish, sea star", 3.1),
    "n02782093": ("balloon", 0.3),
    "n04192698": ("shield, buckler", 3.1),
    "n11939491": ("daisy", 3.1),
}
WNIDS = tuple(CLASSES)
ANNOTATED = 0.425  # of the train images: 544 546 of ILSVRC2012's 1 281 167
GRAY = 0.02
COMMON_SIZES = ((500, 375), (375, 500), (500, 333), (333, 500), (500, 500))  # pixels, as in ILSVRC2012
BYTES_PER_PIXEL = 0.62  # median: 116 KB for 500 x 375
TEXTURE_SIDE = 288  # pixels; larger objects are textured at this size and enlarged
RAMPS = (  # of natural surfaces, dark to light: meadow, leaves, sea, sand, stone, wood, dusk, lichen
    "1d2a14 3f5a26 7d9447 c9cf94, 2a1a10 6b4423 a9743c dcb98a, 14263a 2f5d7c 6fa3b5 cfe3e2,"
    "57432f 96784f c6a97a eadcb8, 23252a 55585c 8d8f8e cbcac4, 2b1d1a 5d3b30 94654b cda583,"
    "1c1f2e 4a4a68 93829a dcc3b8, 22301f 51684a 8ea07f d5dcc8"
)
PALETTES = np.array([[list(bytes.fromhex(c)) for c in ramp.split()] for ramp in RAMPS.split(",")], np.float32)


class Thing(NamedTuple):
    """One object: its tight box in pixel edges (0 <= xmin < xmax <= width) and its pose (turn in radians)."""

    box: tuple[int, int, int, int]
    turn: float
    stretch: float
    variant: int


class ImagePlan(NamedTuple):
    """What one image holds; `stem` is its path without suffix, `bytes` the file size aimed at."""

    stem: str
    wnid: str
    width: int
    height: int
    gray: bool
    annotated: bool
    things: tuple[Thing, ...]
    bytes: int


class SampleSummary(NamedTuple):
    """What a data set holds; `bytes` is that of its JPEG files."""

    train_images: int
    val_images: int
    classes: int
    annotated_train_images: int
    train_boxes: int
    val_boxes: int
    bytes: int


def plan(seed: int, split: str, index: int, scale: float = 1.0) -> ImagePlan:
    """Draws what image `index` (from 0) of a split holds; `scale` multiplies its width and height."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    wnid = WNIDS[
        (index + index // 8 * 3) % len(WNIDS)
    ]  # every 8 images hold each class once, not always in one order
    width, height = (max(16, round(side * scale)) for side in _draw_size(rng))
    annotated = split == "val" or bool(rng.random() < ANNOTATED)
    count = int(rng.choice((1, 2, 3), p=(0.75, 0.17, 0.08))) if annotated else 1
    low, high = (0.76, 0.94) if not annotated else ((0.6, 0.94), (0.4, 0.52), (0.32, 0.42))[count - 1]
    things: list[Thing] = []
    for _ in range(count * 12):  # tries; what finds no free place is left out
        if len(things) == count:
            break
        turn, stretch = rng.uniform(-1, 1) * CLASSES[wnid][1], rng.uniform(0.85, 1.18)
        thing = Thing((0, 0, 0, 0), turn, stretch, int(rng.integers(4)))
        corners = _outline(wnid, thing)
        across, down = np.ptp(corners.real), np.ptp(corners.imag)
        unit = rng.uniform(low, high) * min(width / across, height / down)  # pixels
        w, h = max(4, round(across * unit)), max(4, round(down * unit))
        # The mean of two uniforms: photographers centre one object, but not several.
        where = rng.random((2, 2)).mean(0) if count == 1 else rng.random(2)
        left, top = round((width - w) * where[0]), round((height - h) * where[1])
        thing = thing._replace(box=(left, top, left + w, top + h))
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


def _outline(wnid: str, thing: Thing) -> Array:
    """The silhouette as a closed polygon of complex x + iy within about -1..1, y down, posed."""
    angle = np.linspace(-np.pi, np.pi, 360, endpoint=False)
    radius, points = np.ones(360), ""
    match WNIDS.index(wnid):
        case 0:  # nose, dorsal fin, tail, anal fin, belly
            points = (
                "-1+.02j -.75-.24j -.4-.4j -.2-.42j -.05-.68j .3-.56j .3-.3j .62-.13j 1-.5j 1.04-.4j .86 "
            )
            points += "1.04+.4j 1+.5j .62+.13j .36+.28j .34+.55j .1+.42j -.1+.4j -.5+.4j -.8+.24j"
        case 1:  # foot, head, horn, shell, tail
            points = "-.9+.62j -1.05+.4j -1.02+.12j -1.1-.28j -.96-.28j -.86+.08j -.6+.25j -.56-.1j -.45-.5j "
            points += "-.12-.78j .36-.78j .69-.5j .8-.1j .7+.3j 1.2+.62j .9+.66j"
        case 2:  # head and six legs
            radius = 0.8 + 0.26 * np.exp(-(((np.pi - abs(angle)) / 0.36) ** 4))
            radius += sum(0.24 * np.exp(-(((abs(angle) - leg) / 0.07) ** 2)) for leg in (0.85, 1.5, 2.2))
        case 3:  # the right half of the wings
            points = ".04-.42j .1-.3j .4-.75j .85-.95j 1.05-.75j .95-.3j .6+.02j .85+.25j .75+.7j "
            points += ".4+.8j .12+.3j .05+.6j"
        case 4:
            radius = 0.45 + 0.55 * (0.5 + 0.5 * np.cos(angle * 5)) ** 1.6
        case 5:  # the right half of the envelope and the basket
            points = ".1-1j .4-.93j .66-.7j .77-.35j .7+.05j .22+.55j .11+.67j .19+.7j .19+1j .1+1.02j"
        case 7:
            radius = 0.58 + 0.42 * abs(np.cos(angle * (9 + 2 * thing.variant) / 2)) ** 0.7
    outline = np.array(points.split(), complex) if points else radius * np.exp(1j * angle)
    if wnid in (WNIDS[3], WNIDS[5]):
        outline = np.concatenate([outline, -outline[::-1].conjugate()])
    for _ in range(3 if points else 0):  # Chaikin's corner cutting
        after = np.roll(outline, -1)
        outline = np.stack([0.75 * outline + 0.25 * after, 0.25 * outline + 0.75 * after], 1).ravel()
    return (outline.real * thing.stretch + 1j * outline.imag) * np.exp(1j * thing.turn)


def _step(value: Array, width: float = 0.05) -> Array:
    return np.clip(value / width + 0.5, 0, 1)


def _surface(wnid: str, x: Array, y: Array, depth: Array, variant: int) -> tuple[Array, Array]:
    """The weights (0..1) of the object's second and of its dark colour at x, y of the unposed outline.

    `depth` is about 0.4 on the outline and 1 well inside.
    """
    r, angle = np.hypot(x, y), np.arctan2(y, x)
    match WNIDS.index(wnid):
        case 0:  # scales on the body, rays on the fins, eye and gill
            row = np.floor(y * 9)
            scales = _step(0.6 - np.hypot(np.mod(x * 7 + row % 2 / 2, 1) - 0.7, y * 9 - row - 0.5), 0.15)
            body = _step(0.4 - 0.35 * x * x - abs(y)) * _step(0.62 - x)
            rays = 0.6 + 0.4 * _step(np.sin(np.arctan2(y, x - 0.3) * 26), 1.0)
            gill = _step(0.02 - abs(np.hypot(x + 0.95, y) - 0.42)) * body
            return body * scales * _step(x + 0.53) + (1 - body) * rays, np.maximum(
                gill, _step(0.08 - np.hypot(x + 0.78, y + 0.07))
            )
        case 1:  # a spiral on the shell
            r = np.hypot(x - 0.12, y + 0.12)
            turns = np.log(r + 0.03) * (1.4 + 0.2 * variant) - np.arctan2(y + 0.12, x - 0.12) / (2 * np.pi)
            shell = _step(0.64 - r)
            return shell * _step(np.cos(turns * 2 * np.pi), 1.2), shell * _step(
                np.sin(turns * 2 * np.pi) - 0.9, 0.2
            )
        case 2:  # spots, the seam of the wings, a dark head with white cheeks
            spots = ((-0.25, 0.28), (0.08, 0.52), (0.2, 0.22), (0.5, 0.33), (-0.5, 0))
            dark = [_step(0.13 + 0.02 * variant - np.hypot(x - u, abs(y) - v)) for u, v in spots]
            head = 1 - _step(0.79 - r) * _step(x + 0.58)
            cheeks = _step(0.13 - np.hypot(x + 0.72, abs(y) - 0.3))
            return cheeks, np.maximum.reduce([*dark, head, _step(0.02 - abs(y))]) * (1 - cheeks)
        case 3:  # veins, a dark margin with light dots, the body
            angle = np.arctan2(y + 0.05, abs(x))
            dots = _step(np.cos(angle * 24), 0.5) * _step(0.05 - abs(depth - 0.62))
            veins = _step(0.025 - r * abs(np.sin(angle * (5 + variant % 2) + 0.4)) / 6, 0.03)
            return dots, np.maximum.reduce([veins, _step(0.76 - depth, 0.1), _step(0.06 - abs(x))]) * (
                1 - dots
            )
        case 4:  # bumps, a ridge along each arm
            bumps = _step(np.cos((16 + 2 * variant) * x) * np.cos((16 + 2 * variant) * y) - 0.3, 0.4)
            return np.maximum(bumps, _step(0.05 - r * abs(np.sin(angle * 2.5)))), 0.4 * _step(
                0.6 - depth, 0.2
            )
        case 5:  # gores, the woven basket
            half = np.where(
                y < 0.1, np.sqrt(np.maximum(0.57 - (y + 0.25) ** 2, 0.01)), 0.65 - (y - 0.1) * 1.05
            )
            gores = np.sin(np.arcsin(np.clip(x / np.maximum(half, 0.1), -1, 1)) * (4 + variant) + 0.3)
            return _step(gores, 0.25) * _step(0.66 - y), _step(y - 0.66) * (
                0.8 + 0.2 * np.sign(np.sin(x * 50) * np.sin(y * 50))
            )
        case 6:  # rings, rivets, a boss
            rings = _step(np.cos(r * (14 + 2 * variant)), 0.3) * _step(r - 0.22)
            rivets = _step(0.045 - np.hypot(r - 0.9, (np.mod(angle * 8 / np.pi, 1) - 0.5) * 0.35))
            return rings, np.maximum(rivets, 0.7 * _step(0.02 - abs(r - 0.22)))
    disk, petals = _step(0.34 - r), 9 + 2 * variant  # a disk of florets, dark gaps between the petals
    gaps = _step(0.12 - r * abs(np.cos(angle * petals / 2)), 0.15) * (1 - disk)
    florets = 0.55 + 0.45 * _step(np.sin(r * 70) * np.sin(angle * 14), 0.8)
    return disk * florets, 0.85 * np.maximum(gaps, _step(0.03 - abs(r - 0.35)))


def _polygon(points: Array, size: tuple[int, int], finer: int) -> Image.Image:
    """An antialiased mask; `points` are complex, 0..1 of the mask's width and height."""
    mask = Image.new("L", (size[0] * finer, size[1] * finer))
    xy = np.stack([points.real * mask.width, points.imag * mask.height], 1) - 0.5
    ImageDraw.Draw(mask).polygon(xy.ravel().tolist(), fill=255)
    return mask.reduce(finer)


def _resized(values: Array, size: tuple[int, int]) -> Array:
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC), np.float32)


def _cloud(rng: np.random.Generator, size: tuple[int, int], roughness: float) -> Array:
    """Noise of amplitude ~ 1 / frequency**roughness with mean 0 and deviation 1, float32 (height, width)."""
    octaves = max(1, max(size).bit_length() - 2)
    field = np.zeros((2, 2), np.float32)
    for k in range(octaves, -1, -1):
        step = (max(2, size[0] >> k), max(2, size[1] >> k))
        field = _resized(field, step) + 2 ** (roughness * (k - octaves)) * rng.standard_normal(
            step[::-1], np.float32
        )
    return (field - field.mean()) / (field.std() + 1e-6)


def _background(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """A landscape, a surface or an unsharp scene with lights: float32 (height, width, 3), 0..255."""
    half = (max(8, size[0] // 2), max(8, size[1] // 2))
    steps = np.linspace(0, 3, 256)
    ramps = [
        np.stack([np.interp(steps, range(4), p[:, c]) for c in range(3)], 1)
        for p in (rng.choice(PALETTES), rng.choice(PALETTES[[2, 2, 3, 4, 6]]))
    ]
    cloud = _cloud(rng, half, rng.uniform(0.6, 1.1))
    scene = ramps[0][np.clip(cloud * 30 + rng.uniform(70, 170), 0, 255).astype(np.uint8)]
    kind = rng.random()
    if kind < 0.4:
        horizon = half[1] * rng.uniform(0.25, 0.55) + half[1] * 0.02 * cloud[half[1] // 2]
        far = ramps[1][np.clip(_cloud(rng, half, 1.5) * 14 + 205, 0, 255).astype(np.uint8)]
        sky = _step(horizon - np.arange(half[1])[:, None], 3.0)[..., None]
        scene = scene + sky * (far - scene)
    picture = Image.fromarray(scene.astype(np.uint8))
    if kind > 0.7:
        lights = Image.new("L", half)
        for _ in range(rng.integers(8, 25)):
            (x, y), radius = rng.uniform(0, half), max(half) * rng.uniform(0.02, 0.07)
            circle = (x - radius, y - radius, x + radius, y + radius)
            ImageDraw.Draw(lights).ellipse(circle, int(rng.integers(20, 90)))
        picture = picture.filter(ImageFilter.GaussianBlur(max(half) / 60))
        warm = tuple(int(c) for c in ramps[0][240])
        picture.paste(warm, mask=lights.filter(ImageFilter.GaussianBlur(max(half) / 200)))
    return np.array(picture.resize(size, Image.Resampling.BICUBIC), np.float32)


def _object(rng: np.random.Generator, wnid: str, thing: Thing, light: complex) -> tuple[Array, Array]:
    """Colour (height, width, 3) and opacity 0..1 (height, width, 1) of the object, at the size of its box."""
    size = (thing.box[2] - thing.box[0], thing.box[3] - thing.box[1])
    outline = _outline(wnid, thing)
    low = complex(outline.real.min(), outline.imag.min())
    span = complex(np.ptp(outline.real), np.ptp(outline.imag))
    points = (outline.real - low.real) / span.real + 1j * (outline.imag - low.imag) / span.imag
    alpha = np.asarray(_polygon(points, size, 3 if max(size) < 400 else 2), np.float32)[..., None] / 255
    # The blurred silhouette serves as height: its slope against the light shades the object.
    mask = _polygon(points * 0.8 + 0.1 + 0.1j, (120, 120), 2)
    height = sum(np.asarray(mask.filter(ImageFilter.GaussianBlur(b)), np.float32) for b in (3, 7, 14)) / 765
    slope_y, slope_x = np.gradient(height)
    shade = (slope_x * light.real + slope_y * light.imag) * -9
    fine = min(1.0, TEXTURE_SIDE / max(size))
    grid = (max(4, round(size[0] * fine)), max(4, round(size[1] * fine)))
    depth, shade = (
        _resized(np.ascontiguousarray(m[12:108, 12:108]), grid)[..., None] for m in (height, shade)
    )
    u, v = (((np.arange(n) + 0.5) / n).astype(np.float32) for n in grid)
    posed_x, posed_y = (u * span.real + low.real)[None], (v * span.imag + low.imag)[:, None]
    cos, sin = np.cos(thing.turn), np.sin(thing.turn)
    x, y = (posed_x * cos + posed_y * sin) / thing.stretch, posed_y * cos - posed_x * sin
    second, dark = _surface(wnid, x.astype(np.float32), y.astype(np.float32), depth[..., 0], thing.variant)
    # Any hue for any class, so that colour tells nothing; the two colours differ clearly in brightness.
    value = rng.uniform(0.5, 0.95)
    other = value - 0.4 if value > 0.72 else value + 0.4
    hsv = (
        (rng.random(), rng.uniform(0.3, 0.9), value),
        (rng.random(), rng.uniform(0.1, 0.7), other),
        (rng.random(), 0.4, 0.13),
    )
    main, mate, black = (np.array(colorsys.hsv_to_rgb(*c), np.float32) * 255 for c in hsv)
    color = main + second[..., None] * (mate - main)
    color += dark[..., None] * (black - color)
    grain = 1 + 0.06 * _cloud(rng, grid, 0.7)[..., None]
    color = color * (0.72 + 0.3 * depth + shade) * grain + 420 * np.clip(shade - 0.16, 0, 0.2)
    return _resized(np.clip(color, 0, 255).astype(np.uint8), size), alpha


def render(seed: int, split: str, index: int, image: ImagePlan) -> bytes:
    """Draws a planned image and compresses it to about the planned size: the bytes of the JPEG file."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index, 1])
    size = (image.width, image.height)
    light = -np.exp(1j * rng.uniform(0.2, np.pi - 0.2))  # towards the light, from above
    fading = rng.uniform(0.05, 0.25)
    picture = _background(rng, size)
    # Bytes per pixel aimed at: detail and noise follow it, or no JPEG quality would reach it.
    density = image.bytes / (image.width * image.height)
    picture *= 1 + 0.18 * density * _cloud(rng, size, rng.uniform(0, 0.3))[..., None]
    objects = [(thing.box, *_object(rng, image.wnid, thing, light)) for thing in image.things]
    shadow = Image.new("L", [max(8, side // 4) for side in size])  # soft: a quarter of the size will do
    for (left, top, right, bottom), _, alpha in objects:
        away = light * (right - left) * -0.06
        part = Image.fromarray((alpha[..., 0] * 150).astype(np.uint8))
        part = part.resize(((right - left) // 4 + 1, (bottom - top) // 4 + 1))
        shadow.paste(part, (int(left + away.real) // 4, int(top + away.imag) // 4), part)
    shadow = shadow.filter(ImageFilter.GaussianBlur(max(shadow.size) / 40))
    picture *= (1 - _resized(np.asarray(shadow), size) / 255)[..., None]
    for (left, top, right, bottom), color, alpha in objects:
        region = picture[top:bottom, left:right]
        region += alpha * (color - region)
    x, y = (np.linspace(-1, 1, side, dtype=np.float32) for side in size)
    picture *= 1 + fading * (light.real * x[None, :, None] + light.imag * y[:, None, None])
    picture += (1 + 12 * density) * rng.standard_normal((*size[::-1], 1), np.float32)
    final = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    return _compressed(final.convert("L") if image.gray else final, image.bytes)


def _compressed(picture: Image.Image, target: int) -> bytes:
    def encoded(quality: float) -> bytes:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=round(quality))
        return file.getvalue()

    # The logarithm of the size is almost linear in that of the quantisation step, which is ~ 101 - quality.
    coarse, fine = np.log(len(encoded(78))), np.log(len(encoded(94)))
    position = (np.log(target) - coarse) / max(fine - coarse, 1e-3)
    return encoded(np.clip(101 - 23 * (7 / 23) ** position, 75, 98))


def _annotation(image: ImagePlan) -> str:
    folder = image.wnid if image.stem.startswith("train") else "val"
    head = (
        f"<annotation>\n\t<folder>{folder}</folder>\n\t<filename>{Path(image.stem).name}</filename>\n"
        "\t<source>\n\t\t<database>ImageNet database</database>\n\t</source>\n"
        f"\t<size>\n\t\t<width>{image.width}</width>\n\t\t<height>{image.height}</height>\n"
        f"\t\t<depth>{1 if image.gray else 3}</depth>\n\t</size>\n\t<segmented>0</segmented>\n"
    )
    for thing in image.things:
        edges = zip(("xmin", "ymin", "xmax", "ymax"), thing.box, strict=True)
        head += (
            f"\t<object>\n\t\t<name>{image.wnid}</name>\n\t\t<pose>Unspecified</pose>\n"
            "\t\t<truncated>0</truncated>\n\t\t<difficult>0</difficult>\n\t\t<bndbox>\n"
            + "".join(f"\t\t\t<{edge}>{value}</{edge}>\n" for edge, value in edges)
            + "\t\t</bndbox>\n\t</object>\n"
        )
    return head + "</annotation>\n"


def _write_image(out: Path, seed: int, scale: float, item: tuple[str, int]) -> tuple[ImagePlan, int]:
    image = plan(seed, *item, scale)
    data = render(seed, *item, image)
    (out / f"Data/CLS-LOC/{image.stem}.JPEG").write_bytes(data)
    if image.annotated:
        (out / f"Annotations/CLS-LOC/{image.stem}.xml").write_text(_annotation(image))
    return image, len(data)


def write_sample(
    out: Path,
    images: int,
    val_images: int | None = None,
    scale: float = 1.0,
    seed: int = 0,
    workers: int | None = None,
) -> SampleSummary:
    """Writes a data set below `out`, unless it is there already: then the call costs nothing.

    Args:
        images: train images, at least 8.
        val_images: validation images, at least 1; by default a fifth of `images`, at least 8.
        scale: multiplies the widths and heights, 0 < scale <= 4.
        seed: at least 0; another seed gives other pictures.
        workers: processes; one per core this process may use when not given.

    Raises:
        ConfigError: an argument is out of range, or `out` holds other files or a set of other arguments.
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
    out.mkdir(parents=True, exist_ok=True)
    (out / PARTIAL).write_text(json.dumps({"arguments": arguments}))
    for folder in ("Data", "Annotations"):
        for part in ("val", *(f"train/{wnid}" for wnid in WNIDS)):
            (out / folder / "CLS-LOC" / part).mkdir(parents=True, exist_ok=True)
    items = [("train", k) for k in range(images)] + [("val", k) for k in range(val_images)]
    annotated, boxes, size, val = 0, 0, 0, []
    with ExitStack() as stack:
        run: Callable = map
        if workers > 1:  # spawned, since a fork of a process that runs TensorFlow's threads can hang
            pool = stack.enter_context(ProcessPoolExecutor(workers, get_context("spawn")))
            run = partial(pool.map, chunksize=max(1, min(32, len(items) // (4 * workers))))
        written = run(partial(_write_image, out, seed, scale), items)
        for image, image_size in progress(written, len(items), "writing sample images", "image"):
            size += image_size
            if image.stem.startswith("val/"):
                val.append(image)
            elif image.annotated:
                annotated, boxes = annotated + 1, boxes + len(image.things)
    _write_labels(out, val)
    val_boxes = sum(len(image.things) for image in val)
    summary = SampleSummary(images, val_images, len(CLASSES), annotated, boxes, val_boxes, size)
    text = json.dumps({"arguments": arguments, "summary": summary._asdict()}, indent=1)
    (out / PARTIAL).write_text(text + "\n")
    os.replace(out / PARTIAL, out / MARKER)
    return summary


def _finished(out: Path, arguments: dict) -> SampleSummary | None:
    """The summary of a finished data set of these arguments, None where one can be written."""
    found = next((out / name for name in (MARKER, PARTIAL) if (out / name).is_file()), None)
    if found is None:
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise ConfigError(
                f"{out} is or holds what tfpipe sample did not write: give a new or empty folder"
            )
        return None
    try:
        content = json.loads(found.read_text())
        was = content["arguments"]
        summary = SampleSummary(**content["summary"]) if found.name == MARKER else None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{found} cannot be read ({error!r}): delete {out} or give another folder"
        ) from error
    if was != arguments:
        raise ConfigError(
            f"{out} holds a sample of other arguments: it has {was}, asked for is {arguments}. "
            "Ask for the same again, delete that folder, or give another one"
        )
    return summary  # None for one begun and not finished: it is written again, to the same bytes


def _write_labels(out: Path, val: list[ImagePlan]) -> None:
    rows = ["ImageId,PredictionString"]
    for image in val:  # with a space after each box, the last one's too, as in Kaggle's file
        boxes = "".join("{} {} {} {} {} ".format(image.wnid, *thing.box) for thing in image.things)
        rows.append(f"{Path(image.stem).name},{boxes}")
    names = [f"{wnid} {names}" for wnid, (names, _) in CLASSES.items()]
    for file, lines in (
        ("LOC_val_solution.csv", rows),
        ("LOC_synset_mapping.txt", names),
        ("imagenet_2012_validation_synset_labels.txt", [image.wnid for image in val]),
    ):
        (out / file).write_text("\n".join(lines) + "\n")
