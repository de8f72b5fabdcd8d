"""Writes the input of each cell of the matrix of sources."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from tests.support.routes import HEIGHT, SMALL, WIDTH, Sample, as_xml, samples, tar_bytes
from tests.support.source_matrix import KINDS
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.images.headers import Header
from tfpipe.data.sources.packed.examples import Example, serialize
from tfpipe.prepare.pack import PackPlan, pack

NAMES = ("bird", "cat", "dog", "emu")
# All files have one length, so that two can change places.
LENGTH = 2_000
SIZE = {"width": WIDTH, "height": HEIGHT}


def padded(sample: Sample) -> Sample:
    """Appends a comment to the JPEG, before its end."""
    file = sample.file
    gap = LENGTH - len(file) - 4
    return sample._replace(file=file[:-2] + b"\xff\xfe" + (gap + 2).to_bytes(2, "big") + b" " * gap + file[-2:])


TRAIN = [padded(sample) for sample in samples(15) if sample.boxes][:9]
TEST = [padded(samples(45)[number]) for number in (14, 17, 31)]


class Written:
    """The data of a source below a folder; written again, it replaces what was there."""

    def __init__(self, source: str, root: Path, url: str) -> None:
        """`url` is where the folder is served."""
        self.source, self.root, self.url = source, root, url
        self.label = "label"
        """Name of the column of labels."""
        self.unsized = ""
        """Name of the image whose boxes are without its size."""
        self.names = {"train": "train", "test": "test"}
        """Beginnings of the files' names, or names of folders."""
        self.together = False
        """Both splits in one folder, told apart by their names."""

    def write(self, train: list[Sample] = TRAIN, test: list[Sample] = TEST) -> dict[str, Any]:
        """Writes both splits; returns the `data` section."""
        for split, chosen in (("train", train), ("test", test)):
            WRITERS[self.source](self, split, chosen)
        return {**SMALL, **self._config()}

    def path(self, split: str) -> Path:
        """The file or folder that the config names for a split."""
        if self.source in ("filelist", "url"):
            return self.root / f"{split}.txt"
        ending = {"csv": ".csv", "parquet": ".parquet", "coco": ".json", "tar": ".tar"}.get(self.source, "")
        return self.root / "data" / f"{self.names[split]}{ending}"

    def container(self) -> Path:
        if self.source == "tfrecord":
            return self.root / "data/train-00000-of-00001"
        return self.root / "packed/train-00000-of-00001" if self.source == "packed" else self.path("train")

    def image(self, sample: Sample) -> Path:
        folder = self.path("train") if self.source == "folders" else self.root / "images"
        return folder / sample.label / f"{sample.name}.jpg"

    def _config(self) -> dict[str, Any]:
        if self.source in ("filelist", "url"):
            lists = {f"{split}_filelist": str(self.path(split)) for split in ("train", "test")}
            return {**lists, "layout": {"images": "images", "annotations": "xmls"}}
        kind = KINDS.get(self.source, self.source)
        if self.source == "packed":
            return {"source": {"kind": kind, "path": str(self.root / "packed")}}
        if self.source in ("folders", "tfrecord") or self.together:
            about = {"kind": kind, "path": str(self.root / "data")}
        else:
            about = {"kind": kind, "path": str(self.path("train")), "test_path": str(self.path("test"))}
        if self.source in ("csv", "coco"):
            about["images"] = str(self.root / "images")
        return {"source": about}

    def files(self, chosen: list[Sample], folder: str = "images", xmls: bool = False) -> None:
        """Writes the images as files, and their XMLs."""
        for sample in chosen:
            for name, ending, contents in ((folder, "jpg", sample.file), ("xmls", "xml", self.xml(sample))):
                if ending == "jpg" or xmls:
                    path = self.root / name / sample.label / f"{sample.name}.{ending}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(contents)

    def xml(self, sample: Sample) -> bytes:
        text = as_xml(sample)
        return (text if sample.name != self.unsized else re.sub("<size>.*</size>", "", text)).encode()


def _filelist(data: Written, split: str, chosen: list[Sample]) -> None:
    data.files(chosen, xmls=True)
    base = data.url if data.source == "url" else str(data.root)
    paths = [f"images/{sample.label}/{sample.name}.jpg" for sample in chosen]
    lines = [f"{base}/{quote(path) if data.source == 'url' else path}\n" for path in paths]
    data.path(split).write_text("".join(lines))


def _folders(data: Written, split: str, chosen: list[Sample]) -> None:
    data.files(chosen, f"data/{data.names[split]}")


def _csv(data: Written, split: str, chosen: list[Sample]) -> None:
    """One row a box if there is an image without its size, else one row an image and no boxes."""
    data.files(chosen)
    data.path(split).parent.mkdir(exist_ok=True)
    edges = ["width", "height", "xmin", "ymin", "xmax", "ymax"] if data.unsized else []
    with data.path(split).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", data.label, *edges])
        for sample in chosen:
            size = ["", ""] if sample.name == data.unsized else [WIDTH, HEIGHT]
            for box in [[*size, *box] for box in sample.boxes] if data.unsized else [[]]:
                rows.writerow([f"{sample.label}/{sample.name}.jpg", sample.label, *box])


def _parquet(data: Written, split: str, chosen: list[Sample]) -> None:
    data.path(split).parent.mkdir(exist_ok=True)
    sized = [sample.name != data.unsized for sample in chosen]
    size = {name: [value if known else None for known in sized] for name, value in SIZE.items()}
    boxes = pa.array([sample.boxes for sample in chosen], pa.list_(pa.list_(pa.float32())))
    labels = pa.array([sample.label or None for sample in chosen], pa.string())
    images = [{"bytes": sample.file, "path": f"{sample.name}.jpg"} for sample in chosen]
    table = pa.table({"image": images, data.label: labels, "boxes": boxes, **size})
    pq.write_table(table, data.path(split), compression="none")


def _coco(data: Written, split: str, chosen: list[Sample]) -> None:
    data.files(chosen)
    data.path(split).parent.mkdir(exist_ok=True)
    images, objects = [], []
    for number, sample in enumerate(chosen):
        size = {} if sample.name == data.unsized else SIZE
        images.append({"id": number, "file_name": f"{sample.label}/{sample.name}.jpg", **size})
        for xmin, ymin, xmax, ymax in sample.boxes if sample.label else []:
            box = [xmin, ymin, xmax - xmin, ymax - ymin]
            objects.append({"image_id": number, "category_id": NAMES.index(sample.label), "bbox": box, "iscrowd": 0})
    known = sorted({sample.label for sample in chosen if sample.label} | set(NAMES[:3]))
    categories = [{"id": NAMES.index(name), "name": name} for name in known]
    data.path(split).write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))


def _tar(data: Written, split: str, chosen: list[Sample]) -> None:
    data.path(split).parent.mkdir(exist_ok=True)
    members = []
    for sample in chosen:
        about = {data.label: sample.label, "boxes": sample.boxes}
        about |= {} if sample.name == data.unsized else SIZE
        members += [(f"{sample.name}.jpg", sample.file), (f"{sample.name}.json", json.dumps(about).encode())]
    data.path(split).write_bytes(tar_bytes(members))


def _tfrecord(data: Written, split: str, chosen: list[Sample]) -> None:
    (data.root / "data").mkdir(exist_ok=True)
    name = {"train": "train", "test": "validation"}[split]
    with tf.io.TFRecordWriter(str(data.root / f"data/{name}-00000-of-00001")) as writer:
        for sample in chosen:
            label = NAMES.index(sample.label) if sample.label else -1
            boxes = np.float32(sample.boxes)[:, [1, 0, 3, 2]]
            boxes = boxes if data.unsized else boxes / np.float32([HEIGHT, WIDTH] * 2)
            about = Header(HEIGHT, WIDTH, 3, "JPEG"), f"{sample.name}.jpg", label, sample.label, sample.label
            example = tf.train.Example.FromString(
                serialize(Example(sample.file, *about, boxes, np.full(len(boxes), label)))
            )
            for side in ("height", "width") if sample.name == data.unsized else ():
                del example.features.feature[f"image/{side}"]
            writer.write(example.SerializeToString())


def _packed(data: Written, split: str, chosen: list[Sample]) -> None:
    listed = Written("filelist", data.root / "unpacked", "")
    listed.root.mkdir(exist_ok=True)
    config = make_config({"data": listed.write(chosen if split == "train" else TRAIN, chosen)}).data
    pack(config, split, data.root / "packed", PackPlan("original", 1), World())


WRITERS: dict[str, Callable[[Written, str, list[Sample]], None]] = {
    "filelist": _filelist,
    "url": _filelist,
    "folders": _folders,
    "csv": _csv,
    "parquet": _parquet,
    "coco": _coco,
    "tar": _tar,
    "tfrecord": _tfrecord,
    "packed": _packed,
}
