"""Decoders: the one in C, which decodes several images per call, or TensorFlow's own ops; C resizes either's pixels."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.crops import ALL, Windows
from tfpipe.data.images.damage import FEWER_SCANS, JPEG, MOST_SCANS, RAISE_IT, SCAN, TOO_MANY_PIXELS, TOO_MANY_SCANS
from tfpipe.data.images.whole import Decoding, decode_image, image_sizes
from tfpipe.data.images.windows import Target, target_of
from tfpipe.native import native

# Images per call: half as many take 2 % more time, twice as many save none.
NATIVE_IMAGES = 32
# A batch of up to so many is decoded in one call: if each gives one crop, the batch needs no copy. To write it in parts
# would take 6 % more.
MOST_OF_A_CALL = 64


class EncodedImages(NamedTuple):
    """n encoded images."""

    contents: tf.Tensor  # string [n]
    entries: tf.Tensor | None = None  # string [n]: their entry points, "" for none; None: none has any


class Cuts(NamedTuple):
    """The k crops that are wanted of n encoded images."""

    images: EncodedImages
    sizes: tf.Tensor  # int32 [n, 2]: height, width
    windows: Windows
    flips: tf.Tensor  # bool [k]: which to mirror; with `data.views` [k, views]; [0] for none


class Decoder(NamedTuple):
    """Functions that make crops from encoded images."""

    images: int
    """Number of images per call."""
    write: Callable[[Any, tf.Tensor, Cuts], Any]
    """(crops (uint8 [k, height, width, channels]; with `data.views` a tuple of them, by view), which of them to write
    (int64 [2]: the first and their end; or [0]: all), what they are) -> the same crops, in the same memory."""
    sizes: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    """(images (string [n]), their sizes (int32 [n, 2]: height, width; 0: unknown)) -> sizes, all known."""
    empty: Callable[[tf.Tensor], Any]
    """(number of crops) -> memory for them, as `write` takes it, with any content."""

    def decode(self, images: EncodedImages, sizes: tf.Tensor, windows: Windows, flips: tf.Tensor) -> Any:
        """Returns the crops that `Cuts` of these have."""
        return self.write(self.empty(tf.size(windows.images)), ALL, Cuts(images, sizes, windows, flips))


def choose_decoder(config: DataConfig, split: str = "train") -> Decoder:
    """Returns the decoder set by `data.decoder`, for the crops of `split` ("train" or "test")."""
    how, targets = Decoding.of(config), [target_of(view, split) for view in config.by_view]
    write, sizes = _write(config, targets, how), partial(_sizes_within, most=config.max_pixels, how=how)

    def empty(count: tf.Tensor) -> Any:
        # Not tf.zeros: it takes time, and TensorFlow may make one constant of those of all calls.
        crops = [tf.raw_ops.Empty(shape=[count, *t.size, config.num_channels], dtype=tf.uint8) for t in targets]
        return tuple(crops) if config.views else crops[0]

    images = config.batch_size if NATIVE_IMAGES < config.batch_size <= MOST_OF_A_CALL else NATIVE_IMAGES
    return Decoder(images if config.native else 1, write, sizes, empty)


def _sizes_within(images: tf.Tensor, sizes: tf.Tensor, most: int, how: Decoding) -> tf.Tensor:
    """Returns int32 [n, 2] as image_sizes; an image of more than `most` pixels is an error."""
    actual = image_sizes(images, sizes, how)
    largest = tf.reduce_max(tf.reduce_prod(tf.cast(actual, tf.int64), axis=1))
    with tf.control_dependencies([_at_most(largest, most, TOO_MANY_PIXELS, RAISE_IT)]):
        return tf.identity(actual)


def _with_few_scans(image: tf.Tensor) -> tf.Tensor:
    """Returns an image (string []); a JPEG of more than MOST_SCANS scans is an error.

    The decoder in C refuses such a JPEG by the scans of its image alone, which are at most those counted here: so it
    is an error either way.
    """
    scans = tf.size(tf.strings.split(image, SCAN)) - 1
    is_jpeg = tf.equal(tf.strings.substr(image, 0, len(JPEG)), JPEG)
    with tf.control_dependencies([_at_most(tf.where(is_jpeg, scans, 0), MOST_SCANS, TOO_MANY_SCANS, FEWER_SCANS)]):
        return tf.identity(image)


def _at_most(number: tf.Tensor, most: int, complaint: str, remedy: str) -> tf.Operation:
    message = tf.strings.join([tf.strings.as_string(number), f"{complaint}{most}{remedy}"])
    return tf.debugging.Assert(tf.cast(number, tf.int64) <= most, [message])


def _write(config: DataConfig, targets: list[Target], how: Decoding) -> Callable[[Any, tf.Tensor, Cuts], Any]:
    """Returns Decoder.write, which decodes, in one op for all images, only the parts of JPEGs that their windows need.

    The images that the op refuses are decoded as a whole, as decode_image does: kinds of JPEG that it does not know,
    other formats, and damage, so that damage anywhere in a file is an error, with TensorFlow's message. With
    `data.decoder` "graph" these are all images. The pixels are cut and resized in C, too.

    The crops are changed where they are, whatever else refers to them: so several calls may write those of a batch.
    """
    channels, library, views = config.num_channels, native(), len(targets)
    kernel = library.kernels[config.resize]
    numbers = [number for target in targets for number in (*target.size, target.level, *target.cover)]
    of_jpegs: dict[str, Any] = {"targets": numbers, "channels": channels, "kernel": kernel}
    of_jpegs |= {"scans": MOST_SCANS, "turn": int(how.turn)}

    def write_jpegs(crops: list[tf.Tensor], span: tf.Tensor, cuts: Cuts) -> Any:
        """Returns the crops by view, and the numbers (int64 [m]) of images that are still to be decoded."""
        images, sizes, windows, flips = cuts
        if not config.native:
            return tuple(crops), windows.images  # `span` is ALL: only the decoder in C has batches of several calls
        entries = tf.zeros(0, tf.string) if images.entries is None else images.entries
        places, flips = tf.reshape(windows.windows, [-1, 4 * views]), tf.reshape(flips, [-1])
        jpegs = images.contents, entries, sizes, windows.images, places, flips
        written, refused = library.crops(*jpegs, span, crops, **of_jpegs)
        return _as_before(written, crops), tf.where(tf.ensure_shape(refused, [None]))[:, 0]

    def write(crops: Any, span: tf.Tensor, cuts: Cuts) -> Any:
        memory, (images, _, windows, flips) = crops if config.views else (crops,), cuts
        written, others = write_jpegs(list(memory), span, cuts)
        by_view, mirrored = tf.reshape(windows.windows, [-1, views, 4]), flips.shape[0] != 0

        def replace(crops: tuple[tf.Tensor, ...], image: tf.Tensor) -> tuple[tf.Tensor, ...]:
            rows = tf.where(tf.equal(windows.images, image))[:, 0]
            pixels = decode_image(_with_few_scans(images.contents[image]), channels, how)
            places, flip = tf.gather(by_view, rows), [flips] * views
            if mirrored:
                flip = tf.unstack(tf.gather(tf.reshape(flips, [-1, views]), rows), views, axis=1)
            cut = [(pixels, places[:, view], flip[view], rows, crops[view]) for view in range(views)]
            new = (
                library.resize(*each, level=t.level, cover_height=t.cover[0], cover_width=t.cover[1], kernel=kernel)
                for each, t in zip(cut, targets, strict=True)
            )
            return _as_before(new, crops)

        def replace_all() -> tuple[tf.Tensor, ...]:
            # One after the other: each may take hundreds of megabytes, and other calls decode at the same time.
            return tf.foldl(replace, tf.unique(others)[0], written, parallel_iterations=1)

        crops = tf.cond(tf.size(others) > 0, replace_all, lambda: written)
        return crops if config.views else crops[0]

    return write


def _as_before(written: Iterable[tf.Tensor], crops: Iterable[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """Returns crops that an op has written, with the shapes that they had."""
    return tuple(tf.ensure_shape(new, old.shape) for new, old in zip(written, crops, strict=True))
