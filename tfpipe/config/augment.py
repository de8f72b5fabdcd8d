"""The steps of `data.augment`: torchvision.transforms.v2's, with their names, arguments and defaults."""

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, ValidationInfo, field_validator

from tfpipe.config.section import ASCENDING, Form, Section


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError(f"received {size}; accepted: odd numbers")
    return size


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
Sizes = Annotated[tuple[Size, Size], PAIR, ASCENDING]
Positives = Annotated[tuple[Positive, Positive], PAIR, ASCENDING]
Numbers = Annotated[tuple[Number, Number], PAIR, ASCENDING]
Turns = Annotated[tuple[Turn, Turn], PAIR, ASCENDING]
Odd = Annotated[PositiveInt, AfterValidator(_odd)]
Bins = Annotated[int, Field(ge=2, le=1000)]
Interpolation = Literal["nearest", "bilinear"]
Fill = Annotated[Level | tuple[Level, Level, Level], Form("[red, green, blue], each in [0, 255]")]
Center = Annotated[tuple[Number, Number] | None, Form("[x, y]")]


class AugmentStep(Section):
    """A step of `data.augment`."""

    p: Chance = 1.0
    """Probability that a crop goes through the step."""


class HalfTheTime(AugmentStep):
    """A step that half of the crops go through by default."""

    p: Chance = 0.5
    """Probability that a crop goes through the step."""


class Warp(AugmentStep):
    """A step that takes pixels from other places, also from outside the crop."""

    interpolation: Interpolation = "nearest"
    """Interpolation of rotated, sheared and moved pixels."""
    fill: Fill = 0
    """Level, or one for each channel, of pixels that come from outside the crop."""


class RandAugment(Warp):
    """Applies `num_ops` operations, each drawn from 14, with one magnitude (Cubuk et al. 2020)."""

    name: Literal["RandAugment"]
    num_ops: Annotated[int, Field(ge=0, le=16)] = 2
    """Operations applied one after the other."""
    num_magnitude_bins: Bins = 31
    """Number of different strengths."""
    magnitude: Annotated[int, Field(ge=0, validate_default=True)] = 9
    """Strength of all operations, from 0 to num_magnitude_bins - 1."""

    @field_validator("magnitude")
    @classmethod
    def _below_bins(cls, magnitude: int, info: ValidationInfo) -> int:
        if magnitude >= (bins := info.data.get("num_magnitude_bins", magnitude + 1)):
            raise ValueError(f"received {magnitude}; accepted: less than num_magnitude_bins, {bins}")
        return magnitude


class TrivialAugmentWide(Warp):
    """Applies one operation drawn from 14, with a magnitude drawn too (Müller and Hutter 2021)."""

    name: Literal["TrivialAugmentWide"]
    num_magnitude_bins: Bins = 31
    """Number of different strengths."""


class AutoAugment(Warp):
    """Applies one of 25 learned pairs of operations (Cubuk et al. 2019)."""

    name: Literal["AutoAugment"]
    policy: Literal["imagenet"] = "imagenet"
    """Data on which the pairs were learned."""


class AugMix(Warp):
    """Mixes the crop with several chains of operations on it (Hendrycks et al. 2020)."""

    name: Literal["AugMix"]
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


class ColorJitter(AugmentStep):
    """Changes brightness, contrast, saturation and hue, in a random order, by factors drawn uniformly."""

    name: Literal["ColorJitter"]
    brightness: Size | Sizes = 0.0
    """Number b: the factor is in [max(0, 1 - b), 1 + b]; or the factor's smallest and largest value."""
    contrast: Size | Sizes = 0.0
    """The same for contrast."""
    saturation: Size | Sizes = 0.0
    """The same for saturation."""
    hue: Annotated[float, Field(ge=0, le=0.5)] | Turns = 0.0
    """Number h: the shift is in [-h, h], of a full circle; or its smallest and largest value, within [-0.5, 0.5]."""


class RandomGrayscale(AugmentStep):
    """Takes the color out of a crop."""

    name: Literal["RandomGrayscale"]
    p: Chance = 0.1
    """Probability that a crop goes through the step."""


class GaussianBlur(AugmentStep):
    """Blurs a crop; torchvision does so always, and with RandomApply in a share of the crops, here `p`."""

    name: Literal["GaussianBlur"]
    kernel_size: Annotated[Odd | tuple[Odd, Odd], Form("[width, height]")]
    """Pixels of the kernel, odd, less than twice the crop's side."""
    sigma: Positive | Positives = (0.1, 2.0)
    """Standard deviation in pixels, or its smallest and largest value, between which it is drawn uniformly."""


class RandomSolarize(HalfTheTime):
    """Inverts the levels from a threshold on."""

    name: Literal["RandomSolarize"]
    threshold: Level
    """Lowest level that is inverted."""


class RandomPosterize(HalfTheTime):
    """Keeps the highest bits of each level."""

    name: Literal["RandomPosterize"]
    bits: Annotated[int, Field(ge=0, le=8)]
    """Bits that are kept."""


class RandomAutocontrast(HalfTheTime):
    """Stretches each channel's levels to [0, 255]."""

    name: Literal["RandomAutocontrast"]


class RandomEqualize(HalfTheTime):
    """Equalizes each channel's histogram."""

    name: Literal["RandomEqualize"]


class RandomInvert(HalfTheTime):
    """Inverts all levels."""

    name: Literal["RandomInvert"]


class RandomAdjustSharpness(HalfTheTime):
    """Blurs or sharpens a crop."""

    name: Literal["RandomAdjustSharpness"]
    sharpness_factor: Size
    """0 blurs, 1 changes nothing, 2 sharpens."""


class RandomRotation(Warp):
    """Rotates a crop about a point, within its frame."""

    name: Literal["RandomRotation"]
    degrees: Size | Numbers
    """Number d: the angle is in [-d, d], in degrees, counterclockwise; or its smallest and largest value."""
    center: Center = None
    """Point that stays, in pixels from the upper left corner; null: the middle."""


class RandomAffine(Warp):
    """Rotates, moves, scales and shears a crop, within its frame."""

    name: Literal["RandomAffine"]
    degrees: Size | Numbers
    """Number d: the angle is in [-d, d], in degrees, clockwise; or its smallest and largest value."""
    translate: Annotated[tuple[Chance, Chance] | None, Form("[share of the width, share of the height]")] = None
    """Largest shift, as shares of width and height; null: none."""
    scale: Positives | None = None
    """Smallest and largest factor of the size; null: 1."""
    shear: Annotated[
        Annotated[float, Field(ge=0, le=MOST_SHEAR)] | tuple[Shear, Shear] | tuple[Shear, Shear, Shear, Shear] | None,
        Form("[smallest, largest] of x, or of x and of y"),
        ASCENDING,
    ] = None
    """Number s: the angle along x is in [-s, s], in degrees; or its smallest and largest value, or those of x and of y;
    null: 0."""
    center: Center = None
    """Point that rotation, scale and shear leave where it is, in pixels; null: the middle."""


class RandomHorizontalFlip(HalfTheTime):
    """Mirrors a crop sideways; `data.flip` does the same at no cost, while decoding."""

    name: Literal["RandomHorizontalFlip"]


class RandomVerticalFlip(HalfTheTime):
    """Turns a crop upside down, mirrored."""

    name: Literal["RandomVerticalFlip"]


class RandomErasing(HalfTheTime):
    """Fills a random rectangle (Zhong et al. 2020)."""

    name: Literal["RandomErasing"]
    scale: Annotated[tuple[Chance, Chance], PAIR, ASCENDING] = (0.02, 0.33)
    """Smallest and largest share of the crop's area."""
    ratio: Positives = (0.3, 3.3)
    """Smallest and largest height / width, drawn from uniformly by their logarithms."""
    value: Fill | Literal["random"] = 0
    """Level, or one for each channel; "random": normal noise with ImageNet's mean and deviation of each channel."""


# In the order of this module.
STEPS = tuple(
    step for step in [*vars().values()] if isinstance(step, type) and "name" in getattr(step, "model_fields", ())
)
NAMES = tuple(step.__name__ for step in STEPS)
if TYPE_CHECKING:
    AnyStep: TypeAlias = AugmentStep
else:
    AnyStep = Union[STEPS]  # noqa: UP007


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
