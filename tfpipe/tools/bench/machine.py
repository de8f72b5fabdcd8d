"""The machine, and what it could do at most: one thread that decodes and resizes the same files from memory."""

import importlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog import Catalog
from tfpipe.data.pipeline import thread_budget
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.segments import Count

IMAGES = 300
INSTALL = "pip install tfpipe[bench]"


@dataclass(frozen=True)
class Machine:
    """What it was measured on."""

    host_cpus: int
    cpus: int
    """This process's share."""
    threads: int
    """Of the input pipeline."""
    tensorflow: str

    @classmethod
    def here(cls, data: DataConfig, world: World) -> "Machine":
        """This one, as a pipeline of `data` uses it."""
        cpus = world.threads or len(os.sched_getaffinity(0))
        threads = 1 if data.num_parallel_readers == 1 else thread_budget(data, world) or cpus
        return cls(os.cpu_count() or 1, cpus, threads, tf.__version__)


@dataclass(frozen=True)
class Limit:
    """What the one thread does."""

    made_of: str
    """E.g. "simplejpeg + OpenCV resize"."""
    note: str
    """What makes it less than the limit, and what to do; "" for nothing."""
    images: int
    """Held in memory."""


def limit(catalog: Catalog, config: DataConfig, images: int = IMAGES) -> tuple[Iterator[Count], Limit]:
    """Decodes some of the list's files whole and resizes them, over and over.

    Raises:
        ConfigError: none of them can be decoded.
    """
    simplejpeg, cv2 = _find("simplejpeg"), _find("cv2")
    work = _worker(config, simplejpeg, cv2)
    count = min(images, len(catalog))
    # From all over the list, which may be sorted by class.
    paths = [catalog.paths[number * len(catalog) // count] for number in range(count)]
    files = [file for file in map(_contents, paths) if _works(work, file)]
    if not files:
        raise ConfigError(f"none of {count} images of {config.train_filelist} can be read and decoded")
    decoder = "simplejpeg" if simplejpeg else "Pillow"
    made_of = f"{decoder} + OpenCV resize" if cv2 else f"{decoder}, no resize"
    missing = [name for name, found in (("simplejpeg", simplejpeg), ("opencv-python-headless", cv2)) if not found]
    notes = [f"without {' and '.join(missing)}, so not the real limit; {INSTALL}"] if missing else []
    if len(files) < count:
        notes.append(f"over the {len(files)} of {count} files that {decoder} can decode; tfpipe index lists odd ones")
    return _repeat(work, files), Limit(made_of, "; ".join(notes), len(files))


def _worker(config: DataConfig, simplejpeg: ModuleType | None, cv2: ModuleType | None) -> Callable[[bytes], Any]:
    height, width = config.crop_image_size
    gray = config.num_channels == 1

    def decode(file: bytes) -> Any:
        if simplejpeg:
            return simplejpeg.decode_jpeg(file, colorspace="GRAY" if gray else "RGB")
        import numpy as np
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(file)).convert("L" if gray else "RGB"))

    if not cv2:
        return decode
    cv2.setNumThreads(1)
    return lambda file: cv2.resize(decode(file), (width, height), interpolation=cv2.INTER_LINEAR)


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
    except Exception:  # each decoder has errors of its own
        return False
    return True


def _find(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
