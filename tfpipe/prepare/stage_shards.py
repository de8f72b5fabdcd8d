"""Copies packed data to a node-local disk: shards, tables and manifest, or only the records of the node's ranks."""

import hashlib
import socket
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.sources.packed.manifest import Manifest, NodeShare, manifest_digest, manifest_path
from tfpipe.data.sources.packed.shards import Records
from tfpipe.data.sources.packed.source import Packed
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.prepare.copier import Copied, Share, Staged, Staging, copy_all
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

BLOCK = 2**20
# Shards copied at once by a rank.
TOGETHER = 4


class ShardCopy(NamedTuple):
    """A shard or table to copy."""

    source: AnyPath
    size: int  # bytes
    sha256: str
    ranges: np.ndarray | None = None  # int64 [n, 2]: beginnings and ends of the parts to copy, in bytes; None for all

    @property
    def wanted(self) -> int:
        """Bytes to copy."""
        return self.size if self.ranges is None else int(np.diff(self.ranges).sum())


def stage_shards(
    source: Packed, config: DataConfig, splits: list[str], out: Path, world: World, share: Share | None
) -> Staged:
    """Copies packed data to `out`, as `stage` does files; the manifests come last, so if they exist, all files do.

    With `data.scope` "shard" or a `share` only the records of the node's ranks are copied, and the shards have holes
    for the others. Whole files are compared with the manifest's checksums on the way.

    Raises:
        ConfigError: the data cannot be used, `out` cannot be written or holds another copy, or the disk is too small.
        TfpipeError: files cannot be copied, or are not as they were packed; the copied ones stay.
    """
    if isinstance(source.folder, Path) and out.resolve() == source.folder.resolve():
        raise ConfigError(f"--out is the folder of the packed data itself, {out}")
    manifests = {split: Manifest.read(manifest_path(source.folder, split)) for split in splits}
    shares = {split: _share(source.folder, split, config, world, share) for split in splits}
    parts = [part for split in splits for part in _parts(source, manifests[split], split, world, shares[split])]
    mine = parts if share is not None else parts[world.local_rank :: world.local_size]
    staging = Staging(out, world, share)

    def prepare() -> None:
        for split in splits:
            shares[split].hold(out, split)

    def copy() -> Copied:
        missing = sum(part.wanted for part in mine if not (out / part.source.name).exists())
        staging.check_room("the packed data needs", missing)
        shown = partial(progress, total=len(mine), label="copying packed data", unit="file", show=world.rank == 0)
        return copy_all(partial(_copied, staging), mine, TOGETHER, shown)

    def finish() -> None:
        for split in splits:
            path = manifest_path(source.folder, split)
            with atomic_write(out / path.name, sync=True) as target:
                target.write_bytes(path.read_bytes())

    return Staged(staging.run(prepare, copy, finish), [f"data.source.path={out}"])


def _share(folder: AnyPath, split: str, config: DataConfig, world: World, share: Share | None) -> NodeShare:
    """Returns the ranks whose images this node needs."""
    key = manifest_digest(folder, split)
    if share is not None:
        return NodeShare(key, share.size, (share.rank,))
    if config.scope != "shard" or world.size == 1:
        return NodeShare(key, 1)
    hosts = world.gather(socket.gethostname())
    ranks = [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]] if len(hosts) > 1 else [world.rank]
    return NodeShare(key, world.size, tuple(ranks))


def _parts(source: Packed, manifest: Manifest, split: str, world: World, share: NodeShare) -> Iterator[ShardCopy]:
    loaded = None if share.whole else source.open(split, world)
    ranges = repeat(None) if loaded is None else _ranges(loaded, loaded.shards.records, share, len(manifest.shards))
    for shard, parts in zip(manifest.shards, ranges, strict=False):
        yield ShardCopy(source.folder / shard["name"], shard["bytes"], shard["sha256"], parts)
    for table in manifest.tables:
        yield ShardCopy(source.folder / table["name"], table["bytes"], table["sha256"])


def _ranges(split: Split, records: Records, share: NodeShare, shards: int) -> Iterator[np.ndarray]:
    """Yields int64 [n, 2] for each shard: the beginnings and ends of the records that the ranks of a share read."""
    needed = np.zeros(len(split.catalog), bool)
    boxes = split.catalog.sampled_boxes
    for rank in share.ranks:
        needed[slice(rank, None, share.size) if boxes is None else boxes.images[rank :: share.size]] = True
    for shard in range(shards):
        chosen = np.flatnonzero((records.shard == shard) & needed[records.image])
        chosen = chosen[np.argsort(records.offset[chosen])]
        yield np.stack([records.offset[chosen], records.offset[chosen] + records.length[chosen]], axis=1)


def _copied(staging: Staging, part: ShardCopy) -> Copied:
    """Copies a file unless it is there; returns errors instead of raising them."""
    target = staging.out / part.source.name
    if target.exists() and target.stat().st_size == part.size:
        return Copied(there=1)
    try:
        retried(_copy)(part, target, staging.scratch)
    except OSError as error:
        return Copied(errors=(f"cannot copy {part.source} to {target}: {error.strerror or error}",))
    except ValueError as error:
        return Copied(errors=(f"{part.source} {error}: find all such files with tfpipe pack --verify",))
    return Copied(files=1, bytes=part.wanted)


def _copy(part: ShardCopy, target: Path, scratch: Path) -> None:
    """Copies a file, atomically and to the disk; raises OSError, or ValueError if it is not as it was packed."""
    digest, size = hashlib.sha256(), 0
    with part.source.open() if isinstance(part.source, UrlPath) else part.source.open("rb", buffering=0) as file:
        with atomic_write(target, sync=True, scratch=scratch) as unfinished, unfinished.open("wb") as copy:
            if part.ranges is None:
                while block := file.read(BLOCK):
                    digest.update(block)
                    copy.write(block)
                    size += len(block)
                if (size, digest.hexdigest()) != (part.size, part.sha256):
                    raise ValueError("is not what was packed")
            else:
                copy.truncate(part.size)
                for start, end in part.ranges.tolist():
                    file.seek(start)
                    block = file.read(end - start)
                    if len(block) != end - start:
                        raise ValueError("is not what was packed")
                    copy.seek(start)
                    copy.write(block)
