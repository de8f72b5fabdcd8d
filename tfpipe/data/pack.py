"""Packs a split: in parallel over threads and ranks, and going on where it was interrupted."""

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
from tfpipe.data.boxes import read_boxes
from tfpipe.data.catalog import Catalog, load_catalog
from tfpipe.data.lock import locked
from tfpipe.data.packed import Manifest, about_of, differences, sha256, write_tables
from tfpipe.data.pictures import Picture, Pictures
from tfpipe.data.shard_files import Add, examples, pixels, tfrecords
from tfpipe.data.shards import Kind, Records
from tfpipe.data.sources import PREFIX, manifest_path
from tfpipe.data.space import mean_bytes
from tfpipe.data.whole import whole_file
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.progress import progress

# Images in a shard, as TensorFlow's scripts have them: 1,024 shards of ImageNet's training data, 128 of the other.
IN_A_SHARD = {"train": 1252, "test": 391}
LOCK, PARTS, ABOUT = ".lock", ".parts", "about.json"
QUALITY = 95
SUBSAMPLING = "420"
# As those scripts do, the training data is shuffled first, for readers that go through it shard by shard.
SEED = 12345
# Images whose crops are encoded to see how large they become, and the share of the disk that stays free.
SAMPLED = 64
SPARE = 0.02
PART = pa.schema({"image": pa.int32(), "label": pa.int32(), "offset": pa.int64(), "length": pa.int64()})


class Summary(NamedTuple):
    """What was packed."""

    path: Path
    """The manifest."""
    images: int
    records: int
    shards: int
    bytes: int
    """Of all shards."""


@dataclass(frozen=True)
class Plan:
    """How a split is packed."""

    kind: Kind = "original"
    shards: int | None = None
    """None: of IN_A_SHARD images."""
    quality: int = QUALITY
    """Of crops as JPEGs."""

    def check(self) -> None:
        """Raises: ConfigError: it cannot be carried out."""
        if self.shards is not None and self.shards < 1:
            raise ConfigError(f"--shards must be at least 1, received {self.shards}")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"--quality must be in [1, 100], received {self.quality}")


def pack(config: DataConfig, split: str, folder: Path, plan: Plan, world: World) -> Summary | None:
    """Packs `split` into `folder`; on rank 0 says what is in there.

    Ranks share the shards. Those that an interrupted pack of the same finished are not made again. Rank 0 holds a lock
    meanwhile, so that two packs never write the same folder. What comes out is the same to the byte, however it is
    made.

    Args:
        config: what to pack, and how it is cropped.
        split: "train" or "test".
        folder: may hold the other split.
        plan: kind, shards and quality.
        world: the ranks that pack it together.

    Raises:
        ConfigError: the config or the folder cannot be used, there is too little space, or an image cannot be used.
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
    if config.source is not None:
        raise ConfigError("data.source names packed data; tfpipe pack packs files: leave it out")
    if not isinstance(config.train_filelist, Path):
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
    """A split being packed by one of the ranks."""

    catalog: Catalog
    config: DataConfig
    folder: Path
    plan: Plan
    world: World
    jpeg: dict[str, Any] | None
    bounds: np.ndarray
    """int64 [shards + 1]: first place of each shard, of the order in which images are packed."""
    firsts: np.ndarray
    """int64 [images + 1]: records before each place."""

    @classmethod
    def of(cls, config: DataConfig, split: str, folder: Path, plan: Plan, world: World) -> "Work":
        """Loads what is needed."""
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
        """How many."""
        return len(self.bounds) - 1

    @property
    def about(self) -> dict[str, Any]:
        """The head of the manifest."""
        return {**about_of(self.catalog, self.config, self.plan.kind, self.jpeg), "shard count": self.shards}

    @property
    def parts(self) -> Path:
        """Folder of what is known of the shards that are done."""
        return self.folder / f".{PREFIX[self.catalog.split]}{PARTS}"

    def shard_path(self, shard: int) -> Path:
        """Of a shard."""
        end = ".npy" if self.plan.kind == "raw" else ""
        return self.folder / f"{PREFIX[self.catalog.split]}-{shard:05}-of-{self.shards:05}{end}"

    def part_path(self, shard: int) -> Path:
        """Of what is known of a shard."""
        return self.parts / f"{shard:05}.parquet"

    def start(self, held: ExitStack) -> list[int]:
        """Locks the folder, as `held` has it from then on; returns the shards that are still to be made.

        Raises:
            ConfigError: it holds something else, cannot be written, or is too small.
        """
        manifest = manifest_path(self.folder, self.catalog.split)
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(self.folder / LOCK, "packing into this folder"))
            if manifest.exists():
                whole = Manifest.read(manifest)
                self._check_same(whole.about, manifest)
                whole.check_sizes(self.folder)
                return []
            self.parts.mkdir(exist_ok=True)
            about = self.parts / ABOUT
            if about.exists():
                self._check_same(json.loads(about.read_text()), about)
            else:
                with whole_file(about) as unfinished:
                    unfinished.write_text(json.dumps(self.about))
        missing = [shard for shard in range(self.shards) if not self._is_done(shard)]
        self._check_space(missing)
        return missing

    def write(self, shards: list[int]) -> list[str]:
        """Writes these; says what went wrong. Raises nothing that this rank alone would meet: the others wait."""
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

    def finish(self) -> Summary:
        """Writes the tables and the manifest, if they are not there yet; then all is done."""
        manifest = manifest_path(self.folder, self.catalog.split)
        with _writing(self.folder):
            if not manifest.exists():
                parts = [pq.read_table(self.part_path(shard)) for shard in range(self.shards)]
                numbers = np.repeat(np.arange(self.shards), [len(part) for part in parts])
                together = pa.concat_tables(part.replace_schema_metadata() for part in parts)
                columns = {name: together[name].to_numpy() for name in PART.names}
                # The crops of an image follow each other, in one shard.
                in_order = np.argsort(columns["image"], kind="stable")
                records = Records(
                    **{name: column[in_order] for name, column in columns.items()}, shard=numbers[in_order]
                )
                shards = [
                    {"name": self.shard_path(shard).name, "records": len(part), **_read_about(part)}
                    for shard, part in enumerate(parts)
                ]
                tables = write_tables(self.folder, self.catalog, records)
                with whole_file(manifest) as unfinished:
                    unfinished.write_text(Manifest(self.about, shards, tables).text())
            for left in self.folder.glob(f".{PREFIX[self.catalog.split]}[-.]*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        made = Manifest.read(manifest)
        records, size = (sum(each[name] for each in made.shards) for name in ("records", "bytes"))
        return Summary(manifest, len(self.catalog), records, self.shards, size)

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
        """Bytes that these shards will take, or a bound that is below `free`."""
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
            with whole_file(path) as unfinished:
                with self._open(unfinished, shard) as add:
                    rows = [(picture.item, picture.label, *add(picture)) for picture in pictures]
                if len(rows) != self._records(shard):
                    raise TfpipeError(f"{path}: {len(rows)} records came of {self._records(shard)}")
                about = {"bytes": unfinished.stat().st_size, "sha256": sha256(unfinished)}
            columns = (
                dict(zip(PART.names, zip(*rows, strict=True), strict=True)) if rows else {n: [] for n in PART.names}
            )
            table = pa.table(columns, PART.with_metadata({"about": json.dumps(about)}))
            with whole_file(self.part_path(shard)) as unfinished:
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
