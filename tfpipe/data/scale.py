"""At what part of its size an image is decoded: libjpeg gives a half, a quarter or an eighth for less than the whole.

Each pixel then is the mean of 4, 16 or 64, so that a small crop aliases less than one resized from the whole. A scale
is counted in halvings of both sides, 0 to 3.
"""

import tensorflow as tf

MOST_HALVINGS = 3


def choose_halvings(windows: tf.Tensor, images: tf.Tensor, target: tuple[int, int]) -> tf.Tensor:
    """int32 [k]: how often the sides of each window's image can be halved with all its windows still `target` or more.

    All the windows, since an image is decoded once; so a crop's pixels may depend on what else its image gives.

    Args:
        windows: int32 [k, 4].
        images: int64 [k], number of each one's image, ascending.
        target: height and width of the crops.
    """
    times = tf.reduce_min(windows[:, 2:] // target, axis=1)
    times = tf.gather(tf.math.segment_min(times, images), images)
    return tf.reduce_sum(tf.cast(times[:, None] >= [2**each for each in range(1, MOST_HALVINGS + 1)], tf.int32), axis=1)


def halved(windows: tf.Tensor, halvings: tf.Tensor) -> tf.Tensor:
    """int32 [k, 4]: where the windows are in images whose sides are halved so often (int32 [k], or one for all).

    Edges go to the nearest pixel, so are off by half of one at most, which is half a pixel of the crop or less. To
    resize from edges between pixels would take other, slower ops in both decoders.
    """
    scale = tf.bitwise.left_shift(1, halvings)[..., None]
    low, high = ((edge + scale // 2) // scale for edge in (windows[:, :2], windows[:, :2] + windows[:, 2:]))
    return tf.concat([low, high - low], axis=1)
