"""Options of packing, and the division of a split into shards."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfpipe.data.sources.packed.manifest import PREFIX, manifest_path
from tfpipe.data.sources.packed.shards import Kind

QUALITY = 95


@dataclass(frozen=True)
class PackPlan:
    """Options of packing a split."""

    kind: Kind = "original"
    shards: int | None = None  # number of shards; None for IN_A_SHARD images each
    quality: int = QUALITY  # JPEG quality of crops, 1 to 100


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
        return manifest_path(self.folder, self.split)

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
