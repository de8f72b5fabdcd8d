"""Masks, annotations that are PNGs: the class number of each pixel of an image, cut out and resized like it."""

import io
import os
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

if TYPE_CHECKING:
    import tensorflow as tf

# End of the masks' names.
SUFFIX = ".png"
# Byte of a PNG that has the bits of a pixel (PNG, 11.2.2), and by what Pillow multiplies gray levels of fewer than 8.
DEPTH, LEVELS = 24, {2: 85, 4: 17}
# Pillow's modes in which a pixel is one number: of a palette, a gray level, a bit.
MODES = ("P", "L", "1")
# The class of pixels that belong to no image; 255 stands for "void" in VOC, and is ignored in most losses.
VOID = 255


def read_mask(contents: bytes, size: tuple[int, int]) -> np.ndarray:
    """Returns the mask of an image of `size` (height, width), uint8 [height, width].

    A palette's colours are not looked at: its indices are the classes, as gray levels are, of 1 to 8 bits. Raises
    ValueError if it is no such PNG.
    """
    try:
        with Image.open(io.BytesIO(contents), formats=["PNG"]) as picture:
            if picture.mode not in MODES:
                raise ValueError(
                    f"received a PNG of mode {picture.mode}; accepted: one number of up to 8 bits for each pixel "
                    "(palette or gray levels), its class"
                )
            mask = np.asarray(picture).astype(np.uint8)
            if picture.mode == "L":
                mask //= LEVELS.get(contents[DEPTH], 1)
    except UnidentifiedImageError as error:
        raise ValueError("it is no PNG") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises
        raise ValueError(f"it is damaged: {error}") from error
    if mask.shape != size:
        raise ValueError("it has {} x {} pixels, and its image {} x {}".format(*mask.shape, *size))
    return mask


def cut_mask(mask: np.ndarray, window: np.ndarray, place: np.ndarray, target: tuple[int, int], fill: int) -> np.ndarray:
    """Returns uint8 [*target]: `window` of a mask, resized to `place` in the crop; both are top, left, height, width.

    Each pixel has the class of the nearest one, as Pillow's NEAREST finds it. The rest is `fill`; what is beyond the
    crop is cut off.
    """
    rows, columns = (
        start + nearest(side, length)
        for start, side, length in zip(window[:2].tolist(), window[2:].tolist(), place[2:].tolist(), strict=True)
    )
    top, left = place[:2].tolist()
    part = mask[rows[max(-top, 0) : target[0] - top]][:, columns[max(-left, 0) : target[1] - left]]
    crop = np.full(target, fill, np.uint8)
    crop[max(top, 0) :, max(left, 0) :][: part.shape[0], : part.shape[1]] = part
    return crop


def nearest(side: int, length: int) -> np.ndarray:
    """Returns int64 [length]: which of `side` pixels is nearest to each of `length`.

    Centres of pixels are summed up in float64, as Pillow does (ImagingScaleAffine in Geometry.c): where a centre is
    between two pixels, the sum's rounding decides.
    """
    steps = np.full(length, side / length)
    steps[0] *= 0.5
    return np.minimum(np.cumsum(steps).astype(np.int64), side - 1)


def cut_masks(
    masks: "tuple[tf.Tensor, tf.Tensor]",
    sizes: "tf.Tensor",
    images: "tf.Tensor",
    windows: "tuple[tf.Tensor, tf.Tensor]",
    target: tuple[int, int],
) -> "tf.Tensor":
    """Returns uint8 [k, *target]: the masks of crops, in graph, by a call of Python for each of the decoder.

    A mask of 500x375 takes 0.8 ms of CPU time to decode, which Pillow does without the GIL, and 0.15 ms to cut.

    Args:
        masks: the files, string [n], and their paths, string [n].
        sizes: int32 [n, 2], heights and widths of the images.
        images: int64 [k], number of each crop's image.
        windows: int32 [k, 4], the windows, and int32 [k, 4], where in the crop each is.
        target: height and width of a crop.

    Raises:
        tf.errors.InvalidArgumentError: a mask cannot be used; names it.
    """

    import tensorflow as tf

    def fill(
        files: np.ndarray,
        paths: np.ndarray,
        sizes: np.ndarray,
        images: np.ndarray,
        windows: np.ndarray,
        places: np.ndarray,
    ) -> tuple[np.ndarray, str]:
        crops = np.empty((len(images), *target), np.uint8)
        for number in np.unique(images).tolist():
            try:
                mask = read_mask(files[number], tuple(sizes[number].tolist()))
            except ValueError as error:
                return crops, f"{os.fsdecode(paths[number])}: {error}"
            for crop in np.flatnonzero(images == number).tolist():
                crops[crop] = cut_mask(mask, windows[crop], places[crop], target, VOID)
        return crops, ""

    crops, problem = tf.numpy_function(fill, [*masks, sizes, images, *windows], [tf.uint8, tf.string], stateful=False)
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        return tf.ensure_shape(crops, [None, *target])
