"""The machine and its limit, measured by one thread that decodes and resizes files from memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.images.whole import DCT
from tfpipe.data.order.permutation import evenly_spaced
from tfpipe.data.runtime.parallelism import calls_at_once, thread_budget
from tfpipe.data.sources.packed.stored import ShardSplit
from tfpipe.data.split import Split, Stores
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.native import decoder_name, native
from tfpipe.tools.measure import Count
from tfpipe.util.resources import usable_cpus

LIMIT_IMAGES = 300


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement."""

    host_cpus: int
    cpus: int  # CPUs that this process may use
    threads: int  # threads of the input pipeline, without those that wait for storage
    reads: int  # images read at once; with AUTOTUNE, the most that it allows
    tensorflow: str
    decoder: str = ""  # name of the JPEG decoder; "": not known

    @classmethod
    def here(cls, data: DataConfig, world: World, stored: Stores | None = None) -> "Machine":
        """Describes this machine, as a pipeline of `data` uses it; `stored` is what the data's source stores."""
        threads, reads = thread_budget(data, world), calls_at_once(data, world).read or 1
        counts = world.threads or usable_cpus(), threads, threads if reads == tf.data.AUTOTUNE else reads
        return cls(os.cpu_count() or 1, *counts, tf.__version__, _decoder(data, stored) if stored else "")


def _decoder(data: DataConfig, stored: Stores) -> str:
    if stored == "pixels":
        return "none: the packed crops are pixels"
    if stored == "images" and not data.native:
        return 'TensorFlow\'s ops; data.decoder is "graph"'
    return decoder_name()


@dataclass(frozen=True)
class DecodeLimit:
    """Files that one thread decodes as a whole by libjpeg-turbo and resizes; packed crops are decoded or copied."""

    images: int  # files held in memory
    skipped: int  # files left out, since they cannot be decoded


def limit(split: Split) -> tuple[Iterator[Count], DecodeLimit]:
    """Returns an iterator that decodes and resizes complete files, over and over, or decodes or copies packed crops.

    Raises ConfigError if none of the files can be decoded.
    """
    config, library = split.config, native()
    height, width = config.crop_image_size
    kernel = library.kernels[config.resize]

    # Eager, so that the ops run in the calling thread.
    def work(file: bytes) -> object:
        if split.stores == "pixels":
            return bytearray(file)
        image = tf.io.decode_jpeg(file, config.num_channels, dct_method=DCT)
        if split.stores == "crops":
            return image
        window = [[0, 0, *image.shape[:2]]]
        with tf.device("CPU"):
            crop = tf.raw_ops.Empty(shape=[1, height, width, image.shape[2]], dtype=tf.uint8)
        return library.resize(image, window, tf.zeros(0, tf.bool), [0], crop, kernel=kernel)

    # Packed crops by their records, of which an image may have several; images as files, though stored otherwise.
    read: Callable[[int], bytes] = split.image
    total = len(split.catalog)
    if isinstance(split, ShardSplit) and split.stores != "images":
        read, total = split.shards.contents, len(split.shards.records.image)
    files = []
    numbers = evenly_spaced(total, min(LIMIT_IMAGES, total))  # over the list, which may be sorted by class
    for number in numbers:
        with suppress(OSError, ValueError, TfpipeError, tf.errors.OpError):
            file = read(number)
            work(file)
            files.append(file)
    if not files:
        raise ConfigError(f"none of {len(numbers)} images of {split.catalog.display_name} can be read and decoded")

    def repeat() -> Iterator[Count]:
        for done, file in enumerate(cycle(files), start=1):
            work(file)
            yield Count(done)

    return repeat(), DecodeLimit(len(files), len(numbers) - len(files))
