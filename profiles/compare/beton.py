"""FFCV's files, .beton, and its loader: the peers' Python has it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

EPOCH_PASSES = 200  # at most


def write(path: str, image_field: Any, dataset: Any, workers: int = 1) -> None:
    """Writes a data set of images and labels, which has a length and items."""
    from ffcv.fields import IntField
    from ffcv.writer import DatasetWriter

    DatasetWriter(path, {"image": image_field, "label": IntField()}, num_workers=workers).from_indexed_dataset(dataset)


def batches(
    path: str, decoders: list[Any], passes: int, threads: int, batch: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields shuffled images and labels, uint8 [n, height, width, 3] and int64 [n, 1].

    It allocates its batches when an epoch begins, so many passes are one epoch. Later batches overwrite earlier ones: a
    caller who keeps one has to copy it.
    """
    from ffcv.fields import RGBImageField
    from ffcv.fields.decoders import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader

    fields = {"image": RGBImageField}  # or one that writes images in another way
    loader = Loader(
        path,
        batch_size=batch,
        num_workers=threads,
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(int(Reader(path, fields).num_samples)), min(passes, EPOCH_PASSES)),
        drop_last=False,
        pipelines={"image": decoders, "label": [IntDecoder()]},
        custom_fields=fields,
    )
    for _ in range(-(-passes // EPOCH_PASSES)):
        yield from loader
