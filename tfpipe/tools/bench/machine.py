"""The machine, and what it could do at most: one thread that decodes and resizes the same files from memory."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import simplejpeg
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.shards import Kind
from tfpipe.data.sources import where
from tfpipe.data.threads import calls_at_once, thread_budget
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.segments import Count

IMAGES = 300


@dataclass(frozen=True)
class Machine:
    """What it was measured on."""

    host_cpus: int
    cpus: int
    """This process's share."""
    threads: int
    """Of the input pipeline, that may keep a CPU busy."""
    reads: int
    """Images read at once."""
    tensorflow: str

    @classmethod
    def here(cls, data: DataConfig, world: World) -> "Machine":
        """This one, as a pipeline of `data` uses it."""
        cpus = world.threads or len(os.sched_getaffinity(0))
        threads = 1 if data.num_parallel_readers == 1 else thread_budget(data, world)
        return cls(os.cpu_count() or 1, cpus, threads, calls_at_once(data, world).read or 1, tf.__version__)


@dataclass(frozen=True)
class Limit:
    """What the one thread does: simplejpeg and OpenCV's bilinear resize; packed crops are decoded or copied."""

    images: int
    """Held in memory."""
    skipped: int
    """Files that it goes without, since simplejpeg does not read them."""


def limit(catalog: Catalog, config: DataConfig, images: int = IMAGES) -> tuple[Iterator[Count], Limit]:
    """Decodes some of the list's files whole and resizes them, over and over; or does what packed crops need.

    Raises:
        ConfigError: none of them can be decoded.
    """
    cv2.setNumThreads(1)
    of = len(catalog) if catalog.packed is None else len(catalog.packed.records.image)
    count = min(images, of)
    # From all over the list, which may be sorted by class.
    chosen = [number * of // count for number in range(count)]
    if catalog.packed is None:
        contents = [_contents(catalog.paths[number]) for number in chosen]
    else:
        contents = [catalog.packed.contents(number) for number in chosen]
    work = _worker(config, None if catalog.packed is None else catalog.packed.kind)
    files = [file for file in contents if _works(work, file)]
    if not files:
        raise ConfigError(f"none of {count} images of {where(config)} can be read and decoded")
    return _repeat(work, files), Limit(len(files), count - len(files))


def _worker(config: DataConfig, kind: Kind | None) -> Callable[[bytes], Any]:
    height, width = config.crop_image_size
    colorspace = "GRAY" if config.num_channels == 1 else "RGB"
    if kind == "crops":
        return partial(simplejpeg.decode_jpeg, colorspace=colorspace)
    if kind == "raw":
        return bytearray

    def work(file: bytes) -> Any:
        return cv2.resize(simplejpeg.decode_jpeg(file, colorspace), (width, height), interpolation=cv2.INTER_LINEAR)

    return work


def _repeat(work: Callable[[bytes], Any], files: list[bytes]) -> Iterator[Count]:
    done = 0
    while True:
        for file in files:
            work(file)
            done += 1
            yield Count(done)


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _works(work: Callable[[bytes], Any], file: bytes) -> bool:
    try:
        work(file)
    except ValueError:
        return False
    return True
