"""The steps of `data.augment`: torchvision.transforms.v2's, with their names, arguments and defaults."""

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PositiveInt

from tfpipe.config.section import Form, Section

# Limits of numbers, the same as in native/draw.c: beyond them nothing is left of a crop.
LEAST, MOST, MOST_SHEAR = 1e-6, 1e6, 89.0
Chance = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[float, Field(ge=0, le=MOST)]
Positive = Annotated[float, Field(ge=LEAST, le=MOST)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
Shear = Annotated[float, Field(ge=-MOST_SHEAR, le=MOST_SHEAR)]
Turn = Annotated[float, Field(ge=-0.5, le=0.5)]
Level = Annotated[float, Field(ge=0, le=255)]
PAIR = Form("[smallest, largest]")
Sizes = Annotated[tuple[Size, Size], PAIR]
Positives = Annotated[tuple[Positive, Positive], PAIR]
Numbers = Annotated[tuple[Number, Number], PAIR]
Turns = Annotated[tuple[Turn, Turn], PAIR]
Bins = Annotated[int, Field(ge=2, le=1000)]
Interpolation = Literal["nearest", "bilinear"]
Fill = Annotated[Level | tuple[Level, Level, Level], Form("[red, green, blue], each in [0, 255]")]
Center = Annotated[tuple[Number, Number] | None, Form("[x, y]")]


class AugmentStep(Section):
    """A step of `data.augment`."""

    p: Chance = 1.0
    """Probability that a crop goes through the step."""

    def _ranges(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and value of each argument of two numbers, the smaller of which comes first."""
        yield from ()

    def _conflicts(self) -> Iterator[str]:
        for name, value in self._ranges():
            if isinstance(value, tuple) and value[0] > value[1]:
                yield f"{name}: received {list(value)}; accepted: [smallest, largest]"


class RandAugment(AugmentStep):
    """Applies `num_ops` operations, each drawn from 14, with one magnitude (Cubuk et al. 2020)."""

    name: Literal["RandAugment"]
    """The step."""
    num_ops: Annotated[int, Field(ge=0, le=16)] = 2
    """Operations applied one after the other."""
    magnitude: Annotated[int, Field(ge=0)] = 9
    """Strength of all operations, from 0 to num_magnitude_bins - 1."""
    num_magnitude_bins: Bins = 31
    """Number of different strengths."""
    interpolation: Interpolation = "nearest"
    """Interpolation of rotated, sheared and moved pixels."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""

    def _conflicts(self) -> Iterator[str]:
        bins = self.num_magnitude_bins
        if self.magnitude >= bins:
            yield f"magnitude: received {self.magnitude}; accepted: less than num_magnitude_bins, {bins}"


class TrivialAugmentWide(AugmentStep):
    """Applies one operation drawn from 14, with a magnitude drawn too (Müller and Hutter 2021)."""

    name: Literal["TrivialAugmentWide"]
    """The step."""
    num_magnitude_bins: Bins = 31
    """Number of different strengths."""
    interpolation: Interpolation = "nearest"
    """Interpolation of rotated, sheared and moved pixels."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""


class AutoAugment(AugmentStep):
    """Applies one of 25 learned pairs of operations (Cubuk et al. 2019)."""

    name: Literal["AutoAugment"]
    """The step."""
    policy: Literal["imagenet"] = "imagenet"
    """Data on which the pairs were learned."""
    interpolation: Interpolation = "nearest"
    """Interpolation of rotated, sheared and moved pixels."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""


class AugMix(AugmentStep):
    """Mixes the crop with several chains of operations on it (Hendrycks et al. 2020)."""

    name: Literal["AugMix"]
    """The step."""
    severity: Annotated[int, Field(ge=1, le=10)] = 3
    """Number of strengths, of ten, that are drawn from, from the weakest on."""
    mixture_width: Annotated[int, Field(ge=1, le=8)] = 3
    """Number of chains."""
    chain_depth: Annotated[int, Field(ge=-1, le=8)] = -1
    """Operations of a chain; 0 or -1: drawn from 1 to 3."""
    alpha: Positive = 1.0
    """Parameter of the Dirichlet distributions of the weights."""
    all_ops: bool = True
    """Whether brightness, contrast, color and sharpness are among the operations."""
    interpolation: Interpolation = "bilinear"
    """Interpolation of rotated, sheared and moved pixels."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""


class ColorJitter(AugmentStep):
    """Changes brightness, contrast, saturation and hue, in a random order, by factors drawn uniformly."""

    name: Literal["ColorJitter"]
    """The step."""
    brightness: Size | Sizes = 0.0
    """Number b: the factor is in [max(0, 1 - b), 1 + b]; or the factor's smallest and largest value."""
    contrast: Size | Sizes = 0.0
    """The same for contrast."""
    saturation: Size | Sizes = 0.0
    """The same for saturation."""
    hue: Annotated[float, Field(ge=0, le=0.5)] | Turns = 0.0
    """Number h: the shift is in [-h, h], of a full circle; or its smallest and largest value, within [-0.5, 0.5]."""

    def _ranges(self) -> Iterator[tuple[str, Any]]:
        yield from ((name, getattr(self, name)) for name in ("brightness", "contrast", "saturation", "hue"))


class RandomGrayscale(AugmentStep):
    """Takes the color out of a crop."""

    name: Literal["RandomGrayscale"]
    """The step."""
    p: Chance = 0.1
    """Probability that a crop goes through the step."""


class GaussianBlur(AugmentStep):
    """Blurs a crop; torchvision does so always, and with RandomApply in a share of the crops, here `p`."""

    name: Literal["GaussianBlur"]
    """The step."""
    kernel_size: Annotated[PositiveInt | tuple[PositiveInt, PositiveInt], Form("[width, height]")]
    """Pixels of the kernel, odd, less than twice the crop's side."""
    sigma: Positive | Positives = (0.1, 2.0)
    """Standard deviation in pixels, or its smallest and largest value, between which it is drawn uniformly."""

    def _ranges(self) -> Iterator[tuple[str, Any]]:
        yield "sigma", self.sigma

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        for size in self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,):
            if size % 2 == 0:
                yield f"kernel_size: received {size}; accepted: odd numbers"


class RandomSolarize(AugmentStep):
    """Inverts the levels from a threshold on."""

    name: Literal["RandomSolarize"]
    """The step."""
    threshold: Level
    """Lowest level that is inverted."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomPosterize(AugmentStep):
    """Keeps the highest bits of each level."""

    name: Literal["RandomPosterize"]
    """The step."""
    bits: Annotated[int, Field(ge=0, le=8)]
    """Bits that are kept."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomAutocontrast(AugmentStep):
    """Stretches each channel's levels to [0, 255]."""

    name: Literal["RandomAutocontrast"]
    """The step."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomEqualize(AugmentStep):
    """Equalizes each channel's histogram."""

    name: Literal["RandomEqualize"]
    """The step."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomInvert(AugmentStep):
    """Inverts all levels."""

    name: Literal["RandomInvert"]
    """The step."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomAdjustSharpness(AugmentStep):
    """Blurs or sharpens a crop."""

    name: Literal["RandomAdjustSharpness"]
    """The step."""
    sharpness_factor: Size
    """0 blurs, 1 changes nothing, 2 sharpens."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomRotation(AugmentStep):
    """Rotates a crop about a point, within its frame."""

    name: Literal["RandomRotation"]
    """The step."""
    degrees: Size | Numbers
    """Number d: the angle is in [-d, d], in degrees, counterclockwise; or its smallest and largest value."""
    interpolation: Interpolation = "nearest"
    """Interpolation of the rotated pixels."""
    center: Center = None
    """Point that stays, in pixels from the upper left corner; null: the middle."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""

    def _ranges(self) -> Iterator[tuple[str, Any]]:
        yield "degrees", self.degrees


class RandomAffine(AugmentStep):
    """Rotates, moves, scales and shears a crop, within its frame."""

    name: Literal["RandomAffine"]
    """The step."""
    degrees: Size | Numbers
    """Number d: the angle is in [-d, d], in degrees, clockwise; or its smallest and largest value."""
    translate: Annotated[tuple[Chance, Chance] | None, Form("[share of the width, share of the height]")] = None
    """Largest shift, as shares of width and height; null: none."""
    scale: Positives | None = None
    """Smallest and largest factor of the size; null: 1."""
    shear: Annotated[
        Annotated[float, Field(ge=0, le=MOST_SHEAR)] | tuple[Shear, Shear] | tuple[Shear, Shear, Shear, Shear] | None,
        Form("[smallest, largest] of x, or of x and of y"),
    ] = None
    """Number s: the angle along x is in [-s, s], in degrees; or its smallest and largest value, or those of x and of y;
    null: 0."""
    interpolation: Interpolation = "nearest"
    """Interpolation of the moved pixels."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""
    center: Center = None
    """Point that rotation, scale and shear leave where it is, in pixels; null: the middle."""

    def _ranges(self) -> Iterator[tuple[str, Any]]:
        yield from (("degrees", self.degrees), ("scale", self.scale), ("shear", self.shear))
        if isinstance(self.shear, tuple):
            yield "shear", self.shear[2:] or None


class RandomHorizontalFlip(AugmentStep):
    """Mirrors a crop sideways; `data.flip` does the same at no cost, while decoding."""

    name: Literal["RandomHorizontalFlip"]
    """The step."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomVerticalFlip(AugmentStep):
    """Turns a crop upside down, mirrored."""

    name: Literal["RandomVerticalFlip"]
    """The step."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class RandomErasing(AugmentStep):
    """Fills a random rectangle (Zhong et al. 2020)."""

    name: Literal["RandomErasing"]
    """The step."""
    p: Chance = 0.5
    """Probability that a crop goes through the step."""
    scale: Annotated[tuple[Chance, Chance], PAIR] = (0.02, 0.33)
    """Smallest and largest share of the crop's area."""
    ratio: Positives = (0.3, 3.3)
    """Smallest and largest height / width, drawn from uniformly by their logarithms."""
    value: Fill | Literal["random"] = 0
    """Level, or one for each channel; "random": normal noise with ImageNet's mean and deviation of each channel."""

    def _ranges(self) -> Iterator[tuple[str, Any]]:
        yield from (("scale", self.scale), ("ratio", self.ratio))


AnyStep: TypeAlias = (
    RandAugment
    | TrivialAugmentWide
    | AutoAugment
    | AugMix
    | ColorJitter
    | RandomGrayscale
    | GaussianBlur
    | RandomSolarize
    | RandomPosterize
    | RandomAutocontrast
    | RandomEqualize
    | RandomInvert
    | RandomAdjustSharpness
    | RandomRotation
    | RandomAffine
    | RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomErasing
)
NAMES = tuple(step.__name__ for step in AnyStep.__args__)


def _named(step: Any) -> Any:
    """Returns a step as an object with a known name. Raises ValueError, with the nearest name, for others."""
    named = {"name": step} if isinstance(step, str) else step
    if not isinstance(named, dict):
        return named
    name = named.get("name")
    if name not in NAMES:
        nearest = difflib.get_close_matches(str(name), NAMES, n=1, cutoff=0.4)
        guess = f"did you mean {nearest[0]}?" if nearest else f"accepted: {', '.join(NAMES)}"
        raise ValueError(f'received "{name}", which is no step; {guess}')
    # What a validator returns is no JSON any more, whose lists would pass as tuples.
    return {key: tuple(value) if isinstance(value, list) else value for key, value in named.items()}


Augment = Annotated[
    list[Annotated[AnyStep, Field(discriminator="name"), BeforeValidator(_named)]],
    Form('a list of steps, each a name or {"name": NAME, ...}'),
]
