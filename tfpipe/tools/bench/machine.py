"""The machine and its limit, measured by one thread that decodes and resizes files from memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.windows import DCT, resize
from tfpipe.data.order.sampling import evenly_spaced
from tfpipe.data.runtime.parallelism import calls_at_once, thread_budget
from tfpipe.data.sources.source import Stores
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.native import decoder_name, native
from tfpipe.tools.bench.segments import Count

IMAGES = 300


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement."""

    host_cpus: int
    cpus: int  # CPUs that this process may use
    threads: int  # threads of the input pipeline, without those that wait for storage
    reads: int  # images read at once; with AUTOTUNE, the most that it allows
    tensorflow: str
    decoder: str = ""  # name of the JPEG decoder, and the reason if it is not tfpipe's own; "": not known

    @classmethod
    def here(cls, data: DataConfig, world: World, stored: Stores | None = None) -> "Machine":
        """Describes this machine, as a pipeline of `data` uses it; `stored` is what the data's source stores."""
        cpus = world.threads or len(os.sched_getaffinity(0))
        threads = thread_budget(data, world)
        reads, decoder = calls_at_once(data, world).read or 1, _decoder(data, stored) if stored else ""
        reads = threads if reads == tf.data.AUTOTUNE else reads
        return cls(os.cpu_count() or 1, cpus, threads, reads, tf.__version__, decoder)


def _decoder(data: DataConfig, stored: Stores) -> str:
    if stored == "pixels":
        return "none: the packed crops are pixels"
    if stored == "images" and not data.native:
        return f'TensorFlow\'s ops; data.decoder is "{data.decoder}", data.resize "{data.resize}"'
    return decoder_name()


class Memory(NamedTuple):
    """Bytes that this rank shares with no other process."""

    before: int  # before the list was read, with TensorFlow imported
    after: int  # after all measurements


@dataclass(frozen=True)
class DecodeLimit:
    """Files that one thread decodes as a whole by libjpeg-turbo and resizes; packed crops are decoded or copied."""

    images: int  # files held in memory
    skipped: int  # files left out, since they cannot be decoded


def limit(catalog: Catalog, config: DataConfig, images: int = IMAGES) -> tuple[Iterator[Count], DecodeLimit]:
    """Returns an iterator that decodes and resizes complete files, over and over, or decodes or copies packed crops.

    Raises ConfigError if none of the files can be decoded.
    """
    total = catalog.source.records(catalog)
    count = min(images, total)
    chosen = evenly_spaced(total, count)  # over the list, which may be sorted by class
    work = _worker(config, catalog.source.stores)
    files = list(_usable(work, catalog, chosen))
    if not files:
        raise ConfigError(f"none of {count} images of {catalog.source.place} can be read and decoded")
    return _repeat(work, files), DecodeLimit(len(files), count - len(files))


def _worker(config: DataConfig, stored: Stores) -> Callable[[bytes], Any]:
    target, library = config.crop_image_size, native()
    if stored == "pixels":
        return bytearray

    # Eager, so that the ops run in the calling thread.
    def work(file: bytes) -> Any:
        image = tf.io.decode_jpeg(file, config.num_channels, dct_method=DCT)
        if stored == "crops":
            return image
        if library is None:
            return resize(image, target)
        window = [[0, 0, *image.shape[:2]]]
        return library.resize(image, window, tf.zeros(0, tf.bool), height=target[0], width=target[1])

    return work


def _repeat(work: Callable[[bytes], Any], files: list[bytes]) -> Iterator[Count]:
    done = 0
    while True:
        for file in files:
            work(file)
            done += 1
            yield Count(done)


def _usable(work: Callable[[bytes], Any], catalog: Catalog, numbers: list[int]) -> Iterator[bytes]:
    """Yields the contents of those records that can be read and worked on."""
    for number in numbers:
        with suppress(OSError, ValueError, TfpipeError, tf.errors.OpError):
            file = catalog.source.record(catalog, number)
            work(file)
            yield file
