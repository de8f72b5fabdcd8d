"""Draws the sample images as stylised photographs, and compresses them to a planned size."""

import colorsys
import io

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from tfpipe.tools.sample.plan import SPLITS, WNIDS, Array, ImagePlan, Thing, outline

TEXTURE_SIDE = 288  # pixels; larger objects are textured at this size and enlarged
RAMPS = (  # of natural surfaces, dark to light: meadow, leaves, sea, sand, stone, wood, dusk, lichen
    "1d2a14 3f5a26 7d9447 c9cf94, 2a1a10 6b4423 a9743c dcb98a, 14263a 2f5d7c 6fa3b5 cfe3e2,"
    "57432f 96784f c6a97a eadcb8, 23252a 55585c 8d8f8e cbcac4, 2b1d1a 5d3b30 94654b cda583,"
    "1c1f2e 4a4a68 93829a dcc3b8, 22301f 51684a 8ea07f d5dcc8"
)
PALETTES = np.array([[list(bytes.fromhex(c)) for c in ramp.split()] for ramp in RAMPS.split(",")], np.float32)


def render(seed: int, split: str, index: int, image: ImagePlan) -> bytes:
    """Draws a planned image and returns the JPEG file's bytes, about as many as planned."""
    rng = np.random.default_rng([seed, SPLITS.index(split), index, 1])
    size = (image.width, image.height)
    light = -np.exp(1j * rng.uniform(0.2, np.pi - 0.2))  # towards the light, from above
    fading = rng.uniform(0.05, 0.25)
    picture = _background(rng, size)
    # Target bytes per pixel; detail and noise scale with it, otherwise no JPEG quality would reach it.
    density = image.bytes / (image.width * image.height)
    picture *= 1 + 0.18 * density * _cloud(rng, size, rng.uniform(0, 0.3))[..., None]
    objects = [(thing.box, *_object(rng, image.wnid, thing, light)) for thing in image.things]
    shadow = Image.new("L", [max(8, side // 4) for side in size])  # soft, so a quarter of the size suffices
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

    # log(size) is almost linear in the log of the quantisation step, which is ~ 101 - quality.
    coarse, fine = np.log(len(encoded(78))), np.log(len(encoded(94)))
    position = (np.log(target) - coarse) / max(fine - coarse, 1e-3)
    return encoded(np.clip(101 - 23 * (7 / 23) ** position, 75, 98))


def _step(value: Array, width: float = 0.05) -> Array:
    return np.clip(value / width + 0.5, 0, 1)


def _surface(wnid: str, x: Array, y: Array, depth: Array, variant: int) -> tuple[Array, Array]:
    """Returns the weights (0..1) of the object's second and dark colour at x, y of the unposed outline.

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
            return shell * _step(np.cos(turns * 2 * np.pi), 1.2), shell * _step(np.sin(turns * 2 * np.pi) - 0.9, 0.2)
        case 2:  # spots, the seam of the wings, a dark head with white cheeks
            spots = ((-0.25, 0.28), (0.08, 0.52), (0.2, 0.22), (0.5, 0.33), (-0.5, 0))
            dark = [_step(0.13 + 0.02 * variant - np.hypot(x - u, abs(y) - v)) for u, v in spots]
            head = 1 - _step(0.79 - r) * _step(x + 0.58)
            cheeks = _step(0.13 - np.hypot(x + 0.72, abs(y) - 0.3))
            return cheeks, np.max([*dark, head, _step(0.02 - abs(y))], axis=0) * (1 - cheeks)
        case 3:  # veins, a dark margin with light dots, the body
            angle = np.arctan2(y + 0.05, abs(x))
            dots = _step(np.cos(angle * 24), 0.5) * _step(0.05 - abs(depth - 0.62))
            veins = _step(0.025 - r * abs(np.sin(angle * (5 + variant % 2) + 0.4)) / 6, 0.03)
            return dots, np.max([veins, _step(0.76 - depth, 0.1), _step(0.06 - abs(x))], axis=0) * (1 - dots)
        case 4:  # bumps, a ridge along each arm
            bumps = _step(np.cos((16 + 2 * variant) * x) * np.cos((16 + 2 * variant) * y) - 0.3, 0.4)
            return np.maximum(bumps, _step(0.05 - r * abs(np.sin(angle * 2.5)))), 0.4 * _step(0.6 - depth, 0.2)
        case 5:  # gores, the woven basket
            half = np.where(y < 0.1, np.sqrt(np.maximum(0.57 - (y + 0.25) ** 2, 0.01)), 0.65 - (y - 0.1) * 1.05)
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
    """Returns an antialiased mask; `points` are complex, 0..1 of the mask's width and height."""
    mask = Image.new("L", (size[0] * finer, size[1] * finer))
    xy = np.stack([points.real * mask.width, points.imag * mask.height], 1) - 0.5
    ImageDraw.Draw(mask).polygon(xy.ravel().tolist(), fill=255)
    return mask.reduce(finer)


def _resized(values: Array, size: tuple[int, int]) -> Array:
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC), np.float32)


def _cloud(rng: np.random.Generator, size: tuple[int, int], roughness: float) -> Array:
    """Returns noise of amplitude ~ 1 / frequency**roughness, mean 0 and deviation 1, float32 (height, width)."""
    octaves = max(1, max(size).bit_length() - 2)
    field = np.zeros((2, 2), np.float32)
    for k in range(octaves, -1, -1):
        step = (max(2, size[0] >> k), max(2, size[1] >> k))
        field = _resized(field, step) + 2 ** (roughness * (k - octaves)) * rng.standard_normal(step[::-1], np.float32)
    return (field - field.mean()) / (field.std() + 1e-6)


def _background(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Draws a landscape, a surface or a blurred scene with lights: float32 (height, width, 3), 0..255."""
    half = (max(8, size[0] // 2), max(8, size[1] // 2))
    steps = np.linspace(0, 3, 256)
    ramps = [
        np.stack([np.interp(steps, range(4), p[:, c]) for c in range(3)], 1)
        for p in (PALETTES[rng.choice(len(PALETTES))], PALETTES[rng.choice([2, 2, 3, 4, 6])])
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
    """Returns colour (height, width, 3) and opacity 0..1 (height, width, 1) of the object, at its box's size."""
    size = (thing.box[2] - thing.box[0], thing.box[3] - thing.box[1])
    shape = outline(wnid, thing)
    low = complex(shape.real.min(), shape.imag.min())
    span = complex(np.ptp(shape.real), np.ptp(shape.imag))
    points = (shape.real - low.real) / span.real + 1j * (shape.imag - low.imag) / span.imag
    alpha = np.asarray(_polygon(points, size, 3 if max(size) < 400 else 2), np.float32)[..., None] / 255
    # The blurred silhouette serves as height: its slope against the light shades the object.
    mask = _polygon(points * 0.8 + 0.1 + 0.1j, (120, 120), 2)
    blurred = [np.asarray(mask.filter(ImageFilter.GaussianBlur(b)), np.float32) for b in (3, 7, 14)]
    height = (blurred[0] + blurred[1] + blurred[2]) / 765
    slope_y, slope_x = np.asarray(np.gradient(height))
    shade = (slope_x * light.real + slope_y * light.imag) * -9
    fine = min(1.0, TEXTURE_SIDE / max(size))
    grid = (max(4, round(size[0] * fine)), max(4, round(size[1] * fine)))
    depth, shade = (_resized(np.ascontiguousarray(m[12:108, 12:108]), grid)[..., None] for m in (height, shade))
    u, v = (((np.arange(n) + 0.5) / n).astype(np.float32) for n in grid)
    posed_x, posed_y = (u * span.real + low.real)[None], (v * span.imag + low.imag)[:, None]
    cos, sin = np.cos(thing.turn), np.sin(thing.turn)
    x, y = (posed_x * cos + posed_y * sin) / thing.stretch, posed_y * cos - posed_x * sin
    second, dark = _surface(wnid, x.astype(np.float32), y.astype(np.float32), depth[..., 0], thing.variant)
    # Hues are independent of the class, so that colour reveals nothing; the two colours differ clearly in brightness.
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
