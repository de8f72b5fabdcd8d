"""Operations on crops as Pillow and torchvision compute them, and random ones."""

import random
from collections.abc import Callable
from enum import IntEnum
from statistics import NormalDist

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from tests.support.core import OPERATION, generated_pixels
from tfpipe.data.order.permutation import GAMMA, mix
from tfpipe.native import core

Operation = IntEnum("Operation", list(core().operations.items()))
"""Kinds of OPERATIONs: those of the library's table."""
FACTORS = {
    Operation.BRIGHTNESS: ImageEnhance.Brightness,
    Operation.CONTRAST: ImageEnhance.Contrast,
    Operation.SATURATION: ImageEnhance.Color,
    Operation.SHARPNESS: ImageEnhance.Sharpness,
}
# Kinds that take part of a sequence: tested as one.
MIXES = {Operation.SAVE, Operation.ADD, Operation.LOAD}
SIDES = (1, 2, 3, 9, 40, 40, 40, 120)
# Shares of levels that may differ by one; all others are equal. Torch sums a blur's products in float32, the core has 6
# fractional bits between the directions. Pillow interpolates warps in double, the core in float32: a level that is
# almost a whole number may be truncated to another. The quantiles of the noise have 12 fractional bits.
DIFFER = {Operation.BLUR: 0.01, Operation.WARP: 0.001, Operation.ERASE_NOISE: 0.001}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def operation(
    kind: int, *values: float, seed: int = 0, fill: tuple[int, ...] = (), interpolation: int = 0
) -> np.ndarray:
    made = np.zeros(1, OPERATION)
    made["kind"], made["seed"], made["interpolation"] = kind, seed, interpolation
    made["values"][0, : len(values)] = values
    made["fill"][0, : len(fill)] = fill
    return made


def random_operation(draw: random.Random, kind: int, size: tuple[int, int]) -> np.ndarray:
    """Returns an OPERATION [1] with values that are drawn for a crop of `size` (height, width)."""
    values: tuple[float, ...] = ()
    if kind in FACTORS:
        values = (draw.choice((0, 1, draw.uniform(0, 1), draw.uniform(0, 2), draw.uniform(-3, 20))),)
    elif kind == Operation.POSTERIZE:
        values = (draw.randint(0, 8),)
    elif kind == Operation.SOLARIZE:
        values = (draw.choice((draw.uniform(-1, 257), draw.randint(0, 256))),)
    elif kind == Operation.HUE:
        values = (draw.choice((0, -0.5, 0.5, draw.uniform(-0.5, 0.5))),)
    elif kind == Operation.BLUR:
        width, height = (2 * draw.randrange(min(side, 20)) + 1 for side in size[::-1])
        values = (width, height, *(draw.choice((0.1, draw.uniform(0.1, 2), draw.uniform(0.1, 9))) for _ in range(2)))
    elif kind == Operation.WARP:
        values = _random_map(draw, size)
    elif kind in (Operation.ERASE, Operation.ERASE_NOISE):
        height, width = (draw.randint(0, side) for side in size)
        values = (draw.randint(0, size[0] - height), draw.randint(0, size[1] - width), height, width)
    seed, fill = draw.getrandbits(64), tuple(draw.randrange(256) for _ in range(3))
    return operation(kind, *values, seed=seed, fill=fill, interpolation=draw.randrange(2))


def _random_map(draw: random.Random, size: tuple[int, int]) -> tuple[float, ...]:
    """Returns coefficients of a shift, a scale, whole numbers, a rotation with shear, or a map that leads far away."""
    height, width = size
    shift = draw.uniform(-width, width), draw.uniform(-height, height)
    kind = draw.randrange(6)
    if kind == 0:
        return 1, 0, shift[0], -0.0, 1, round(shift[1])
    if kind == 1:
        return draw.uniform(-2, 2), 0, shift[0], 0, draw.uniform(-2, 2), shift[1]
    if kind == 2:
        return tuple(draw.randint(-2, 2) for _ in range(6))
    if kind == 3:
        return tuple(draw.uniform(-1, 1) * 10 ** draw.uniform(0, 6) for _ in range(6))
    angle = draw.uniform(-np.pi, np.pi)
    a, b, c, d = np.cos(angle), np.sin(angle), -np.sin(angle) + draw.uniform(-0.3, 0.3), np.cos(angle)
    x, y = width / 2, height / 2
    return a, b, x - a * x - b * y + 0.2 * shift[0], c, d, y - c * x - d * y + 0.2 * shift[1]


def random_case(draw: random.Random, kind: Operation) -> tuple[np.ndarray, np.ndarray]:
    """Returns a crop (uint8 [height, width, 1 or 3]), and an OPERATION [1] of the kind."""
    size = draw.choice(SIDES), draw.choice(SIDES)
    pixels = generated_pixels(draw, *size)
    if draw.random() < 0.3:
        pixels = np.ascontiguousarray(pixels[..., :1])
    return pixels, random_operation(draw, kind, size)


def reference(pixels: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Returns what Pillow or torchvision make of a crop (uint8 [height, width, 1 or 3]) by one of OPERATION."""
    kind, values = Operation(one["kind"]), one["values"].tolist()
    if kind in BY_FORMULA:
        return BY_FORMULA[kind](pixels, one)
    image = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
    if kind in FACTORS:
        return _pixels(FACTORS[kind](image).enhance(values[0]))
    return _pixels(BY_PILLOW[kind](image, values[0]))


def _warped(pixels: np.ndarray, one: np.ndarray) -> np.ndarray:
    image = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
    fill = tuple(one["fill"][: pixels.shape[-1]].tolist())
    how = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR)[one["interpolation"]]
    color = fill if len(fill) == 3 else fill[0]
    affine = Image.Transform.AFFINE
    return _pixels(image.transform(image.size, affine, one["values"].tolist(), how, fillcolor=color))


def _erased(pixels: np.ndarray, one: np.ndarray) -> np.ndarray:
    top, left, height, width = map(int, one["values"][:4])
    expected, channels = pixels.copy(), pixels.shape[-1]
    noise = _noise(int(one["seed"]), (height, width, channels))
    rectangle = expected[top : top + height, left : left + width]
    rectangle[:] = one["fill"][:channels] if one["kind"] == Operation.ERASE else noise
    return expected


BY_PILLOW: dict[Operation, Callable[[Image.Image, float], Image.Image]] = {
    Operation.IDENTITY: lambda image, _: image,
    Operation.INVERT: lambda image, _: ImageOps.invert(image),
    # torchvision's tensors take 0 bits, too.
    Operation.POSTERIZE: lambda image, bits: ImageOps.posterize(image, int(bits)) if bits else image.point(lambda _: 0),
    Operation.SOLARIZE: ImageOps.solarize,
    Operation.AUTOCONTRAST: lambda image, _: ImageOps.autocontrast(image),
    Operation.EQUALIZE: lambda image, _: ImageOps.equalize(image),
    Operation.GRAYSCALE: lambda image, _: image.convert("L").convert(image.mode),
    Operation.FLIP_VERTICAL: lambda image, _: ImageOps.flip(image),
    Operation.FLIP_HORIZONTAL: lambda image, _: ImageOps.mirror(image),
}


def _pixels(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def hue(pixels: np.ndarray, shift: float, *_: float) -> np.ndarray:
    """Returns torchvision's adjust_hue of uint8 [height, width, channels] (v2/functional/_color.py)."""
    if pixels.shape[-1] == 1:
        return pixels
    rgb = torch.from_numpy(pixels).to(torch.float32).mul_(1.0 / 255)
    r, g, b = rgb.unbind(-1)
    least, most = torch.aminmax(rgb, dim=-1)
    equal, one, spread = most == least, torch.ones_like(most), most - least
    saturation = spread / torch.where(equal, one, most)
    to_r, to_g, to_b = ((most - level) / torch.where(equal, one, spread) for level in (r, g, b))
    turn = torch.where(most == r, to_b - to_g, torch.where(most == g, to_r + 2.0 - to_b, to_g + 4.0 - to_r))
    turn = turn.mul(1.0 / 6.0).add(1.0).fmod(1.0).add(shift).remainder(1.0).mul(6)
    sextant = torch.floor(turn)
    part = turn - sextant
    q = ((1.0 - saturation * part) * most).clamp(0, 1)
    t = ((saturation * part + (1.0 - saturation)) * most).clamp(0, 1)
    p = ((1.0 - saturation) * most).clamp(0, 1)
    vpqt = torch.stack((most, p, q, t), -1)
    select = torch.tensor([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]])
    turned = vpqt.gather(-1, select[sextant.to(torch.int64).remainder(6)])
    return turned.mul(255 + 1.0 - 1e-3).to(torch.uint8).numpy()


def blur(pixels: np.ndarray, width: float, height: float, sigma_x: float, sigma_y: float, *_: float) -> np.ndarray:
    """Returns torchvision's gaussian_blur of uint8 [height, width, channels] (v2/functional/_misc.py)."""

    def weights(size: int, sigma: float) -> torch.Tensor:
        limit = (size - 1) / (2 * 2**0.5)
        return torch.softmax(-torch.linspace(-limit, limit, size).div(sigma).pow(2), 0)

    size, channels = (int(width), int(height)), pixels.shape[-1]
    kernel = weights(size[1], sigma_y)[:, None] * weights(size[0], sigma_x)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None].to(torch.float32)
    reach = [side // 2 for side in size]
    padded = torch.nn.functional.pad(planes, [reach[0], reach[0], reach[1], reach[1]], mode="reflect")
    blurred = torch.nn.functional.conv2d(padded, kernel.expand(channels, 1, *kernel.shape), groups=channels)
    return blurred.round().to(torch.uint8)[0].permute(1, 2, 0).numpy()


def augmix(pixels: np.ndarray, weights: list[float], branches: list[np.ndarray]) -> np.ndarray:
    """Returns torchvision's sum of AugMix: `weights`, that of `pixels` first and then those of the branches."""
    levels = torch.from_numpy(pixels)
    total = torch.tensor(weights[0]) * levels
    for weight, branch in zip(weights[1:], branches, strict=True):
        total.add_(torch.tensor(weight) * torch.from_numpy(branch))
    return total.clamp(0, 255).to(torch.uint8).numpy()


BY_FORMULA: dict[Operation, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Operation.HUE: lambda pixels, one: hue(pixels, *one["values"].tolist()),
    Operation.BLUR: lambda pixels, one: blur(pixels, *one["values"].tolist()),
    Operation.WARP: _warped,
    Operation.ERASE: _erased,
    Operation.ERASE_NOISE: _erased,
}
REFERENCES = {*FACTORS, *BY_PILLOW, *BY_FORMULA}
KINDS = sorted(REFERENCES)


def _noise(seed: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns levels (uint8 [height, width, channels]): a byte of a hash chooses one of 256 quantiles."""
    height, width, channels = shape
    hashes = -(-width * channels // 8)
    numbers = np.arange(1, height * hashes + 1, dtype=np.uint64)
    choices = mix(np.uint64(seed) + GAMMA * numbers).view(np.uint8).reshape(height, 8 * hashes)
    choices = choices[:, : width * channels].reshape(shape)
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)])
    picked = slice(None) if channels == 3 else slice(1, 2)
    levels = 255 * (np.array(MEAN)[picked] + np.array(DEVIATION)[picked] * normal[choices])
    return np.floor(levels + 0.5).clip(0, 255).astype(np.uint8)
