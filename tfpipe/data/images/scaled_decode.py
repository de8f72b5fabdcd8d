"""Chooses the scale at which a JPEG is decoded: libjpeg decodes to 1/2, 1/4 or 1/8 of the size in less time.

Each pixel is then the mean of 4, 16 or 64, so a small crop aliases less than one resized from the full size. A scale is
given as `scale_log2`, the number of times that both sides are halved, 0 to 3.
"""

import tensorflow as tf

MAX_SCALE_LOG2 = 3


def choose_scale(windows: tf.Tensor, images: tf.Tensor, target: tuple[int, int]) -> tf.Tensor:
    """Returns int32 [k]: how often an image's sides can be halved so that all its windows are still at least `target`.

    An image is decoded once for all its windows, so a crop's pixels may depend on the image's other crops. `windows`
    (int32 [k, 4]) are in pixels of the full-size images; `images` (int64 [k]), ascending, are the numbers of their
    images; `target` is the height and width of the crops.
    """
    times = tf.reduce_min(windows[:, 2:] // target, axis=1)
    times = tf.gather(tf.math.segment_min(times, images), images)
    return tf.reduce_sum(
        tf.cast(times[:, None] >= [2**step for step in range(1, MAX_SCALE_LOG2 + 1)], tf.int32), axis=1
    )


def scaled_windows(windows: tf.Tensor, scale_log2: tf.Tensor) -> tf.Tensor:
    """Returns int32 [k, 4]: the windows in images whose sides are halved `scale_log2` times (int32 [k], or [] for all).

    Edges are rounded to the nearest pixel, an error of at most half a pixel of the crop. Resizing from fractional edges
    would need other, slower ops in both decoders.
    """
    scale = tf.bitwise.left_shift(1, scale_log2)[..., None]
    low, high = ((edge + scale // 2) // scale for edge in (windows[:, :2], windows[:, :2] + windows[:, 2:]))
    return tf.concat([low, high - low], axis=1)
