"""Mixes the crops of a batch, and their labels, with those of the crops before them: MixUp and CutMix.

As torchvision.transforms.v2 does: the partners are the batch rolled by one, and there is one draw for each batch. The
draw is a function of the seed and of the place of the batch's first crop in the stream.
"""

from typing import NamedTuple

import tensorflow as tf

from tfpipe.config.data_sections import Mix
from tfpipe.data.images.crops import Crops, crop_seeds
from tfpipe.native import core, native

# Seeds of windows and flips are below: see crop_seeds.
SEEDS = 2**33


class Draw(NamedTuple):
    """How the crops of a batch are mixed: within a box each keeps `weight` of itself, the rest is its partner's."""

    box: tf.Tensor  # int32 [4]: top, left, height, width
    weight: tf.Tensor  # int32 []: in [0, full_weight] of the library


def mix_batch(crops: Crops, mix: Mix, seed: int, classes: int) -> Crops:
    """Returns a batch of at least one crop, mixed; in the batch's own memory if nothing else refers to it.

    Labels become shares of the classes, float32 [batch, classes], in proportion to the pixels.
    """
    images, labels, positions, *_ = crops
    shape = tf.shape(images)[1:3]
    draw = draw_mix(mix, seed, positions[0], shape)
    pixels = tf.ensure_shape(native().mix(images, draw.box, draw.weight), images.shape)
    return Crops(pixels, mix_labels(labels, classes, own_share(draw, shape)), positions)


def draw_mix(mix: Mix, seed: int, first: tf.Tensor, shape: tf.Tensor) -> Draw:
    """Draws how a batch is mixed, as torchvision's MixUp and CutMix do, and timm's Mixup chooses between them.

    Args:
        mix: what to draw from.
        seed: `data.seed`.
        first: int64 [2], stream position and crop number of the batch's first crop.
        shape: int32 [2], height and width of the crops.
    """
    uniform = tf.random.stateless_uniform([6], crop_seeds(SEEDS + 2 * seed, *tf.unstack(first)), dtype=tf.float64)
    applied, switch, *centre, first_u, second_u = tf.unstack(uniform)
    cut = tf.constant(mix.mixup is None) if None in (mix.mixup, mix.cutmix) else switch < mix.switch_prob
    alpha = tf.where(cut, *(tf.constant(alpha or 1.0, tf.float64) for alpha in (mix.cutmix, mix.mixup)))
    share = _beta(alpha, crop_seeds(SEEDS + 2 * seed + 1, *tf.unstack(first)), tf.stack([first_u, second_u]))
    # The box of a crop's mean is the crop.
    weight = tf.where(cut, 0, tf.cast(tf.round(share * core().full_weight), tf.int32))
    box = tf.where(cut, _box(share, tf.stack(centre), shape), tf.concat([[0, 0], shape], 0))
    return Draw(box, tf.where(applied < mix.prob, weight, core().full_weight))


def _beta(alpha: tf.Tensor, seed: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns float64 [], a draw of Beta(alpha, alpha): x / (x + y) of two draws of Gamma(alpha).

    Gamma(alpha) is Gamma(alpha + 1) times `uniform` (float64 [2] in [0, 1)) to the power of 1 / alpha (Marsaglia and
    Tsang 2000, section 6); in logarithms, since both would be 0 for a small alpha.
    """
    gammas = tf.random.stateless_gamma([2], seed, alpha + 1.0, dtype=tf.float64)
    x, y = tf.unstack(tf.math.log(gammas) + tf.math.log1p(-uniform) / alpha)
    return tf.sigmoid(x - y)


def _box(share: tf.Tensor, centre: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns int32 [4], a box with its centre anywhere in the crop, clipped at its edges; before, it has 1 - share of
    the crop's area."""
    sides = tf.cast(shape, tf.float64)
    middle = tf.cast(centre * sides, tf.int32)
    half = tf.cast(0.5 * tf.sqrt(1.0 - share) * sides, tf.int32)
    corner = tf.maximum(middle - half, 0)
    return tf.concat([corner, tf.minimum(middle + half, shape) - corner], 0)


def own_share(draw: Draw, shape: tf.Tensor) -> tf.Tensor:
    """Returns float32 [], the share that a crop keeps of itself, of crops of `shape` (int32 [2])."""
    area = tf.reduce_prod(tf.cast(draw.box[2:], tf.float64) / tf.cast(shape, tf.float64))
    return tf.cast(1.0 - (1.0 - tf.cast(draw.weight, tf.float64) / core().full_weight) * area, tf.float32)


def mix_labels(labels: tf.Tensor, classes: int, share: tf.Tensor) -> tf.Tensor:
    """Returns the labels of a mixed batch: `share` of a crop's own, the rest of its partner's.

    Classes (int32 [batch]) become float32 [batch, classes]; labels that are floats stay as they are.
    """
    shares = labels if labels.dtype.is_floating else tf.one_hot(labels, classes)
    return shares * share + tf.roll(shares, 1, 0) * (1.0 - share)
