"""The rows that read each format in the peers' Python: batches of 128 shuffled crops, pixels and labels.

Each is a function of the crops, of whether they are raw, and of how many passes and threads. Of what a loader's
documentation offers, the fastest here is taken; profiles/peers.md says how.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from beton import batches
from formats import write
from given import BATCH, SIDE, Batch, Work, check, shuffles

SHAPE = (SIDE, SIDE, 3)
BUFFER = 1024  # crops that shuffle, where records are read one after the other
AHEAD = 4  # batches


def ffcv(work: Work) -> Iterator[Batch]:
    """Compiled loops over the batch; the file is a memory map."""
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder

    path = f"{_folder(work, 'ffcv')}/crops.beton"
    yield from batches(path, [SimpleRGBImageDecoder()], work.passes, work.threads, BATCH)


def grain(work: Work) -> Iterator[Batch]:
    """Reading threads, which decode too: simplejpeg releases the GIL."""
    from grain import MapDataset, ReadOptions
    from grain.sources import ArrayRecordDataSource

    def load(record: bytes) -> Batch:
        image = memoryview(record)[4:]
        pixels = np.frombuffer(image, np.uint8).reshape(SHAPE) if work.raw else simplejpeg.decode_jpeg(image)
        return pixels, np.frombuffer(record, "<i4", count=1)

    source = ArrayRecordDataSource(f"{_folder(work, 'arrayrecord')}/crops.array_record")
    options = ReadOptions(num_threads=work.threads, prefetch_buffer_size=AHEAD * BATCH)
    yield from MapDataset.source(source).shuffle(0).repeat(work.passes).map(load).to_iter_dataset(options).batch(BATCH)


def dali(work: Work) -> Iterator[Batch]:
    """Native threads; one of them reads, and shuffles in a buffer."""
    from nvidia.dali import fn, pipeline_def, tfrecord, types
    from nvidia.dali.data_node import DataNode

    shards = _shards(work)

    @pipeline_def(batch_size=BATCH, num_threads=work.threads, device_id=None, prefetch_queue_depth=2)
    def crops() -> tuple[DataNode, DataNode]:
        features = {
            "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
            "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        record = fn.readers.tfrecord(
            path=shards,
            index_path=[f"{shard}.idx" for shard in shards],
            features=features,
            random_shuffle=True,
            initial_fill=BUFFER,
        )
        image = record["image/encoded"]
        if work.raw:
            pixels = fn.reshape(image, shape=SHAPE)
        else:
            pixels = fn.decoders.image(image, device="cpu", output_type=types.RGB)
        return pixels, record["image/class/label"]

    pipeline, left = crops(), work.passes * len(work.given)
    pipeline.build()
    while left > 0:
        images, labels = (np.asarray(each.as_tensor()) for each in pipeline.run())
        yield images[:left], labels[:left]
        left -= len(images)


def tfdata(work: Work) -> Iterator[Batch]:
    """Shards in turn, a shuffle buffer, then parse and decode in parallel, as TensorFlow's guide to tf.data says."""
    import tensorflow as tf

    def load(record: Any) -> tuple[Any, Any]:
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_single_example(record, features)
        image = example["image/encoded"]
        pixels = tf.reshape(tf.io.decode_raw(image, tf.uint8), SHAPE) if work.raw else tf.io.decode_jpeg(image, 3)
        return tf.ensure_shape(pixels, SHAPE), example["image/class/label"]

    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = work.threads
    shards = tf.data.Dataset.from_tensor_slices(_shards(work))
    records = shards.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = records.shuffle(BUFFER).repeat(work.passes).map(load, num_parallel_calls=tf.data.AUTOTUNE)
    yield from dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE).with_options(options).as_numpy_iterator()


def webdataset(work: Work) -> Iterator[Batch]:
    """Worker processes, each with its share of the tar files, which make whole batches."""
    from webdataset import WebDataset, WebLoader

    tars = sorted(str(path) for path in _folder(work, "webdataset").glob("*.tar"))
    dataset = (
        WebDataset(tars, shardshuffle=len(tars))
        .repeat(work.passes)
        .shuffle(BUFFER)
        .to_tuple("jpg", "cls")
        .map_tuple(simplejpeg.decode_jpeg, int)
        .batched(BATCH)
    )
    yield from WebLoader(dataset, batch_size=None, num_workers=work.threads)


def mosaic(work: Work) -> Iterator[Batch]:
    """Worker processes, each with its share of the samples."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch import from_numpy, tensor
    from torch.utils.data import DataLoader

    class Crops(StreamingDataset):
        def __getitem__(self, item: int) -> tuple[np.ndarray, int]:
            sample = super().__getitem__(item)
            return simplejpeg.decode_jpeg(sample["image"]), sample["label"]

    def collate(samples: list[tuple[np.ndarray, int]]) -> tuple[Any, Any]:
        images, labels = zip(*samples, strict=True)
        return from_numpy(np.stack(images)), tensor(labels)

    clean_stale_shared_memory()  # a process that was killed leaves its own
    dataset = Crops(local=str(_folder(work, "mosaic")), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=work.threads, collate_fn=collate, persistent_workers=True
    )
    for _ in range(work.passes):
        yield from loader


def npy(work: Work) -> Iterator[Batch]:
    """One memory map; each thread gathers a whole batch, into buffers that are used again."""
    folder = _folder(work, "npy")
    pixels, labels = np.load(folder / "pixels.npy", "r"), np.load(folder / "labels.npy")

    def gather(buffer: np.ndarray, items: np.ndarray) -> Batch:
        # The mode "raise" would copy the buffer.
        return np.take(pixels, items, axis=0, out=buffer, mode="clip"), labels[items]

    return gathered(work, gather)


def gathered(work: Work, gather: Callable[[np.ndarray, np.ndarray], Any]) -> Iterator[Any]:
    """What `gather` makes of a buffer, uint8 [n, 224, 224, 3], and n item numbers; each thread has a whole batch."""
    buffers = [np.empty((BATCH, *SHAPE), np.uint8) for _ in range(AHEAD + 2)]
    with ThreadPoolExecutor(work.threads) as pool:
        ahead: deque[Future[Any]] = deque()
        for slot, items in enumerate(shuffles(len(work.given), work.passes)):
            ahead.append(pool.submit(gather, buffers[slot % len(buffers)][: len(items)], items))
            if len(ahead) > AHEAD:
                yield ahead.popleft().result()
        yield from (each.result() for each in ahead)


def _folder(work: Work, kind: str) -> Path:
    return write(work.given, f"{kind}-raw" if work.raw else kind)


def _shards(work: Work) -> list[str]:
    return sorted(str(path) for path in _folder(work, "tfrecord").glob("*-of-*") if path.suffix != ".idx")


__all__ = ["ROWS", "check"]

ROWS: dict[str, Callable[[Work], Iterator[Batch]]] = {
    each.__name__: each for each in (ffcv, grain, dali, tfdata, webdataset, mosaic, npy)
}
