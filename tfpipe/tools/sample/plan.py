"""Plans of the sample images' content, drawn from generators seeded only with (seed, split, index)."""

from typing import NamedTuple

import numpy as np

Array = np.ndarray
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
ANNOTATED = 0.425  # share of train images: 544 546 of ILSVRC2012's 1 281 167
GRAY = 0.02
COMMON_SIZES = ((500, 375), (375, 500), (500, 333), (333, 500), (500, 500))  # pixels, as in ILSVRC2012
BYTES_PER_PIXEL = 0.62  # median: 116 KB for 500 x 375


class Thing(NamedTuple):
    """One object: its tight box in pixel edges (0 <= xmin < xmax <= width) and its pose (turn in radians)."""

    box: tuple[int, int, int, int]
    turn: float
    stretch: float
    variant: int


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
        turn, stretch = rng.uniform(-1, 1) * CLASSES[wnid][1], rng.uniform(0.85, 1.18)
        thing = Thing((0, 0, 0, 0), turn, stretch, int(rng.integers(4)))
        corners = outline(wnid, thing)
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


def outline(wnid: str, thing: Thing) -> Array:
    """Returns the posed silhouette as a closed polygon of complex x + iy, within about -1..1, y down."""
    angle = np.linspace(-np.pi, np.pi, 360, endpoint=False)
    radius: Array = np.ones(360)
    points = ""
    match WNIDS.index(wnid):
        case 0:  # nose, dorsal fin, tail, anal fin, belly
            points = "-1+.02j -.75-.24j -.4-.4j -.2-.42j -.05-.68j .3-.56j .3-.3j .62-.13j 1-.5j 1.04-.4j .86 "
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
    shape = np.array(points.split(), complex) if points else radius * np.exp(1j * angle)
    if wnid in (WNIDS[3], WNIDS[5]):
        shape = np.concatenate([shape, -shape[::-1].conjugate()])
    for _ in range(3 if points else 0):  # Chaikin's corner cutting
        after = np.roll(shape, -1)
        shape = np.stack([0.75 * shape + 0.25 * after, 0.25 * shape + 0.75 * after], 1).ravel()
    return (shape.real * thing.stretch + 1j * shape.imag) * np.exp(1j * thing.turn)
