"""The same pictures in every form that a source reads."""

import csv
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from tests.support.images import encoded, picture
from tests.support.trees import write_below
from tests.support.xmls import annotation
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.packed.examples import Example, serialize

CLASSES = ("bird", "cat", "dog")
HEIGHT, WIDTH = 24, 32
SMALL = {"crop_image_size": [16, 16], "batch_size": 4}


class Sample(NamedTuple):
    """A picture with its label and its boxes, in pixels: xmin, ymin, xmax, ymax."""

    label: str
    name: str
    file: bytes
    boxes: list[list[int]]


def samples(count: int = 24) -> list[Sample]:
    """Pictures in the order of their paths; every third has no box, the others one or two."""
    chosen = []
    for number in range(count):
        boxes = [[1 + number % 5, 2, 20, 12 + number % 7], [8, 3, 31, 23]][: number % 3]
        label = CLASSES[number * len(CLASSES) // count]
        chosen.append(Sample(label, f"{number:03}", encoded(picture(HEIGHT, WIDTH, number)), boxes))
    return chosen


def write_files(root: Path, chosen: list[Sample], images: str = "images") -> Path:
    """Writes root/images/CLASS/NAME.jpg and, for those with boxes, root/xmls/CLASS/NAME.xml."""
    write_below(root, {f"{images}/{one.label}/{one.name}.jpg": one.file for one in chosen})
    write_below(root, {f"xmls/{one.label}/{one.name}.xml": as_xml(one).encode() for one in chosen if one.boxes})
    return root / images


def as_xml(sample: Sample) -> str:
    objects = [(sample.label, (ymin, xmin, ymax, xmax)) for xmin, ymin, xmax, ymax in sample.boxes]
    return annotation(*objects, size=(HEIGHT, WIDTH))


def as_txt(sample: Sample) -> str:
    number = CLASSES.index(sample.label)
    return "".join(
        f"{number} {(x1 + x2) / 2 / WIDTH!r} {(y1 + y2) / 2 / HEIGHT!r} {(x2 - x1) / WIDTH!r} {(y2 - y1) / HEIGHT!r}\n"
        for x1, y1, x2, y2 in sample.boxes
    )


# The text of an annotation in each format, a key of formats.FORMATS.
ANNOTATIONS = {"voc": as_xml, "yolo": as_txt}


def write_csv(path: Path, chosen: list[Sample], images: Path) -> Path:
    """Writes a table with one row a box; an image without a box has a row without edges."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "width", "height", "xmin", "ymin", "xmax", "ymax"])
        for sample in chosen:
            for box in sample.boxes or [["", "", "", ""]]:
                rows.writerow([f"{images}/{sample.label}/{sample.name}.jpg", sample.label, WIDTH, HEIGHT, *box])
    return path


def as_table(chosen: list[Sample]) -> pa.Table:
    """A table with the images' bytes as Hugging Face's datasets writes them, class numbers, and lists of boxes."""
    names = {"info": {"features": {"label": {"names": list(CLASSES), "_type": "ClassLabel"}}}}
    schema = pa.schema(
        {
            "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            "label": pa.int64(),
            "width": pa.int32(),
            "height": pa.int32(),
            "boxes": pa.list_(pa.list_(pa.float32())),
        },
        {b"huggingface": json.dumps(names).encode()},
    )
    rows = {
        "image": [{"bytes": sample.file, "path": f"{sample.name}.jpg"} for sample in chosen],
        "label": [CLASSES.index(sample.label) for sample in chosen],
        "width": [WIDTH] * len(chosen),
        "height": [HEIGHT] * len(chosen),
        "boxes": [sample.boxes for sample in chosen],
    }
    return pa.table(rows, schema)


def write_parquet(path: Path, chosen: list[Sample]) -> Path:
    """Writes that table as Parquet, with several row groups and compressed."""
    pq.write_table(as_table(chosen), path, row_group_size=10, compression="snappy")
    return path


def write_arrow(path: Path, chosen: list[Sample], stream: bool = False, compression: str | None = None) -> Path:
    """Writes that table as an Arrow file, or stream."""
    table = as_table(chosen)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def write_coco(path: Path, chosen: list[Sample]) -> Path:
    """Writes COCO's JSON: annotations in another order than the images, numbers with gaps, and a crowd."""
    images, objects = [], []
    for number, sample in enumerate(chosen):
        name = f"{sample.label}/{sample.name}.jpg"
        images.append({"id": 100 + 7 * number, "file_name": name, "width": WIDTH, "height": HEIGHT})
        for xmin, ymin, xmax, ymax in sample.boxes:
            box = {"image_id": 100 + 7 * number, "category_id": 10 * (1 + CLASSES.index(sample.label))}
            objects.append({**box, "bbox": [xmin, ymin, xmax - xmin, ymax - ymin], "iscrowd": 0})
    objects.append({"image_id": 100, "category_id": 10, "bbox": [0, 0, 9, 9], "iscrowd": 1})
    categories = [{"id": 10 * (1 + number), "name": name} for number, name in reversed(list(enumerate(CLASSES)))]
    objects.sort(key=lambda entry: -entry["image_id"])
    path.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return path


def tar_bytes(members: Mapping[str, bytes] | Sequence[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    """Returns a tar file of these members, in their order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, contents in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return buffer.getvalue()


def write_tars(folder: Path, chosen: list[Sample], shards: int = 3, notes: str = "json") -> Path:
    """Writes WebDataset's shards, with labels and boxes as "json", or the label as .cls and the boxes as .xml."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        members = []
        for sample in chosen[shard * len(chosen) // shards : (shard + 1) * len(chosen) // shards]:
            if notes == "json":
                about = {"label": sample.label, "boxes": sample.boxes, "width": WIDTH, "height": HEIGHT}
                files = {"json": json.dumps(about).encode(), "jpg": sample.file}
            else:
                label = str(CLASSES.index(sample.label)).encode()
                files = {"jpg": sample.file, "cls": label, "xml": as_xml(sample).encode()}
            members += [(f"{sample.label}/{sample.name}.{ending}", file) for ending, file in files.items()]
        (folder / f"train-{shard:04}.tar").write_bytes(tar_bytes(members, tarfile.PAX_FORMAT))
    return folder


def write_tfrecords(folder: Path, chosen: list[Sample]) -> Path:
    """Writes TFRecords as the scripts of TensorFlow do, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / "train-00000-of-00001")) as writer:
        for sample in chosen:
            label = CLASSES.index(sample.label)
            boxes = np.float32(sample.boxes).reshape(-1, 4)[:, [1, 0, 3, 2]] / np.float32([HEIGHT, WIDTH] * 2)
            name, header = f"{sample.name}.jpg", header_of(sample.file, sample.name)
            labels = np.full(len(boxes), label)
            example = Example(sample.file, header, name, label, sample.label, sample.label, boxes, labels)
            writer.write(serialize(example))
    return folder
