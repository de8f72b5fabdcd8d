"""Copies a filelist's data to a node-local disk before a job; training then reads it from there.

Packed data is copied to OUT as it is. For other data, writes:

OUT/train.txt, OUT/val.txt      filelists of the copies, in the same order as the originals
OUT/train.index.parquet         copy of the list's index if there is one; XMLs are not copied then
OUT/HOST/PATH, OUT/PATH         the files, under the server's or bucket's name and path, or under their absolute path
"""

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.config.section import literal
from tfpipe.data.catalog.filelist import class_level_of_copy, index_path, read_filelist, write_filelist
from tfpipe.data.catalog.layout import find_layout
from tfpipe.data.catalog.load import reads_boxes
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.order.permutation import evenly_spaced
from tfpipe.data.sources.packed.manifest import Manifest, manifest_name
from tfpipe.data.sources.packed.source import PackedSource
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.prepare.copier import TOGETHER, Copier, Copies, File, Share, StageResult, Staging, copy_all
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import Stamp
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

LISTS = {"train": "train.txt", "test": "val.txt"}
# Number of files sampled for the mean size.
SAMPLED = 200
COPY_BYTES = 2**20
# Shards copied at once by a rank.
SHARDS_TOGETHER = 4


@dataclass(frozen=True)
class StagePlan:
    """The files of a split that this process copies."""

    split: Split
    paths: FileList  # paths of all images' copies, in the list's order
    images: np.ndarray  # int64 [n]: numbers of the images to copy
    xmls: np.ndarray  # int64 [k]: numbers of the images whose XML to copy

    def __len__(self) -> int:
        return len(self.images) + len(self.xmls)

    def files(self, out: Path) -> Iterator[File]:
        """Yields the files in the list's order, images before XMLs."""
        for item in self.images.tolist():
            yield File(self.split.catalog.paths[item], self.paths[item])
        for item in self.xmls.tolist():
            source = self.split.catalog.annotation(item)
            yield File(source, target_of(out, source))


def stage(config: DataConfig, splits: list[str], out: Path, world: World, share: Share | None = None) -> StageResult:
    """Copies the files that training reads to `out`; skips those that are there with the right size and time.

    With several ranks, copies to a disk of each node. With `data.scope` "shard", a node gets the images of its ranks in
    a training with as many ranks; otherwise it gets all, dealt out to its ranks; `share` selects others. It always gets
    packed data whole, and all XMLs, by which training counts the crops of the whole list. `config` is that of the
    training that will read the copy. Every rank must call.

    Raises ConfigError if the data or `out` cannot be used, or the disk is too small; TfpipeError if files cannot be
    copied; the message names up to 20 of them, and the copied ones stay.
    """
    out = out.absolute()
    staging = Staging(out, world, share)
    source = open_source(config)
    source.check_use("stage")
    source.check("test" in splits)
    if config.targets.kind == "mask":
        raise ConfigError('tfpipe stage copies no masks, and data.targets is "mask": copy the folders of both yourself')
    if "train" in splits and isinstance(config.train_filelist, list):
        raise ConfigError(
            "tfpipe stage writes one list, and data.train_filelist mixes several by their weights: stage each alone, "
            "to a folder of its own, and mix the copies' lists"
        )
    if isinstance(source, PackedSource):
        return _stage_packed(source.folder, splits, staging)
    remote = config.remote.model_copy(update={"cache": None})
    config = config.model_copy(update={"cache": None, "service": None, "remote": remote})
    plans = {split: _plan(config, split, out, world, share) for split in splits}
    boxed = [split for split, plan in plans.items() if reads_boxes(config, split, plan.split.catalog.paths)]
    if boxed and _whole(config, plans):
        raise ConfigError(
            f"the {boxed[0]} data has boxes and the other is a folder without XMLs, which no one config reads from "
            "the copies: stage them one at a time, with --split train and --split test"
        )
    overrides = _overrides(config, plans, out)

    def copy() -> Copies:
        return functools.reduce(Copies.plus, (_copy(plan, staging) for plan in plans.values()))

    def finish() -> None:
        for split, plan in plans.items():
            _write_lists(config, split, plan, out)

    return StageResult(staging.run(lambda: None, copy, finish), overrides)


def target_of(out: Path, source: str) -> str:
    """Returns the target of a file, or of a folder that ends in a slash; always inside `out`, despite any ".."."""
    path = source.partition("://")[2] or source
    inside = os.path.normpath("/" + path.lstrip("/"))
    return f"{out}{inside}/" if path.endswith("/") else f"{out}{inside}"


def _targets(out: Path, folders: Sequence[str]) -> list[str]:
    """Returns the targets of folders; raises ConfigError if two that are not the same would have one.

    So do lnk/../cat and cat, where lnk is a link to another place.
    """
    targets = [target_of(out, folder) for folder in folders]
    first: dict[str, str] = {}
    for folder, target in zip(folders, targets, strict=True):
        other = first.setdefault(target, folder)
        if other != folder and ("://" in folder or os.path.realpath(other) != os.path.realpath(folder)):
            raise ConfigError(
                f"the folders {other} and {folder} are not the same, and would have one copy, {target}: write the "
                "paths of the list without .."
            )
    return targets


def _plan(config: DataConfig, split: str, out: Path, world: World, share: Share | None) -> StagePlan:
    # With the unit "image", the catalog has boxes only if there is an index; then XMLs need not be copied.
    loaded = load_split(config.model_copy(update={"unit": "image"} | config.targets.unread), split, world)
    catalog = loaded.catalog
    node = Share(world.local_rank, world.local_size)
    whose = share or (Share(world.rank, world.size) if config.scope == "shard" else node)
    images = np.arange(whose.rank, len(catalog), whose.size)
    if split == "train" and config.unit == "box" and whose.size > 1 and whose != node:
        boxes = load_split(config, split, world).catalog.sampled_boxes
        if boxes is not None:
            images = np.unique(boxes.images[whose.rank :: whose.size]).astype(np.int64)
    annotated = np.flatnonzero(catalog.annotated) if catalog.boxes is None else np.zeros(0, np.int64)
    paths = replace(catalog.paths, folders=_targets(out, catalog.paths.folders))
    return StagePlan(loaded, paths, images, annotated[annotated % node.size == node.rank])


def _copy(plan: StagePlan, staging: Staging) -> Copies:
    """Copies the files of a plan; raises ConfigError if those that are missing do not fit."""
    copier, data = Copier(plan.split, staging.scratch), f"{plan.split.catalog.split} data"
    missing = [file.source for file in plan.files(staging.out) if not os.path.exists(file.target)]
    sampled = [missing[number] for number in evenly_spaced(len(missing), SAMPLED)]
    sizes = [each.size for each in copier.stamps(sampled) if isinstance(each, Stamp) and each.size is not None]
    if sizes:
        staging.check_room(
            f"{counted(len(missing), 'file')} of {data} will take", len(missing) * float(np.mean(sizes)), estimated=True
        )
    files = plan.files(staging.out)
    groups = iter(lambda: list(islice(files, TOGETHER)), [])
    shown = partial(
        progress, total=-(-len(plan) // TOGETHER), label=f"copying {data}", unit="batch", show=staging.world.rank == 0
    )
    return copy_all(copier.copy, groups, copier.threads, shown)


def _write_lists(config: DataConfig, split: str, plan: StagePlan, out: Path) -> None:
    """Writes the list, with paths relative to its folder, and copies its index if there is one."""
    base = f"{out}/"
    folders = [folder.removeprefix(base) for folder in plan.paths.folders]
    target = out / LISTS[split]
    write_filelist(target, (folders[number] + name for number, name in plan.paths.entries()))
    beside = index_path(config.model_copy(update={"index": None}), target)
    if plan.split.catalog.boxes is None and reads_boxes(config, split, plan.split.catalog.paths):
        beside.unlink(missing_ok=True)  # of an earlier copy: the XMLs count
    elif plan.split.catalog.boxes is not None:
        # Imported late: pyarrow takes as long to import as a filelist takes to read.
        from tfpipe.data.catalog.index import copy_index, index_fingerprint

        paths = read_filelist(target)
        source = config.box_file_for(split) or find_layout(config.layout, paths)
        key = index_fingerprint(paths, plan.split.object_classes, plan.split.catalog.labels, source, config.turn)
        copy_index(index_path(config, config.filelist_for(split)), beside, paths, key)


def _overrides(config: DataConfig, plans: dict[str, StagePlan], out: Path) -> list[str]:
    overrides = [f"data.{split}_filelist={literal(out / LISTS[split])}" for split in plans]
    overrides += class_level_of_copy(config, {split: plan.split.catalog for split, plan in plans.items()})
    if config.index is not None:
        overrides.append("data.index=null")
    # Training would look for the XMLs of a list, unlike those of a folder.
    if _whole(config, plans):
        overrides.append("data.annotations=none")
    return overrides


def _whole(config: DataConfig, plans: dict[str, StagePlan]) -> bool:
    """Returns whether the images of folders are used whole, although the config does not say so."""
    return config.annotations != "none" and any(
        config.uses_boxes(split) and not reads_boxes(config, split, plan.split.catalog.paths)
        for split, plan in plans.items()
    )


def _stage_packed(folder: AnyPath, splits: list[str], staging: Staging) -> StageResult:
    """Copies packed data as `stage` does files, but whole; the manifests come last: if they exist, all files do.

    The files are compared with the manifest's checksums on the way.
    """
    out, world = staging.out, staging.world
    if staging.share is not None:
        raise ConfigError("--share is for loose files, and packed data are copied whole: leave it out")
    if isinstance(folder, Path) and out.resolve() == folder.resolve():
        raise ConfigError(f"--out is the folder of the packed data itself, {out}")
    paths = [folder / manifest_name(split) for split in splits]
    manifests = [Manifest.read(path) for path in paths]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    files = [file for manifest in manifests for file in (*manifest.shards, *manifest.tables)]
    rank_files = files[world.local_rank :: world.local_size]

    def prepare() -> None:
        notes = {path: out / f".{path.name}.staged" for path in paths}
        for (path, note), digest in zip(notes.items(), digests, strict=True):
            if note.exists() and note.read_text() != digest:
                raise ConfigError(f"{out} holds a copy of other data than {path}: remove it, or copy to another folder")
        missing = sum(file["bytes"] for file in files if not (out / file["name"]).exists())
        # Of all ranks of the node, before anything says what is copied.
        staging._replace(world=World()).check_room("the packed data needs", missing)
        for note, digest in zip(notes.values(), digests, strict=True):
            with atomic_write(note) as unfinished:
                unfinished.write_text(digest)

    def copy() -> Copies:
        shown = partial(progress, total=len(rank_files), label="copying packed data", unit="file", show=world.rank == 0)
        return copy_all(partial(_copy_file, staging, folder), rank_files, SHARDS_TOGETHER, shown)

    def finish() -> None:
        for path in paths:
            with atomic_write(out / path.name, sync=True) as unfinished:
                unfinished.write_bytes(path.read_bytes())

    return StageResult(staging.run(prepare, copy, finish), [f"data.source.path={out}"])


def _copy_file(staging: Staging, folder: AnyPath, file: dict[str, Any]) -> Copies:
    """Copies a file of a manifest unless it is there; returns errors instead of raising them."""
    source, target = folder / file["name"], staging.out / file["name"]
    if target.exists() and target.stat().st_size == file["bytes"]:
        return Copies(there=1)
    try:
        retried(_copy_shard)(source, file, target, staging.scratch)
    except OSError as error:
        return Copies(errors=(f"cannot copy {source} to {target}: {error.strerror or error}",))
    except ValueError as error:
        return Copies(errors=(f"{source} {error}: find all such files with tfpipe pack --verify",))
    return Copies(files=1, bytes=file["bytes"])


def _copy_shard(source: AnyPath, file: dict[str, Any], target: Path, scratch: Path) -> None:
    """Copies a file, atomically and to the disk; raises OSError, or ValueError if it is not as it was packed."""
    digest, size = hashlib.sha256(), 0
    with source.open() if isinstance(source, UrlPath) else source.open("rb", buffering=0) as shard:
        with atomic_write(target, sync=True, scratch=scratch) as unfinished, unfinished.open("wb") as copy:
            while block := shard.read(COPY_BYTES):
                digest.update(block)
                copy.write(block)
                size += len(block)
            if (size, digest.hexdigest()) != (file["bytes"], file["sha256"]):
                raise ValueError("is not what was packed")
