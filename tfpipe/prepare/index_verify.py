"""Compares an annotation index with the files that it was made of, by their sizes and times of change."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.catalog.class_folders import SCAN_THREADS
from tfpipe.data.catalog.index import MAKE, STAMPS
from tfpipe.data.catalog.lists import index_path
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.index import CHUNK, MAX_ERRORS, PLAIN, check_indexed, images_of
from tfpipe.util.files import Stamp, stamp
from tfpipe.util.progress import progress


def verify_index(config: DataConfig, split: str) -> str:
    """Compares the images and XMLs of `split` with its index, without opening them; returns a message for the user.

    Raises TfpipeError if a file is missing, new, or of another size or time of change (the message names up to 20), and
    ConfigError if there is no index of the list, or the index does not hold its files' sizes and times.
    """
    check_indexed(config, split, World())
    loaded = load_split(config.model_copy(update=PLAIN | {"annotations": "index"}), split, World())
    catalog = loaded.catalog
    path, renew = index_path(config, config.filelist_for(split)), f"make it again with: {MAKE} {split}"
    if catalog.paths.remote:
        raise ConfigError(f"{path} is of URLs, whose sizes and times of change it does not hold")
    if not {*STAMPS} <= {*pq.read_schema(path).names}:
        raise ConfigError(
            f"{path} does not hold the sizes and times of its files: an earlier version wrote it, or `tfpipe stage` "
            f"copied it; {renew}"
        )
    # Every XML is looked for, so that a new one is noticed.
    has_folder = np.array([folder != "" for folder in catalog.annotation_folders])
    loaded = replace(loaded, catalog=replace(catalog, annotated=has_folder[catalog.paths.folder]))
    chunks = [range(start, min(start + CHUNK, len(catalog))) for start in range(0, len(catalog), CHUNK)]
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        found = pool.map(partial(_changes, loaded, pq.read_table(path, columns=list(STAMPS))), chunks)
        changes = list(chain.from_iterable(progress(found, len(chunks), f"comparing {split} data", "chunk")))
    if changes:
        count = f"{len(changes)} files of {len(catalog)} images are not as they were indexed"
        raise TfpipeError("\n  ".join([f"{path}: {count}; {renew}", *changes[:MAX_ERRORS]]))
    return f"{path}: the files of all {len(catalog)} images are as they were indexed"


def _changes(split: Split, stamps: pa.Table, items: range) -> list[str]:
    """Returns a message for each image or XML of `items` that differs from `stamps`."""
    images = images_of(split, None, items)
    size, changed, xml_size, xml_changed = (
        column.to_pylist() for column in stamps.slice(items.start, len(items)).columns
    )
    files = zip(images.paths + images.annotations, size + xml_size, changed + xml_changed, strict=True)
    return [_change(path, Stamp(*about), now) for path, *about in files if (now := stamp(path)) != tuple(about)]


def _change(path: str, before: Stamp, now: Stamp) -> str:
    if now.size is None or before.size is None:
        return f"{path} is {'missing' if now.size is None else 'new'}"
    if now.size != before.size:
        return f"{path} has {now.size} bytes, had {before.size}"
    return f"{path} has another time of change"
