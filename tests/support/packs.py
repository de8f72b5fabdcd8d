"""Packs of the sample and recorded ones, and configs that read them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.commands import ROOT
from tests.support.sample import SampleData
from tfpipe import Config, World, load_config, make_config
from tfpipe.data.sources.packed.manifest import RECORDS
from tfpipe.data.sources.registry import load_split
from tfpipe.native import core
from tfpipe.prepare.pack import PackPlan, pack

LOOSE = {"train_filelist": None, "test_filelist": None, "test_label_file": None}


def config_of(sample: SampleData, folder: Path, kind: str | None = None, source: Path | None = None, **data) -> Config:
    """A config of the loose files, or of what is packed at `source`."""
    if kind is not None:
        data = {**LOOSE, "source": {"kind": kind, "path": str(source)}, **data}
    return load_config(sample.config(folder / "config.json", data=data))


def packed(config: Config, out: Path, kind: str, shards: int = 5, splits: tuple[str, ...] = ("train", "test")) -> Path:
    """Packs both splits into `out`."""
    for split in splits:
        pack(config.data, split, out, PackPlan(kind, shards), World())
    return out


def recorded_pack(target: Path, kind: str) -> Path:
    """Copies a pack of 12 images that an earlier version has made; makes coefficients of the original's images."""
    shutil.copytree(ROOT / "tests/recorded/before" / kind.replace("coefficients", "original"), target)
    if kind == "coefficients":
        config = make_config({"data": {"source": {"kind": "packed", "path": str(target)}}})
        split = load_split(config.data, "train", World())
        stored = [core().store(split.image(item)) for item in range(len(split.catalog))]
        ends = np.cumsum([0, *map(len, stored)])
        shard = target / "train-00000-of-00002"
        shard.write_bytes(b"".join(stored))
        records = pq.read_table(target / "train.records.parquet").to_pydict()
        records |= {"shard": [0] * len(stored), "offset": ends[:-1], "length": np.diff(ends)}
        pq.write_table(pa.table(records, RECORDS), target / "train.records.parquet")
        about = json.loads((target / "train.json").read_text()) | {"kind": kind}
        about["shards"][0]["bytes"] = shard.stat().st_size
        (target / "train.json").write_text(json.dumps(about))
        rewrite_tables(target, lambda file: described(target / file["name"], file))
    return target


def rewrite_tables(folder: Path, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes what a manifest says of both tables."""
    about = json.loads((folder / "train.json").read_text())
    about["tables"] = [changed(file) for file in about["tables"]]
    (folder / "train.json").write_text(json.dumps(about))


def described(path: Path, file: dict[str, Any]) -> dict[str, Any]:
    """Returns what a manifest says of a table, `file` with the rows, bytes and sha256 that it has now."""
    contents = path.read_bytes()
    rows = pq.read_metadata(path).num_rows
    return file | {"records": rows, "bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
