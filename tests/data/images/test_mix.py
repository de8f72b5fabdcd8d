"""MixUp and CutMix: what is drawn, against its definition, and that labels are the shares of the pixels."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.config.data_sections import Mix
from tfpipe.data.images.crops import Crops
from tfpipe.data.images.mix import draw_mix, mix_batch, mix_labels, own_share
from tfpipe.native import core

WHOLE = core().full_weight
SHAPE = (60, 90)
DRAWS = 3000
# Largest Kolmogorov-Smirnov distance of that many draws in all but one of 1,000 cases.
DISTANCE = 1.95 / DRAWS**0.5


def draws(mix: Mix, seed: int = 0, crop: int = 0, count: int = DRAWS) -> list[np.ndarray]:
    """Returns boxes (int32 [count, 4]), weights (int32 [count]) and shares (float32 [count]) of positions 0, 1 ..."""

    @tf.function(autograph=False)
    def run() -> tuple[tf.Tensor, ...]:
        def one(position: tf.Tensor) -> tuple[tf.Tensor, ...]:
            draw = draw_mix(mix, seed, tf.stack([position, crop]), tf.constant(SHAPE))
            return *draw, own_share(draw, tf.constant(SHAPE))

        return tf.map_fn(one, tf.range(count, dtype=tf.int64), fn_output_signature=(tf.int32, tf.int32, tf.float32))

    return [part.numpy() for part in run()]


def boxes_of_torchvision(alpha: float, count: int) -> np.ndarray:
    """Draws boxes as torchvision.transforms.v2.CutMix does: top, left, height, width."""
    draw, (height, width) = np.random.default_rng(1), SHAPE
    share = draw.beta(alpha, alpha, count)
    x, y = draw.integers(0, width, count), draw.integers(0, height, count)
    radius = 0.5 * np.sqrt(1 - share)
    half_width, half_height = (radius * width).astype(int), (radius * height).astype(int)
    top, left = np.maximum(y - half_height, 0), np.maximum(x - half_width, 0)
    bottom, right = np.minimum(y + half_height, height), np.minimum(x + half_width, width)
    return np.stack([top, left, bottom - top, right - left], 1)


def shares_below(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the share of the values that are at most each step."""
    return np.searchsorted(np.sort(values), steps, side="right") / len(values)


def distance(some: np.ndarray, others: np.ndarray) -> float:
    """Returns the Kolmogorov-Smirnov distance of two samples."""
    steps = np.concatenate([some, others])
    return float(abs(shares_below(some, steps) - shares_below(others, steps)).max())


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.2, 0.8, 1.0, 5.0, 1000.0])
def test_the_share_of_mixup_has_its_beta_distribution(alpha: float) -> None:
    boxes, weights, shares = draws(Mix(mixup=alpha))
    assert (boxes == [0, 0, *SHAPE]).all()
    assert (shares == weights / np.float32(WHOLE)).all()
    # Weights are rounded, and compared where the next one begins.
    steps = (np.linspace(0, WHOLE - 1, 1001).astype(int) + 0.5) / WHOLE
    expected = tf.math.betainc(np.full_like(steps, alpha), np.full_like(steps, alpha), steps)
    assert abs(shares_below(shares, steps) - expected).numpy().max() < DISTANCE


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_boxes_of_cutmix_are_torchvisions(alpha: float) -> None:
    boxes, weights, shares = draws(Mix(cutmix=alpha))
    assert (weights == 0).all()
    top, left, height, width = boxes.T
    assert (boxes >= 0).all() and (top + height <= SHAPE[0]).all() and (left + width <= SHAPE[1]).all()
    np.testing.assert_allclose(shares, 1 - height * width / np.prod(SHAPE), rtol=1e-6)
    expected = boxes_of_torchvision(alpha, 30 * DRAWS)
    for found, other in zip(boxes.T, expected.T, strict=True):
        assert distance(found, other) < 1.05 * DISTANCE
    assert distance(height * width, expected[:, 2] * expected[:, 3]) < 1.05 * DISTANCE


def test_batches_are_mixed_and_switched_in_the_proportions_asked_for() -> None:
    _, weights, shares = draws(Mix(mixup=0.8, cutmix=1.0, prob=0.7, switch_prob=0.3))
    for found, expected in ((weights == WHOLE, 0.3), (weights == 0, 0.7 * 0.3), (weights % WHOLE > 0, 0.7 * 0.7)):
        assert abs(found.mean() - expected) < 3.3 * (expected * (1 - expected) / DRAWS) ** 0.5
    assert (shares[weights == WHOLE] == 1).all()


def test_a_draw_depends_on_the_seed_the_position_and_the_crop_alone() -> None:
    mix = Mix(mixup=0.8, cutmix=1.0)
    first, again, seed, crop = (draws(mix, *which, count=50) for which in ((0, 0), (0, 0), (1, 0), (0, 1)))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    for other in (seed, crop):
        # The draws of the next position would be those of the next seed, or crop, if these were added up.
        assert (first[2] != other[2]).mean() > 0.9 and (first[2][1:] != other[2][:-1]).mean() > 0.9


def batch(values: np.ndarray, labels: list[int]) -> Crops:
    positions = np.stack([np.arange(7, 7 + len(labels)), np.zeros(len(labels))], 1)
    return Crops(tf.constant(values), tf.constant(labels, tf.int32), tf.constant(positions, tf.int64))


@pytest.mark.parametrize("mix", [Mix(mixup=1.0), Mix(cutmix=1.0), Mix(mixup=1.0, cutmix=1.0, prob=0.6)], ids=str)
def test_labels_are_the_shares_of_the_pixels(mix: Mix) -> None:
    """Crops of one level each show whose pixels are where."""
    levels, classes = np.array([0, 200, 40, 120], np.uint8), [2, 0, 2, 4]
    images = np.broadcast_to(levels[:, None, None, None], (4, *SHAPE, 3)).copy()
    run = tf.function(partial(mix_batch, mix=mix, classes=5), autograph=False)
    partners, kinds = np.roll(levels, 1), set()
    for seed in range(12):
        pixels, labels, positions, *_ = run(batch(images, classes), seed=seed)
        assert positions.numpy()[:, 0].tolist() == [7, 8, 9, 10]
        assert labels.dtype == tf.float32 and labels.shape == (4, 5)
        np.testing.assert_allclose(labels.numpy().sum(1), 1, atol=1e-6)
        share = labels.numpy()[1, 0]  # of crop 1, whose partner is of another class, as is crop 1's of crop 2
        np.testing.assert_allclose(labels.numpy()[2, [2, 0]], [share, 1 - share], atol=1e-6)
        np.testing.assert_allclose(labels.numpy()[0, [2, 4]], [share, 1 - share], atol=1e-6)
        means = pixels.numpy().mean((1, 2, 3))
        np.testing.assert_allclose(means, share * levels + (1 - share) * partners, atol=0.51)
        kinds.add("none" if share == 1 else "mixup" if len(np.unique(pixels[1])) == 1 else "cutmix")
    assert kinds == {
        "mixup" if mix.mixup else "cutmix",
        "cutmix" if mix.cutmix else "mixup",
        *(["none"] if mix.prob < 1 else []),
    }


def test_partners_of_one_class_leave_it_whole() -> None:
    labels = mix_labels(tf.constant([1, 1, 1]), 2, tf.constant(0.3))
    np.testing.assert_allclose(labels, [[0, 1]] * 3, atol=1e-7)
