"""The rows of --containers: 128 records' bytes at random, by threads from Python, and nothing decoded.

Records of JPEGs become bytes; raw ones are written into a batch, where the container can.
"""

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from formats import HEAD, TAIL, write
from given import Given, Work
from peers import gathered

Records = tuple[Any, None]  # bytes, or uint8 [n, 224, 224, 3]
LABEL = 4  # bytes before what is in an ArrayRecord


def check(batches: Iterable[Records], given: Given) -> dict[str, float]:
    """That each record comes once.

    Raises:
        SystemExit: they do not.
    """
    found, raw = [], False
    for records, _ in batches:
        raw = raw or memoryview(records[0]).nbytes == given.pixels[0].nbytes
        found += [crc32(each) for each in records]
    expected = [crc32(given.pixels[item] if raw else given.jpeg(item)) for item in range(len(given))]
    if sorted(found) != sorted(expected):
        raise SystemExit(f"delivers {len(found)} records, of {len(expected)}; not the same")
    return {"crops": len(found)}


def arrayrecord(work: Work) -> Iterator[Records]:
    """Read by number, many at a call, without reading ahead."""
    from array_record.python.array_record_module import ArrayRecordReader

    path = write(work.given, "arrayrecord-raw" if work.raw else "arrayrecord") / "crops.array_record"
    reader = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:0")

    def gather(batch: np.ndarray, items: np.ndarray) -> Records:
        records = [memoryview(record)[LABEL:] for record in reader.read(items.tolist())]
        if not work.raw:
            return records, None
        for row, record in zip(batch.reshape(len(batch), -1), records, strict=True):
            row[:] = record
        return batch, None

    return gathered(work, gather)


def tfrecord(work: Work) -> Iterator[Records]:
    """By an index of our own of where each image is within its shard: a read each."""
    files, starts, lengths = _index(work)

    def gather(batch: np.ndarray, items: np.ndarray) -> Records:
        if not work.raw:
            return [os.pread(files[item], lengths[item], starts[item]) for item in items], None
        for row, item in zip(batch, items, strict=True):
            os.preadv(files[item], [row], starts[item])
        return batch, None

    return gathered(work, gather)


def tfrecord_map(work: Work) -> Iterator[Records]:
    """The same, out of memory maps."""
    files, starts, lengths = _index(work)
    maps = {file: np.frombuffer(mmap.mmap(file, 0, prot=mmap.PROT_READ), np.uint8) for file in set(files)}

    def gather(batch: np.ndarray, items: np.ndarray) -> Records:
        records = (maps[files[item]][starts[item] : starts[item] + lengths[item]] for item in items)
        if not work.raw:
            return [record.tobytes() for record in records], None
        for row, record in zip(batch.reshape(len(batch), -1), records, strict=True):
            row[:] = record
        return batch, None

    return gathered(work, gather)


def flat(work: Work) -> Iterator[Records]:
    """One file, and where each record starts: a read each."""
    given = work.given
    name = "pixels" if work.raw else "jpegs"
    file = os.open(given.folder / f"{name}.npy", os.O_RDONLY)
    head = os.fstat(file).st_size - getattr(given, name).nbytes
    starts = head + (np.arange(len(given)) * given.pixels[0].nbytes if work.raw else given.offsets)
    starts, lengths = starts.tolist(), np.diff(given.offsets).tolist()

    def gather(batch: np.ndarray, items: np.ndarray) -> Records:
        if not work.raw:
            return [os.pread(file, lengths[item], starts[item]) for item in items], None
        for row, item in zip(batch, items, strict=True):
            os.preadv(file, [row], starts[item])
        return batch, None

    return gathered(work, gather)


def npy(work: Work) -> Iterator[Records]:
    """One memory map."""
    given = work.given

    def gather(batch: np.ndarray, items: np.ndarray) -> Records:
        if not work.raw:
            return [given.jpeg(item) for item in items], None
        return np.take(given.pixels, items, axis=0, out=batch, mode="clip"), None

    return gathered(work, gather)


def _index(work: Work) -> tuple[list[int], list[int], list[int]]:
    """Of each record its file, and where in that the image starts, and its length."""
    folder: Path = write(work.given, "tfrecord-raw" if work.raw else "tfrecord")
    shards = sorted(path for path in folder.glob("*-of-*") if path.suffix != ".idx")
    files, starts, lengths = ([0] * len(work.given) for _ in range(3))
    for shard, path in enumerate(shards):
        file, content, place = os.open(path, os.O_RDONLY), path.read_bytes(), 0
        for item in range(shard, len(work.given), len(shards)):
            (size,) = struct.unpack_from("<Q", content, place)
            image = work.given.pixels[item].tobytes() if work.raw else work.given.jpeg(item)
            files[item], lengths[item] = file, len(image)
            starts[item] = content.index(image, place + HEAD)
            place += HEAD + size + TAIL
    return files, starts, lengths


ROWS: dict[str, Callable[[Work], Iterator[Records]]] = {
    each.__name__: each for each in (arrayrecord, tfrecord, tfrecord_map, flat, npy)
}
