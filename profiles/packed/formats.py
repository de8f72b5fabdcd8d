"""Writes the crops in each format, in the peers' Python: formats.py GIVEN NAME...

A format is a folder next to the crops, and written once.
"""

import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from given import SIDE, Given

sys.path.append(str(Path(__file__).parents[1] / "compare"))
import beton

SHARDS = 8
HEAD, TAIL = 12, 4  # around a TFRecord, in bytes


def write(given: Given, name: str) -> Path:
    """The format's folder, whole; written if it is not there."""
    folder = given.folder / name
    if not folder.exists():
        partial = given.folder / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        kind, _, raw = name.partition("-")
        WRITERS[kind](given, partial, raw == "raw")
        partial.rename(folder)
    return folder


def ffcv(given: Given, folder: Path, raw: bool) -> None:
    """One .beton; the JPEGs as they are, where FFCV's field would compress pixels itself."""
    from ffcv.fields import RGBImageField

    class Jpegs(RGBImageField):
        def encode(self, destination, jpeg, malloc) -> None:
            destination["mode"], destination["height"], destination["width"] = 0, SIDE, SIDE
            destination["data_ptr"], storage = malloc(len(jpeg))
            storage[:] = np.frombuffer(jpeg, np.uint8)

    class Crops:
        def __len__(self) -> int:
            return len(given)

        def __getitem__(self, item: int) -> tuple[np.ndarray | bytes, int]:
            return given.pixels[item] if raw else given.jpeg(item), int(given.labels[item])

    image = RGBImageField(write_mode="raw") if raw else Jpegs()
    beton.write(str(folder / "crops.beton"), image, Crops())


def arrayrecord(given: Given, folder: Path, raw: bool) -> None:
    """One file, a record at a time and uncompressed, which is what random access is fastest with."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "crops.array_record"), "group_size:1,uncompressed")
    for item, label in enumerate(given.labels):
        writer.write(struct.pack("<i", label) + _image(given, item, raw))
    writer.close()


def tfrecord(given: Given, folder: Path, raw: bool) -> None:
    """Shards of tf.train.Example, each with DALI's index."""
    import tensorflow as tf

    for shard in range(SHARDS):
        path = folder / f"crops-{shard:05d}-of-{SHARDS:05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for item in range(shard, len(given), SHARDS):
                features = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[_image(given, item, raw)])),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[int(given.labels[item])])
                    ),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
        (folder / f"{path.name}.idx").write_text(_index(path))


def webdataset(given: Given, folder: Path, raw: bool) -> None:
    """Tar files, .jpg and .cls."""
    from webdataset import TarWriter

    for shard in range(SHARDS):
        with TarWriter(str(folder / f"crops-{shard:05d}.tar"), encoder=False) as writer:
            for item in range(shard, len(given), SHARDS):
                label = str(given.labels[item]).encode()
                writer.write({"__key__": f"{item:07d}", "jpg": _image(given, item, raw), "cls": label})


def mosaic(given: Given, folder: Path, raw: bool) -> None:
    """MDS, with the default size of shards."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as writer:
        for item, label in enumerate(given.labels):
            writer.write({"image": _image(given, item, raw), "label": int(label)})


def npy(given: Given, folder: Path, _: bool) -> None:
    """The pixels as they are."""
    os.link(given.folder / "pixels.npy", folder / "pixels.npy")
    os.link(given.folder / "labels.npy", folder / "labels.npy")


def bytes_each(folder: Path, count: int) -> float:
    """On disk, with indexes, of one of `count` crops."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / count


def _index(path: Path) -> str:
    """As DALI's tfrecord2idx writes it, which loads TensorFlow for every file: where each record starts, its size."""
    content, place, lines = path.read_bytes(), 0, []
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        size = HEAD + length + TAIL
        lines.append(f"{place} {size}\n")
        place += size
    return "".join(lines)


def _image(given: Given, item: int, raw: bool) -> bytes:
    return given.pixels[item].tobytes() if raw else given.jpeg(item)


Writer = Callable[[Given, Path, bool], None]
WRITERS: dict[str, Writer] = {each.__name__: each for each in (ffcv, arrayrecord, tfrecord, webdataset, mosaic, npy)}

if __name__ == "__main__":
    source = Given(Path(sys.argv[1]))
    for each in sys.argv[2:]:
        print(f"{each}: {bytes_each(write(source, each), len(source)):.0f}", flush=True)
