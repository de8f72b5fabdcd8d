"""Packs a split into shards, in parallel over threads and ranks; an interrupted pack can be continued."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.order.permutation import evenly_spaced
from tfpipe.data.sources.packed.manifest import PREFIX, Manifest, about_of, manifest_name, write_tables
from tfpipe.data.sources.packed.shards import WHOLE, Kind, Records
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.sources.space import mean_bytes
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.prepare.parts import Job
from tfpipe.prepare.pictures import Add, Picture, examples, pictures, pixels, tfrecords
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.files import sha256
from tfpipe.util.json_text import differences
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

# Images per shard, as in TensorFlow's scripts: 1,024 shards of ImageNet's training data, 128 of its validation data.
IN_A_SHARD = {"train": 1252, "test": 391}
SUBSAMPLING = "420"
# Settings of the packed data's own order. As in those scripts, training data is shuffled before packing, for readers
# that go through it shard by shard.
SAME = {
    "unit": "image",
    "scope": "global",
    "seed": 12345,
    "shuffle_buffer": 2,
    "reshuffle_each_iteration": False,
    "flip": False,
    "cache": None,
    "service": None,
    "class_weights": None,
    "repeats": 1,
    "on_error": "raise",
}
LOCK, ABOUT = ".lock", "about.json"
# Number of images whose crops are encoded to estimate the size, and share of the disk that must stay free.
SAMPLED = 64
SPARE_DISK = 0.02
# Asking for files' sizes and times waits for the file system.
STAMPED_TOGETHER = 16
RECORD_SCHEMA = pa.schema({"image": pa.int32(), "label": pa.int32(), "offset": pa.int64(), "length": pa.int64()})


@dataclass(frozen=True)
class PackPlan:
    """Options of packing a split."""

    kind: Kind = "original"
    shards: int | None = None  # number of shards; None for IN_A_SHARD images each
    quality: int = 95  # JPEG quality of crops, 1 to 100


@dataclass(frozen=True)
class ShardPlan:
    """The shards of a split: their paths, and the images and records of each."""

    folder: Path
    split: str
    kind: Kind
    bounds: np.ndarray  # int64 [shards + 1]: place of each shard's first image in the packing order
    firsts: np.ndarray  # int64 [images + 1]: number of records before each place

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def manifest(self) -> Path:
        """Path of the manifest."""
        return self.folder / manifest_name(self.split)

    @property
    def parts(self) -> Path:
        """Folder of the record tables of the shards that are finished; removed at the end."""
        return self.folder / f".{PREFIX[self.split]}.parts"

    def path(self, shard: int) -> Path:
        """Returns the path of a shard."""
        end = ".npy" if self.kind == "raw" else ""
        return self.folder / f"{PREFIX[self.split]}-{shard:05}-of-{len(self):05}{end}"

    def part(self, shard: int) -> Path:
        """Returns the path of a shard's record table."""
        return self.parts / f"{shard:05}.parquet"

    def places(self, shards: list[int]) -> np.ndarray:
        """Returns int64 [n]: the places of the shards' images in the packing order."""
        return np.concatenate([np.arange(self.bounds[shard], self.bounds[shard + 1]) for shard in shards])

    def records(self, shard: int) -> int:
        """Returns the number of a shard's records."""
        return int(self.firsts[self.bounds[shard + 1]] - self.firsts[self.bounds[shard]])


class PackSummary(NamedTuple):
    """Statistics of a packed split."""

    path: Path  # of the manifest
    images: int
    records: int
    shards: int
    bytes: int  # of all shards together


@dataclass(frozen=True)
class Work:
    """A split that this rank packs together with the others."""

    split: Split
    shards: ShardPlan
    jpeg: dict[str, Any] | None  # JPEG quality and subsampling if crops are encoded
    weights: np.ndarray | None = None  # float64 [images]: weights of the images, if they have any

    @property
    def about(self) -> dict[str, Any]:
        """Head of the manifest: everything that the content depends on except the images."""
        settings = about_of(self.split, self.shards.kind, self.jpeg)
        weights = {} if self.weights is None else {"weights": hashlib.sha256(self.weights.tobytes()).hexdigest()}
        return {**settings, **weights, "shard count": len(self.shards)}

    def start(self) -> list[int]:
        """Returns the shards that are still to be written.

        Raises ConfigError if the folder holds a different pack, or the disk is too small.
        """
        folder, manifest, parts = self.shards.folder, self.shards.manifest, self.shards.parts
        if manifest.exists():
            packed = Manifest.read(manifest)
            self._check_same(packed.about, manifest)
            packed.check_sizes(folder)
            self._check_images(packed)
            return []
        settings_path = parts / ABOUT
        # A record of which nothing has been made holds no one to it.
        if next(parts.glob("*.parquet"), None) is not None:
            self._check_same(json.loads(settings_path.read_text()), settings_path)
        missing = [shard for shard in range(len(self.shards)) if not self._is_done(shard)]
        self._check_space(missing)
        parts.mkdir(exist_ok=True)
        with atomic_write(settings_path) as partial:
            partial.write_text(json.dumps(self.about))
        return missing

    def write(self, shards: list[int]) -> list[str]:
        """Writes `shards`; returns error messages, so that those of all ranks are known together."""
        if not shards:
            return []
        total = sum(map(self.shards.records, shards))
        label, unit = f"packing {self.split.catalog.split} data", "image" if self.shards.kind in WHOLE else "crop"
        due = list(shards)

        def attempt() -> None:
            shown = progress(self._pictures(self.shards.places(due)), total, label, unit, self.split.world.rank == 0)
            while due:
                self._write_shard(due[0], islice(shown, self.shards.records(due[0])))
                del due[0]

        try:
            retried(attempt)()
        except (TfpipeError, ValueError) as error:
            return [str(error)]
        return []

    def finish(self) -> PackSummary:
        """Writes the tables and the manifest unless they exist, and removes temporary files."""
        folder, manifest = self.shards.folder, self.shards.manifest
        if not manifest.exists():
            parts = [pq.read_table(self.shards.part(shard)) for shard in range(len(self.shards))]
            entries = [
                {"name": self.shards.path(shard).name, "records": len(part), **_read_about(part.schema)}
                for shard, part in enumerate(parts)
            ]
            tables = write_tables(folder, self.split.catalog, _records(parts), self.weights)
            with atomic_write(manifest) as partial:
                partial.write_text(Manifest(self.about, entries, tables).text())
        for leftover in folder.glob(f".{PREFIX[self.split.catalog.split]}[-.]*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        written = Manifest.read(manifest)
        records, size = (sum(entry[name] for entry in written.shards) for name in ("records", "bytes"))
        return PackSummary(manifest, len(self.split.catalog), records, len(self.shards), size)

    def _check_same(self, about: dict[str, Any], path: Path) -> None:
        problems = differences(about, json.loads(json.dumps(self.about)), "there", "now")
        if problems:
            raise ConfigError(
                f"{path} belongs to another pack: {'; '.join(problems)}; continue that one, or choose another folder"
            )

    def _check_images(self, packed: Manifest) -> None:
        """Raises ConfigError if images of a finished pack have changed since."""
        made_from = [entry.get("images") for entry in packed.shards]
        changed = [shard for shard, stamps in enumerate(made_from) if stamps not in (None, self._stamps(shard))]
        if changed:
            raise ConfigError(
                f"{self.shards.manifest} is finished, and images of {len(changed)} of its {len(made_from)} shards have "
                f"changed since, by their sizes or times, e.g. some of {self.shards.path(changed[0]).name}: choose "
                "another folder, or remove this one's to pack again"
            )

    def _stamps(self, shard: int) -> str:
        """Returns a digest of the sizes and times of the files that hold a shard's images."""
        items = self.split.order.items(self.shards.places([shard])).tolist()
        with ThreadPoolExecutor(STAMPED_TOGETHER) as pool:
            stamps = list(pool.map(self.split.stamp, items))
        return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()

    def _is_done(self, shard: int) -> bool:
        try:
            about = _read_about(pq.read_schema(self.shards.part(shard)))
            size = self.shards.path(shard).stat().st_size
        except (OSError, ValueError):  # there is none, or it is damaged
            return False
        return about["bytes"] == size and about.get("images") in (None, self._stamps(shard))

    def _check_space(self, missing: list[int]) -> None:
        free = (1 - SPARE_DISK) * shutil.disk_usage(self.shards.folder).free
        needed = self._estimate(missing, free)
        if needed > free:
            raise ConfigError(
                f"{self.shards.folder}: the shards still to be packed need some {needed / 1e9:.3g} GB, "
                f"{free / 1e9:.3g} GB are free; choose a folder on a larger disk, or a smaller form: --kind crops, or "
                "a lower --quality"
            )

    def _estimate(self, missing: list[int], free: float) -> float:
        """Estimates the bytes of these shards; for JPEG crops, returns the size of the pixels if even that fits."""
        images = len(self.shards.places(missing)) if missing else 0
        if self.shards.kind == "original":
            return mean_bytes(self.split, 1) * images
        if self.shards.kind != "coefficients":
            records = sum(map(self.shards.records, missing))
            size = records * math.prod(self.split.config.crop_image_size) * self.split.config.num_channels
            if self.shards.kind == "raw" or size <= free:
                return size
        places = np.array(evenly_spaced(len(self.split.catalog), SAMPLED), np.int64)
        return sum(len(picture.contents) for picture in self._pictures(places)) / len(places) * images

    def _pictures(self, places: np.ndarray) -> Iterator[Picture]:
        alone = replace(self.split, world=World(threads=self.split.world.threads))
        return pictures(alone, places, self.jpeg, self.shards.kind)

    def _write_shard(self, shard: int, pictures: Iterator[Picture]) -> None:
        path, count = self.shards.path(shard), self.shards.records(shard)
        # Taken first, so that an image that changes meanwhile is noticed.
        stamps = self._stamps(shard)
        with writing(path):
            with atomic_write(path) as partial:
                with self._open(partial, count) as add:
                    rows = [(picture.item, picture.label, *add(picture)) for picture in pictures]
                if len(rows) != count:
                    raise TfpipeError(f"{path}: received {counted(len(rows), 'record')}, expected {count}")
                written = {"bytes": partial.stat().st_size, "sha256": sha256(partial), "images": stamps}
            columns = zip(*rows, strict=True) if rows else [()] * len(RECORD_SCHEMA)
            schema = RECORD_SCHEMA.with_metadata({"about": json.dumps(written)})
            with atomic_write(self.shards.part(shard)) as partial:
                pq.write_table(pa.table(dict(zip(RECORD_SCHEMA.names, columns, strict=True)), schema), partial)

    def _open(self, path: Path, count: int) -> AbstractContextManager[Add]:
        if self.shards.kind == "raw":
            return pixels(path, (count, *self.split.config.crop_image_size, self.split.config.num_channels))
        return tfrecords(path, examples(self.split, crops=self.shards.kind == "crops"))


def pack(config: DataConfig, split: str, folder: Path, plan: PackPlan, world: World) -> PackSummary:
    """Packs `split` into `folder`; returns its statistics.

    The ranks share the shards. Shards that an interrupted pack of the same data finished are reused. The output is
    identical to the byte for any number of ranks; `folder` may already hold the other split. Raises ConfigError if the
    config or the folder cannot be used, the disk is too small, or an image cannot be used.
    """
    _check_config(config, split, plan.kind)
    work = plan_work(config, split, folder, plan, world)
    unfinished = f"{split} data is not all packed (finished shards are kept):"
    job = Job(folder, folder / LOCK, "packing into this folder", unfinished)
    return job.run(world, work.start, work.write, work.finish)


def _check_config(config: DataConfig, split: str, kind: Kind) -> None:
    open_source(config).check_use("pack")
    if isinstance(config.train_filelist, list):
        raise ConfigError("data.train_filelist mixes several lists: pack each by itself, from a config of its own")
    targets, extra = config.targets.kind, {} if config.source is None else config.source.columns.extra
    if targets in UNCLASSED or (targets != "label" and kind not in WHOLE):
        raise ConfigError(
            f'packed {"images" if kind in WHOLE else "crops"} hold no targets "{targets}": set data.targets to "label"'
            + (", or pack whole images (--kind original or coefficients)" if targets not in UNCLASSED else "")
        )
    if extra:
        raise ConfigError(f"data.source.columns.extra {json.dumps(extra)}: packed data hold no columns: leave it out")
    if kind not in WHOLE and config.crop_for(split) == "random_resized":
        raise ConfigError(
            'data.crop "random_resized" cuts other crops in each epoch, so they cannot be packed: use --kind original '
            "or coefficients"
        )


def plan_work(config: DataConfig, split: str, folder: Path, plan: PackPlan, world: World) -> Work:
    """Loads the catalog, with boxes if needed, and divides the packing order into shards."""
    original = {"crop": "boxes", "test_crop": "boxes"} if plan.kind in WHOLE else {}
    if plan.kind not in WHOLE and config.for_split(split).has_phases:
        raise ConfigError(
            f"packed {'pixels' if plan.kind == 'raw' else 'crops'} have one size, and data.crop_image_size or "
            "data.batch_size changes with the epochs: pack whole images (--kind original or coefficients), or set one "
            "size"
        )
    if plan.kind not in WHOLE and config.for_split(split).views:
        raise ConfigError(
            f"data.views make several crops of an image, and --kind {plan.kind} packs one: pack whole images (--kind "
            "original or coefficients), or set data.views to []"
        )
    config = config.model_copy(update=SAME | original)
    loaded = load_split(config, split, world)
    # Stored, but without effect on the order of packing.
    weights, catalog = loaded.catalog.weights, replace(loaded.catalog, weights=None)
    counts: np.ndarray = np.ones(len(catalog), np.int64)
    if config.crop_for(split) == "boxes":
        catalog = catalog if catalog.boxes is not None else with_boxes(catalog, loaded.storage, world)
        if plan.kind not in WHOLE and catalog.boxes is not None:
            counts = np.diff(catalog.boxes.offsets(len(catalog)))
    loaded = replace(loaded, catalog=catalog)
    firsts = np.append(0, np.cumsum(counts[loaded.order.items(np.arange(len(catalog)))]))
    shards = min(plan.shards or -(-len(catalog) // IN_A_SHARD[split]), len(catalog))
    bounds = np.arange(shards + 1) * len(catalog) // shards
    jpeg = {"quality": plan.quality, "subsampling": SUBSAMPLING} if plan.kind == "crops" else None
    return Work(loaded, ShardPlan(folder, split, plan.kind, bounds, firsts), jpeg, weights)


def _records(parts: list[pa.Table]) -> Records:
    """Returns the records of all shards, sorted by image."""
    shards = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    together = pa.concat_tables(part.replace_schema_metadata() for part in parts)
    # A stable sort keeps the order of an image's crops, which all lie in one shard.
    in_order = np.argsort(together["image"].to_numpy(), kind="stable")
    columns = {name: together[name].to_numpy()[in_order] for name in RECORD_SCHEMA.names}
    return Records(**columns, shard=shards[in_order])


def _read_about(schema: pa.Schema) -> dict[str, Any]:
    return json.loads(schema.metadata[b"about"])
