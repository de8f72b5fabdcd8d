"""Packs a split into shards, in parallel over threads and ranks; an interrupted pack can be continued."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.catalog.boxes import read_boxes
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.packed.manifest import (
    PREFIX,
    Manifest,
    about_of,
    differences,
    manifest_path,
    sha256,
    write_tables,
)
from tfpipe.data.sources.packed.shards import Kind, Records
from tfpipe.data.sources.registry import load_catalog, open_source
from tfpipe.data.sources.space import mean_bytes
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.pictures import Picture, Pictures
from tfpipe.prepare.shard_files import Add, examples, pixels, tfrecords
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.locks import locked
from tfpipe.util.progress import progress

# Images per shard, as in TensorFlow's scripts: 1,024 shards of ImageNet's training data, 128 of its validation data.
IN_A_SHARD = {"train": 1252, "test": 391}
LOCK, PARTS, ABOUT = ".lock", ".parts", "about.json"
QUALITY = 95
SUBSAMPLING = "420"
# As in those scripts, training data is shuffled before packing, for readers that go through it shard by shard.
SEED = 12345
# Number of images whose crops are encoded to estimate the size, and share of the disk that must stay free.
SAMPLED = 64
SPARE = 0.02
PART = pa.schema({"image": pa.int32(), "label": pa.int32(), "offset": pa.int64(), "length": pa.int64()})


class PackSummary(NamedTuple):
    """Statistics of a packed split."""

    path: Path
    """Path of the manifest."""
    images: int
    records: int
    shards: int
    bytes: int
    """Size of all shards together."""


@dataclass(frozen=True)
class PackPlan:
    """Options of packing a split."""

    kind: Kind = "original"
    shards: int | None = None
    """Number of shards; None for IN_A_SHARD images each."""
    quality: int = QUALITY
    """JPEG quality of crops, 1 to 100."""

    def check(self) -> None:
        """Raises ConfigError if an option is out of range."""
        if self.shards is not None and self.shards < 1:
            raise ConfigError(f"--shards must be at least 1, received {self.shards}")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"--quality must be in [1, 100], received {self.quality}")


def pack(config: DataConfig, split: str, folder: Path, plan: PackPlan, world: World) -> PackSummary | None:
    """Packs `split` into `folder`; returns its statistics.

    The ranks share the shards. Shards that an interrupted pack of the same data finished are reused. Rank 0 holds a
    lock, so that two packs never write the same folder. The output is identical to the byte for any number of ranks.

    Args:
        config: the data to pack, and how it is cropped.
        split: "train" or "test".
        folder: output folder; may already hold the other split.
        plan: kind, number of shards and JPEG quality.
        world: the ranks that pack together.

    Raises:
        ConfigError: the config or the folder cannot be used, the disk is too small, or an image cannot be used.
    """
    plan.check()
    _check_config(config, split, plan.kind)
    work = Work.of(config, split, folder, plan, world)
    with ExitStack() as held:
        missing = world.from_rank0(lambda: work.start(held))
        errors = [error for rank in world.gather(work.write(missing[world.rank :: world.size])) for error in rank]
        if errors:
            raise ConfigError("\n  ".join([f"{split} data is not packed whole (what is done is kept):", *errors]))
        return world.from_rank0(work.finish)


def _check_config(config: DataConfig, split: str, kind: Kind) -> None:
    open_source(config).check_use("pack")
    if isinstance(config.train_filelist, list):
        raise ConfigError("data.train_filelist mixes several lists: pack each by itself, from a config of its own")
    if kind == "original":
        return
    if config.crop_for(split) == "random_resized":
        raise ConfigError(
            'data.crop "random_resized" cuts an image anew each epoch, so its crops cannot be packed: '
            "use --kind original"
        )
    if config.scaled_decode and config.unit == "box" and split == "train":
        raise ConfigError('data.scaled_decode with data.unit "box" cannot be packed as crops: use --kind original')


@dataclass(frozen=True)
class Work:
    """A split that this rank packs together with the others."""

    catalog: Catalog
    config: DataConfig
    folder: Path
    plan: PackPlan
    world: World
    jpeg: dict[str, Any] | None
    bounds: np.ndarray
    """int64 [shards + 1]: place of each shard's first image in the packing order."""
    firsts: np.ndarray
    """int64 [images + 1]: number of records before each place."""

    @classmethod
    def of(cls, config: DataConfig, split: str, folder: Path, plan: PackPlan, world: World) -> "Work":
        """Loads the catalog, with boxes if needed, and divides the packing order into shards."""
        same = {
            "unit": "image",
            "scope": "global",
            "seed": SEED,
            "shuffle_buffer": 2,
            "reshuffle_each_iteration": False,
            "flip": False,
            "cache": None,
            "storage_delay_ms": 0.0,
        }
        if plan.kind == "original":
            same |= {"crop": "boxes", "test_crop": "boxes"}
        config = config.model_copy(update=same)
        catalog = load_catalog(config, split, world)
        counts: np.ndarray = np.ones(len(catalog), np.int64)
        if config.crop_for(split) == "boxes":
            boxes = catalog.boxes or read_boxes(catalog, world)
            catalog = replace(catalog, boxes=boxes)
            if plan.kind != "original":
                counts = np.diff(boxes.offsets(len(catalog)))
        firsts = np.append(0, np.cumsum(counts[catalog.order(config).items(np.arange(len(catalog)))]))
        shards = min(plan.shards or -(-len(catalog) // IN_A_SHARD[split]), len(catalog))
        bounds = np.arange(shards + 1) * len(catalog) // shards
        jpeg = {"quality": plan.quality, "subsampling": SUBSAMPLING} if plan.kind == "crops" else None
        return cls(catalog, config, folder, plan, world, jpeg, bounds, firsts)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.bounds) - 1

    @property
    def about(self) -> dict[str, Any]:
        """Head of the manifest: everything that the content depends on except the images."""
        return {**about_of(self.catalog, self.config, self.plan.kind, self.jpeg), "shard count": self.shards}

    @property
    def parts(self) -> Path:
        """Folder of the record tables of the shards that are finished; removed at the end."""
        return self.folder / f".{PREFIX[self.catalog.split]}{PARTS}"

    def shard_path(self, shard: int) -> Path:
        """Returns the path of a shard."""
        end = ".npy" if self.plan.kind == "raw" else ""
        return self.folder / f"{PREFIX[self.catalog.split]}-{shard:05}-of-{self.shards:05}{end}"

    def part_path(self, shard: int) -> Path:
        """Returns the path of a shard's record table."""
        return self.parts / f"{shard:05}.parquet"

    def start(self, held: ExitStack) -> list[int]:
        """Locks the folder until `held` is closed; returns the shards that are still to be written.

        Raises:
            ConfigError: the folder holds a different pack or cannot be written, or the disk is too small.
        """
        manifest = manifest_path(self.folder, self.catalog.split)
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(self.folder / LOCK, "packing into this folder"))
            if manifest.exists():
                packed = Manifest.read(manifest)
                self._check_same(packed.about, manifest)
                packed.check_sizes(self.folder)
                return []
            self.parts.mkdir(exist_ok=True)
            about = self.parts / ABOUT
            if about.exists():
                self._check_same(json.loads(about.read_text()), about)
            else:
                with atomic_write(about) as unfinished:
                    unfinished.write_text(json.dumps(self.about))
        missing = [shard for shard in range(self.shards) if not self._is_done(shard)]
        self._check_space(missing)
        return missing

    def write(self, shards: list[int]) -> list[str]:
        """Writes `shards`; returns error messages instead of raising, since the other ranks would wait for this one."""
        if not shards:
            return []
        places = np.concatenate([np.arange(self.bounds[shard], self.bounds[shard + 1]) for shard in shards])
        total = sum(self._records(shard) for shard in shards)
        label, unit = f"packing {self.catalog.split} data", "crop" if self.jpeg or self.plan.kind == "raw" else "image"
        try:
            shown = progress(self._pictures(places), total, label, unit, self.world.rank == 0)
            for shard in shards:
                self._write_shard(shard, islice(shown, self._records(shard)))
        except (TfpipeError, ValueError) as error:
            return [str(error)]
        return []

    def finish(self) -> PackSummary:
        """Writes the tables and the manifest unless they exist, and removes temporary files."""
        manifest = manifest_path(self.folder, self.catalog.split)
        with _writing(self.folder):
            if not manifest.exists():
                parts = [pq.read_table(self.part_path(shard)) for shard in range(self.shards)]
                numbers = np.repeat(np.arange(self.shards), [len(part) for part in parts])
                together = pa.concat_tables(part.replace_schema_metadata() for part in parts)
                columns = {name: together[name].to_numpy() for name in PART.names}
                # A stable sort by image keeps the order of an image's crops, which all lie in one shard.
                in_order = np.argsort(columns["image"], kind="stable")
                records = Records(
                    **{name: column[in_order] for name, column in columns.items()}, shard=numbers[in_order]
                )
                shards = [
                    {"name": self.shard_path(shard).name, "records": len(part), **_read_about(part)}
                    for shard, part in enumerate(parts)
                ]
                tables = write_tables(self.folder, self.catalog, records)
                with atomic_write(manifest) as unfinished:
                    unfinished.write_text(Manifest(self.about, shards, tables).text())
            for left in self.folder.glob(f".{PREFIX[self.catalog.split]}[-.]*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        written = Manifest.read(manifest)
        records, size = (sum(entry[name] for entry in written.shards) for name in ("records", "bytes"))
        return PackSummary(manifest, len(self.catalog), records, self.shards, size)

    def _check_same(self, about: dict[str, Any], path: Path) -> None:
        problems = differences(about, json.loads(json.dumps(self.about)), "there", "now")
        if problems:
            raise ConfigError(
                f"{path} is of something else: {'; '.join(problems)}; go on with that, or choose another folder"
            )

    def _is_done(self, shard: int) -> bool:
        part, path = self.part_path(shard), self.shard_path(shard)
        if not part.exists() or not path.exists():
            return False
        return _read_about(pq.read_schema(part))["bytes"] == path.stat().st_size

    def _check_space(self, missing: list[int]) -> None:
        free = (1 - SPARE) * shutil.disk_usage(self.folder).free
        wanted = self._estimate(missing, free)
        if wanted > free:
            raise ConfigError(
                f"{self.folder}: what is still to be packed needs some {wanted / 1e9:.3g} GB, {free / 1e9:.3g} GB are "
                "free; choose a folder on a larger disk, or pack what is smaller: --kind crops, or a lower --quality"
            )

    def _estimate(self, missing: list[int], free: float) -> float:
        """Estimates the bytes of these shards; for JPEG crops, returns the size of the pixels if even that fits."""
        images = sum(int(self.bounds[shard + 1] - self.bounds[shard]) for shard in missing)
        if self.plan.kind == "original":
            return mean_bytes(self.catalog, 1) * images
        pixels = sum(map(self._records, missing)) * math.prod(self.config.crop_image_size) * self.config.num_channels
        if self.plan.kind == "raw" or pixels <= free:
            return pixels
        places = np.unique(np.linspace(0, len(self.catalog) - 1, SAMPLED).astype(np.int64))
        return sum(len(picture.contents) for picture in self._pictures(places)) / len(places) * images

    def _pictures(self, places: np.ndarray) -> Iterator[Picture]:
        pictures = Pictures(self.catalog, self.config, World(threads=self.world.threads), self.jpeg)
        return pictures.files(places) if self.plan.kind == "original" else pictures.crops(places)

    def _records(self, shard: int) -> int:
        return int(self.firsts[self.bounds[shard + 1]] - self.firsts[self.bounds[shard]])

    def _write_shard(self, shard: int, pictures: Iterator[Picture]) -> None:
        path, rows = self.shard_path(shard), []
        with _writing(path):
            with atomic_write(path) as unfinished:
                with self._open(unfinished, shard) as add:
                    rows = [(picture.item, picture.label, *add(picture)) for picture in pictures]
                if len(rows) != self._records(shard):
                    raise TfpipeError(f"{path}: {len(rows)} records came of {self._records(shard)}")
                about = {"bytes": unfinished.stat().st_size, "sha256": sha256(unfinished)}
            columns = (
                dict(zip(PART.names, zip(*rows, strict=True), strict=True)) if rows else {n: [] for n in PART.names}
            )
            table = pa.table(columns, PART.with_metadata({"about": json.dumps(about)}))
            with atomic_write(self.part_path(shard)) as unfinished:
                pq.write_table(table, unfinished)

    def _open(self, path: Path, shard: int) -> AbstractContextManager[Add]:
        if self.plan.kind == "raw":
            return pixels(path, (self._records(shard), *self.config.crop_image_size, self.config.num_channels))
        return tfrecords(path, examples(self.catalog, self.config, self.plan.kind == "crops"))


def _read_about(part: pa.Table | pa.Schema) -> dict[str, Any]:
    return json.loads((part.schema if isinstance(part, pa.Table) else part).metadata[b"about"])


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
