"""The sections of `data` for whole batches: mixing crops, and normalising their floats."""

import json
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from tfpipe.config.section import Form, Fraction, Section

Alpha = Annotated[float, Field(gt=0)]
EVEN = 0.5


class Mix(Section):
    """Mixing of each crop of a training batch with the crop before it, and of their labels, which become shares of the
    classes, float32 [batch, classes]. Test data stay as they are."""

    mixup: Alpha | None = None
    """MixUp (Zhang et al. 2018): a weighted mean of both crops; the weight, one for each batch, is drawn from
    Beta(alpha, alpha). This is alpha, e.g. 0.2; null: no MixUp."""
    cutmix: Alpha | None = None
    """CutMix (Yun et al. 2019): a box of the other crop, the same in the whole batch; the share outside it is drawn
    from Beta(alpha, alpha) before the box is clipped at the crop's edges. This is alpha, e.g. 1.0; null: no CutMix."""
    prob: Fraction = 1.0
    """Share of the batches that are mixed; the labels of the others are 0 and 1."""
    switch_prob: Annotated[float, Field(gt=0, lt=1)] = EVEN
    """With both, share of CutMix in the mixed batches; the others get MixUp."""

    def _conflicts(self) -> Iterator[str]:
        if self.mixup is None and self.cutmix is None:
            yield 'neither mixup nor cutmix is set: give an alpha, e.g. {"mixup": 0.2, "cutmix": 1}, or set mix to null'
        elif self.switch_prob != EVEN and (self.mixup is None or self.cutmix is None):
            lacking = "mixup" if self.mixup is None else "cutmix"
            yield f"switch_prob {self.switch_prob:g} switches between mixup and cutmix, and {lacking} is null: set both"

    def misfits(self, batch_size: int, classes: int | None) -> Iterator[str]:
        """Yields a message for a smallest batch and a `num_classes` with which it makes no sense."""
        if batch_size == 1:
            yield "mix needs a crop to mix with, and batch_size is 1: use 2 or more, or set mix to null"
        if classes == 1:
            yield "mix makes shares of classes, and num_classes is 1: use 2 or more, or set mix to null"


class Normalize(Section):
    """Normalisation of images of a float type: (value - mean) / std, of values in [0, 1]."""

    mean: Annotated[list[float], Form("a list of numbers, one for each channel")]
    """Mean of each channel, in [0, 1]; ImageNet's are [0.485, 0.456, 0.406]."""
    std: Annotated[list[Annotated[float, Field(gt=0)]], Form("a list of numbers above 0, one for each channel")]
    """Standard deviation of each channel, of values in [0, 1]; ImageNet's are [0.229, 0.224, 0.225]."""

    def misfits(self, dtype: str, channels: int) -> Iterator[str]:
        """Yields a message for each way in which `dtype` and `num_channels` contradict it."""
        if dtype == "uint8":
            yield (
                'normalize makes floats, and dtype is "uint8": set dtype to "float32", "float16" or "bfloat16", or set '
                "normalize to null and normalise on the device, which copies a quarter of the bytes to it"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                yield (
                    f"normalize.{name} {json.dumps(values)} has {len(values)} values, and num_channels is {channels}: "
                    "give one for each channel"
                )
