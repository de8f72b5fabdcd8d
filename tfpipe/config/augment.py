"""The steps of `data.augment`: torchvision.transforms.v2's, with their names, arguments and defaults.

A step that is one operation of native/augment/augment.h is a row of OPERATIONS; any other is a class, and a row of
native/augment/draw.h.
"""

import difflib
import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, Union

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, ValidationInfo, create_model, field_validator

from tfpipe.config.section import ASCENDING, PAIR, Form, Section


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError(f"received {size}; accepted: odd numbers")
    return size


# Limits of numbers, the same as in native/augment/draw.c: beyond them nothing is left of a crop.
MIN_NUMBER, MAX_NUMBER, MAX_SHEAR = 1e-6, 1e6, 89.0
Chance = Annotated[float, Field(ge=0, le=1)]
Applied = Annotated[Chance, Field(description="Probability that a crop goes through the step.")]
Size = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Positive = Annotated[float, Field(ge=MIN_NUMBER, le=MAX_NUMBER)]
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Shear = Annotated[float, Field(ge=-MAX_SHEAR, le=MAX_SHEAR)]
Turn = Annotated[float, Field(ge=-0.5, le=0.5)]
Level = Annotated[float, Field(ge=0, le=255)]
Sizes = Annotated[tuple[Size, Size], PAIR, ASCENDING]
Positives = Annotated[tuple[Positive, Positive], PAIR, ASCENDING]
Numbers = Annotated[tuple[Number, Number], PAIR, ASCENDING]
Turns = Annotated[tuple[Turn, Turn], PAIR, ASCENDING]
Odd = Annotated[PositiveInt, AfterValidator(_odd)]
Bins = Annotated[int, Field(ge=2, le=1000)]
Interpolation = Literal["nearest", "bilinear"]
Fill = Annotated[Level | tuple[Level, Level, Level], Form("[red, green, blue], each in [0, 255]")]
Center = Annotated[tuple[Number, Number] | None, Form("[x, y]")]
# Keys that are no arguments of draw.h.
SHARED = {"name", "p", "interpolation", "fill"}


def _pair(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value, value)


def _around(value: Any, middle: float = 0, least: float = -math.inf) -> tuple[float, ...]:
    """Returns smallest and largest value: `value` around the middle, unless both are given."""
    return value if isinstance(value, tuple) else (max(least, middle - value), middle + value)


def _point(center: tuple[float, float] | None) -> tuple[float, ...]:
    return (0, 0, 0) if center is None else (1, *center)


class AugmentStep(Section):
    """A step of `data.augment`."""

    operation: ClassVar[str] = ""
    """The operation of native/augment/augment.h that the step is, or "": one of draw.h with the step's name."""
    p: Applied = 1.0

    def numbers(self) -> tuple[float, ...]:
        """Returns the step's arguments in the order of draw.h: by default its own keys, without texts."""
        values = [getattr(self, key) for key in type(self).model_fields if key not in SHARED]
        return tuple(value for value in values if not isinstance(value, str))


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
    """Applies one of 25 pairs of operations that were learned on ImageNet (Cubuk et al. 2019)."""

    name: Literal["AutoAugment"]


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

    def numbers(self) -> tuple[float, ...]:
        factors = (_around(value, 1, 0) for value in (self.brightness, self.contrast, self.saturation))
        return (*itertools.chain(*factors), *_around(self.hue))


class GaussianBlur(AugmentStep):
    """Blurs a crop; torchvision does so always, and with RandomApply in a share of the crops, here `p`."""

    name: Literal["GaussianBlur"]
    kernel_size: Annotated[Odd | tuple[Odd, Odd], Form("[width, height]")]
    """Pixels of the kernel, odd, less than twice the crop's side."""
    sigma: Positive | Positives = (0.1, 2.0)
    """Standard deviation in pixels, or its smallest and largest value, between which it is drawn uniformly."""

    def numbers(self) -> tuple[float, ...]:
        return (*_pair(self.kernel_size), *_pair(self.sigma))


class RandomRotation(Warp):
    """Rotates a crop about a point, within its frame."""

    name: Literal["RandomRotation"]
    degrees: Size | Numbers
    """Number d: the angle is in [-d, d], in degrees, counterclockwise; or its smallest and largest value."""
    center: Center = None
    """Point that stays, in pixels from the upper left corner; null: the middle."""

    def numbers(self) -> tuple[float, ...]:
        return (*_around(self.degrees), *_point(self.center))


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
        Annotated[float, Field(ge=0, le=MAX_SHEAR)] | tuple[Shear, Shear] | tuple[Shear, Shear, Shear, Shear] | None,
        Form("[smallest, largest] of x, or of x and of y"),
        ASCENDING,
    ] = None
    """Number s: the angle along x is in [-s, s], in degrees; or its smallest and largest value, or those of x and of y;
    null: 0."""
    center: Center = None
    """Point that rotation, scale and shear leave where it is, in pixels; null: the middle."""

    def numbers(self) -> tuple[float, ...]:
        shear = _around(self.shear or 0)
        shears = shear if len(shear) == 4 else (*shear, 0, 0)
        moves, scale = self.translate or (0, 0), self.scale or (1, 1)
        return (*_around(self.degrees), *moves, *scale, *shears, *_point(self.center))


class RandomErasing(AugmentStep):
    """Fills a random rectangle (Zhong et al. 2020)."""

    name: Literal["RandomErasing"]
    p: Applied = 0.5
    scale: Annotated[tuple[Chance, Chance], PAIR, ASCENDING] = (0.02, 0.33)
    """Smallest and largest share of the crop's area."""
    ratio: Positives = (0.3, 3.3)
    """Smallest and largest height / width, drawn from uniformly by their logarithms."""
    value: Fill | Literal["random"] = 0
    """Level, or one for each channel; "random": normal noise with ImageNet's mean and deviation of each channel."""

    def numbers(self) -> tuple[float, ...]:
        return (*self.scale, *self.ratio, self.value == "random")


class Operation(NamedTuple):
    """A step that is one operation of native/augment/augment.h, with at most one argument, which is its value."""

    name: str
    operation: str
    """Its kind there."""
    meaning: str
    p: float = 0.5
    key: str = ""
    accepted: Any = None
    """The key's type."""
    key_meaning: str = ""

    def section(self) -> type[AugmentStep]:
        """Returns the step's section of the config."""
        # With docstrings, pydantic looks for the class in each module's source: 0.1 s a row beside TensorFlow.
        keys: dict[str, Any] = {"__cls_kwargs__": {"use_attribute_docstrings": False}, "__module__": __name__}
        keys |= {"__doc__": self.meaning, "p": (Applied, self.p), "name": (Literal[self.name], ...)}
        if self.key:
            keys[self.key] = (self.accepted, Field(description=self.key_meaning))
        made = create_model(self.name, __base__=AugmentStep, **keys)
        made.operation = self.operation
        return made


OPERATIONS = (
    Operation("RandomGrayscale", "GRAYSCALE", "Takes the color out of a crop.", p=0.1),
    Operation(
        *("RandomSolarize", "SOLARIZE", "Inverts the levels from a threshold on.", 0.5),
        *("threshold", Level, "Lowest level that is inverted."),
    ),
    Operation(
        *("RandomPosterize", "POSTERIZE", "Keeps the highest bits of each level.", 0.5),
        *("bits", Annotated[int, Field(ge=0, le=8)], "Bits that are kept."),
    ),
    Operation("RandomAutocontrast", "AUTOCONTRAST", "Stretches each channel's levels to [0, 255]."),
    Operation("RandomEqualize", "EQUALIZE", "Equalizes each channel's histogram."),
    Operation("RandomInvert", "INVERT", "Inverts all levels."),
    Operation(
        *("RandomAdjustSharpness", "SHARPNESS", "Blurs or sharpens a crop.", 0.5),
        *("sharpness_factor", Size, "0 blurs, 1 changes nothing, 2 sharpens."),
    ),
    Operation(
        *("RandomHorizontalFlip", "FLIP_HORIZONTAL"),
        "Mirrors a crop sideways; `data.flip` does the same at no cost, while decoding.",
    ),
    Operation("RandomVerticalFlip", "FLIP_VERTICAL", "Turns a crop upside down, mirrored."),
)
# As classes of this module, by which they are pickled.
vars().update({row.name: row.section() for row in OPERATIONS})
# In the order of this module.
STEPS = tuple(step for step in [*vars().values()] if "name" in getattr(step, "model_fields", ()))
NAMES = tuple(step.__name__ for step in STEPS)
if TYPE_CHECKING:
    AnyStep: TypeAlias = AugmentStep
else:
    AnyStep = Union[STEPS]  # noqa: UP007


def _as_step(step: Any) -> Any:
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
    list[Annotated[AnyStep, Field(discriminator="name"), BeforeValidator(_as_step)]],
    Form('a list of steps, each a name or {"name": NAME, ...}'),
]
