"""The same images of a training and a test split, in every form that a source reads."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.routes import SMALL, Sample, as_table, write_coco, write_files, write_tars, write_tfrecords
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.packed.manifest import PREFIX
from tfpipe.data.sources.packed.shards import Kind
from tfpipe.prepare.pack import PackPlan, pack

SPLITS = ("train", "test")


def write_source(kind: str, root: Path, train: list[Sample], test: list[Sample] = ()) -> dict[str, Any]:
    """Writes the samples below `root`; returns the `data` section. Without `test`, there is no test data."""
    root.mkdir(parents=True, exist_ok=True)
    splits = dict(zip(SPLITS[: 2 if test else 1], (list(train), list(test)), strict=False))
    return {**SMALL, **WRITERS[kind](root, splits)}


def _listed(root: Path, splits: dict[str, list[Sample]]) -> dict[str, Any]:
    for split, chosen in splits.items():
        images = write_files(root, chosen)
        lines = [f"{images}/{sample.label}/{sample.name}.jpg\n" for sample in chosen]
        (root / f"{split}.txt").write_text("".join(lines))
    lists = {f"{split}_filelist": str(root / f"{split}.txt") for split in splits}
    return {**lists, "layout": {"images": "images", "annotations": "xmls"}}


def _folders(root: Path, splits: dict[str, list[Sample]]) -> dict[str, Any]:
    for split, chosen in splits.items():
        write_files(root, chosen, f"images/{split}")
    return {"source": {"kind": "folders", "path": str(root / "images")}}


def _source(kind: str, splits: dict[str, list[Sample]], paths: dict[str, Path], **more: Any) -> dict[str, Any]:
    keys = {"train": "path", "test": "test_path"}
    return {"source": {"kind": kind, **{keys[split]: str(paths[split]) for split in splits}, **more}}


def _csv(root: Path, splits: dict[str, list[Sample]]) -> dict[str, Any]:
    """A table of paths, with one row an image and no boxes."""
    for split, chosen in splits.items():
        images = write_files(root, chosen)
        with (root / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "label"])
            rows.writerows([f"{images}/{sample.label}/{sample.name}.jpg", sample.label] for sample in chosen)
    return _source("table", splits, {split: root / f"{split}.csv" for split in splits})


def _parquet(root: Path, splits: dict[str, list[Sample]], named: bool = True) -> dict[str, Any]:
    for split, chosen in splits.items():
        table = as_table(chosen)
        if not named:
            files = pa.array([sample.file for sample in chosen], pa.binary())
            table = table.set_column(0, "image", files)
        pq.write_table(table, root / f"{split}.parquet", row_group_size=10)
    return _source("table", splits, {split: root / f"{split}.parquet" for split in splits})


def _coco(root: Path, splits: dict[str, list[Sample]]) -> dict[str, Any]:
    for split, chosen in splits.items():
        write_files(root, chosen)
        write_coco(root / f"{split}.json", chosen)
    paths = {split: root / f"{split}.json" for split in splits}
    return _source("coco", splits, paths, images=str(root / "images"))


def _tar(root: Path, splits: dict[str, list[Sample]]) -> dict[str, Any]:
    for split, chosen in splits.items():
        write_tars(root / split, chosen, 2)
    return _source("webdataset", splits, {split: root / split for split in splits})


def _tfrecord(root: Path, splits: dict[str, list[Sample]]) -> dict[str, Any]:
    for split, chosen in reversed(splits.items()):
        write_tfrecords(root, chosen)
        if split == "test":
            (root / "train-00000-of-00001").rename(root / "validation-00000-of-00001")
    return {"source": {"kind": "tfrecord", "path": str(root)}}


def _packed(root: Path, splits: dict[str, list[Sample]], kind: Kind = "original") -> dict[str, Any]:
    listed = make_config({"data": {**SMALL, **_listed(root / "files", splits)}}).data
    for split in splits:
        # Again, if the images were written again: a pack of other images is refused.
        (root / f"packed/{PREFIX[split]}.json").unlink(missing_ok=True)
        pack(listed, split, root / "packed", PackPlan(kind, 2), World())
    return {"source": {"kind": "packed", "path": str(root / "packed")}}


WRITERS = {
    "filelist": _listed,
    "folders": _folders,
    "csv": _csv,
    "parquet": _parquet,
    "nameless parquet": partial(_parquet, named=False),
    "coco": _coco,
    "tar": _tar,
    "tfrecord": _tfrecord,
    "packed": _packed,
    **{kind: partial(_packed, kind=kind) for kind in ("coefficients", "crops", "raw")},
}


def write_config(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"data": data}))
    return path
