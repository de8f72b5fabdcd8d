"""Random changes of training crops (`data.augment`), drawn and made in C (native/augment).

A step's draws are a pure function of `data.seed`, the crop's stream position and number, and the number of the step. So
they are the same for every source, number of ranks, framework and worker, and after any resume.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.config import augment as steps
from tfpipe.errors import ConfigError
from tfpipe.native import core, native

Augment = Callable[[tf.Tensor, tf.Tensor, Any], tf.Tensor]
"""(crops (uint8 [k, height, width, channels]), their positions (int64 [k, 2]), which to change (int64 [2]: the first
and their end; or [0]: all)) -> crops, changed in their own memory."""

# Keeps the draws of augmentation apart from those of windows and flips, whose seeds are below 2^34.
AUGMENTATION = 2**40


def choose_augment(config: DataConfig, *, training: bool) -> Augment | None:
    """Returns the function that `data.augment` sets; None for test data, or without steps.

    Raises ConfigError if a step does not suit the crops.
    """
    if not training or not config.augment:
        return None
    check_sizes(config)
    shape, rows = (*config.crop_image_size, config.num_channels), step_rows(config.augment)
    seed = np.int64(AUGMENTATION + config.seed)

    def augment(crops: tf.Tensor, positions: tf.Tensor, span: Any) -> tf.Tensor:
        with tf.name_scope("augment"):
            return tf.ensure_shape(native().augment(crops, positions, seed, rows, span), [crops.shape[0], *shape])

    return augment


def augment_crops(images: Any, positions: tf.Tensor, span: Any, augment: Sequence[Augment | None]) -> Any:
    """Returns crops, or a tuple of them by view, changed by the function of each view; None changes nothing."""
    views = zip(images if isinstance(images, tuple) else (images,), augment, strict=True)
    changed = tuple(view if change is None else change(view, positions, span) for view, change in views)
    return changed if isinstance(images, tuple) else changed[0]


def check_sizes(config: DataConfig) -> None:
    """Raises ConfigError for a kernel that is too large for the crops: its half is reflected at their edges."""
    for number, step in enumerate(config.augment):
        if not isinstance(step, steps.GaussianBlur):
            continue
        for kernel, side in zip(step.numbers()[:2], reversed(config.crop_image_size), strict=True):
            if kernel // 2 >= side:
                raise ConfigError(
                    f"data.augment[{number}].kernel_size: received {kernel} for crops of {side} pixels; accepted: odd "
                    f"numbers up to {2 * side - 1}"
                )


def step_rows(augment: Sequence[steps.AugmentStep]) -> np.ndarray:
    """Returns float64 [steps, columns]: the steps as the library takes them."""
    return np.array([_row(step) for step in augment], np.float64).reshape(-1, core().columns)


def _row(step: steps.AugmentStep) -> list[float]:
    """Returns a step's kind, probability, interpolation, fill and arguments, in the order of draw.h."""
    library, numbers = core(), step.numbers()
    if step.operation:
        numbers = (library.operations[step.operation], *numbers)
    kind = library.steps["Operation" if step.operation else type(step).__name__]
    fill = getattr(step, "fill", getattr(step, "value", 0))
    levels = (0, 0, 0) if fill == "random" else fill if isinstance(fill, tuple) else (fill,) * 3
    bilinear = getattr(step, "interpolation", "nearest") == "bilinear"
    row = [float(number) for number in (kind, step.p, bilinear, *levels, *numbers)]
    return [*row, *[0.0] * (library.columns - len(row))]
