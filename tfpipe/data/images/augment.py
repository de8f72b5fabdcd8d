"""Random changes of training crops (`data.augment`), drawn and made in C (draw.h, augment.h).

A step's draws are a pure function of `data.seed`, the crop's stream position and number, and the number of the step. So
they are the same for every source, number of ranks, framework and worker, and after any resume.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.config import augment as steps
from tfpipe.errors import ConfigError
from tfpipe.native import Operation, native

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""(crops (uint8 [k, height, width, channels]), their positions (int64 [k, 2])) -> crops, changed."""

COLUMNS = 24  # TFPIPE_COLUMNS of draw.h
# Keeps the draws of augmentation apart from those of windows and flips, whose seeds are below 2^34.
AUGMENTATION = 2**40


class StepKind(IntEnum):
    """How a step is drawn: enum tfpipe_step of draw.h."""

    ONE, RAND, TRIVIAL, AUTO, MIX, JITTER, BLUR, ROTATION, AFFINE, ERASE = range(10)


# Steps that are one operation, and the argument that is its value.
SINGLE: dict[type[steps.AugmentStep], tuple[Operation, str | None]] = {
    steps.RandomGrayscale: (Operation.GRAYSCALE, None),
    steps.RandomSolarize: (Operation.SOLARIZE, "threshold"),
    steps.RandomPosterize: (Operation.POSTERIZE, "bits"),
    steps.RandomAutocontrast: (Operation.AUTOCONTRAST, None),
    steps.RandomEqualize: (Operation.EQUALIZE, None),
    steps.RandomInvert: (Operation.INVERT, None),
    steps.RandomAdjustSharpness: (Operation.SHARPNESS, "sharpness_factor"),
    steps.RandomHorizontalFlip: (Operation.FLIP_HORIZONTAL, None),
    steps.RandomVerticalFlip: (Operation.FLIP_VERTICAL, None),
}


def choose_augment(config: DataConfig, *, training: bool) -> Augment | None:
    """Returns the function that `data.augment` sets; None for test data, or without steps.

    Raises ConfigError if a step does not suit the crops.
    """
    if not training or not config.augment:
        return None
    check_sizes(config)
    shape, rows = (*config.crop_image_size, config.num_channels), step_rows(config.augment)
    seed = np.int64(AUGMENTATION + config.seed)

    def augment(crops: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("augment"):
            return tf.ensure_shape(native().augment(crops, positions, seed, rows), [crops.shape[0], *shape])

    return augment


def augmented(images: Any, positions: tf.Tensor, augment: Sequence[Augment | None]) -> Any:
    """Returns crops, or a tuple of them by view, changed by the function of each view; None changes nothing."""
    if not isinstance(images, tuple):
        return images if augment[0] is None else augment[0](images, positions)
    views = zip(images, augment, strict=True)
    return tuple(view if change is None else change(view, positions) for view, change in views)


def check_sizes(config: DataConfig) -> None:
    """Raises ConfigError for a kernel that is too large for the crops: its half is reflected at their edges."""
    for number, step in enumerate(config.augment):
        if not isinstance(step, steps.GaussianBlur):
            continue
        for kernel, side in zip(_pair(step.kernel_size), reversed(config.crop_image_size), strict=True):
            if kernel // 2 >= side:
                raise ConfigError(
                    f"data.augment[{number}].kernel_size: received {kernel} for crops of {side} pixels; accepted: odd "
                    f"numbers up to {2 * side - 1}"
                )


def step_rows(augment: list[Any]) -> np.ndarray:
    """Returns float64 [steps, COLUMNS]: the steps as the library takes them."""
    return np.array([_row(step) for step in augment], np.float64).reshape(-1, COLUMNS)


def _row(step: Any) -> list[float]:
    """Returns a step's kind, probability, interpolation, fill and arguments, in the order of draw.h."""
    draw, arguments = _arguments(step)
    fill = getattr(step, "value", None) if isinstance(step, steps.RandomErasing) else getattr(step, "fill", 0)
    levels = (0, 0, 0) if fill == "random" else fill if isinstance(fill, tuple) else (fill,) * 3
    bilinear = getattr(step, "interpolation", "nearest") == "bilinear"
    row = [float(draw), step.p, float(bilinear), *map(float, levels), *map(float, arguments)]
    return [*row, *[0.0] * (COLUMNS - len(row))]


def _arguments(step: Any) -> tuple[StepKind, tuple[float, ...]]:
    """Returns how a step is drawn, and its arguments."""
    match step:
        case steps.RandAugment():
            return StepKind.RAND, (step.num_ops, step.magnitude, step.num_magnitude_bins)
        case steps.TrivialAugmentWide():
            return StepKind.TRIVIAL, (step.num_magnitude_bins,)
        case steps.AutoAugment():
            return StepKind.AUTO, ()
        case steps.AugMix():
            return StepKind.MIX, (step.severity, step.mixture_width, step.chain_depth, step.alpha, step.all_ops)
        case steps.ColorJitter():
            factors = [_factors(value) for value in (step.brightness, step.contrast, step.saturation)]
            return StepKind.JITTER, (*sum(factors, ()), *_around(step.hue))
        case steps.GaussianBlur():
            return StepKind.BLUR, (*_pair(step.kernel_size), *_pair(step.sigma))
        case steps.RandomRotation():
            return StepKind.ROTATION, (*_around(step.degrees), *_center(step.center))
        case steps.RandomAffine():
            shear = _around(step.shear or 0)
            shears = shear if len(shear) == 4 else (*shear, 0, 0)
            moves, scale = step.translate or (0, 0), step.scale or (1, 1)
            return StepKind.AFFINE, (*_around(step.degrees), *moves, *scale, *shears, *_center(step.center))
        case steps.RandomErasing():
            return StepKind.ERASE, (*step.scale, *step.ratio, step.value == "random")
        case _:
            operation, name = SINGLE[type(step)]
            return StepKind.ONE, (operation, 0 if name is None else getattr(step, name))


def _pair(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value, value)


def _around(value: Any) -> tuple[float, ...]:
    """Returns smallest and largest value: -value and value, unless both are given."""
    return value if isinstance(value, tuple) else (-value, value)


def _factors(value: Any) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (max(0.0, 1 - value), 1 + value)


def _center(center: tuple[float, float] | None) -> tuple[float, ...]:
    return (0, 0, 0) if center is None else (1, *center)
