"""The sections of `data` for whole batches: mixing crops, and normalising their floats."""

from typing import Annotated

from pydantic import Field

from tfpipe.config.section import Form, Fraction, Section

Alpha = Annotated[float, Field(gt=0)]


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
    switch_prob: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """With both, share of CutMix in the mixed batches; the others get MixUp."""


class Normalize(Section):
    """Normalisation of images of a float type: (value - mean) / std, of values in [0, 1]."""

    mean: Annotated[list[float], Form("a list of numbers, one for each channel")]
    """Mean of each channel, in [0, 1]; ImageNet's are [0.485, 0.456, 0.406]."""
    std: Annotated[list[Annotated[float, Field(gt=0)]], Form("a list of numbers above 0, one for each channel")]
    """Standard deviation of each channel, of values in [0, 1]; ImageNet's are [0.229, 0.224, 0.225]."""
