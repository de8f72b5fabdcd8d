"""Checks whether training can use the files of a list: reads each once, decodes it completely, and parses its XML.

`check` divides the list among ranks and processes (reading.py). TensorFlow decides about files that the libraries
doubt (doubts.py). lists.py compares files and lists with each other, and kinds.py defines the kinds of oddity.
"""

import os
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog.box_tables import BoxTable, read_box_table
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.catalog.labels import Labels, find_labels
from tfpipe.data.catalog.layout import annotation_folders, existing, find_layout
from tfpipe.data.catalog.load import classes_of
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.damage import Limits
from tfpipe.data.sources.registry import open_source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.index import images_of
from tfpipe.tools.check.doubts import Doubt, recheck_with_tensorflow
from tfpipe.tools.check.kinds import STOPS, bits
from tfpipe.tools.check.lists import first_places, in_other, shared, twice
from tfpipe.tools.check.reading import DIGEST_BYTES, Seen, look
from tfpipe.tools.check.result import Checked
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress

# Images per task of a process.
CHUNK = 200


def check(config: DataConfig, splits: Sequence[str], world: World, processes: int | None = None) -> list[Checked]:
    """Checks the files of these splits; only rank 0's result is complete.

    Files that training with `config` does not read are not checked; with both splits, their contents are compared too.
    `processes` are those of this rank; None for one per CPU that it may use.

    Raises:
        ConfigError: a list is missing, or it, the classes or a label file cannot be used.
        TfpipeError: a process was killed.
    """
    source = open_source(config)
    source.check_use("check")
    if not source.listed:
        # Needs TensorFlow, which files of a list do not.
        from tfpipe.tools.check.stored import check_stored

        return [check_stored(source, config, split, world) for split in splits if split == "train" or source.has_test()]
    lists = {"train": config.train_filelist, "test": config.test_filelist}
    single: dict[str, Path] = {}
    for split in splits:
        filelist = lists[split]
        if not isinstance(filelist, Path):
            why = "is not set" if filelist is None else "is several; check them one at a time, with --set"
            raise ConfigError(f"no {split} list to check: data.{split}_filelist {why}")
        single[split] = filelist
    results = [_check_split(config, split, filelist, world, processes) for split, filelist in single.items()]
    if world.rank > 0:
        return results
    others = {"train": lists["test"], "test": lists["train"]}
    for number, result in enumerate(results):
        other = others[result.split]
        if isinstance(other, Path):
            overlap = in_other(result.catalog.paths, read_filelist(other))
            results[number] = _with_code(result, overlap, "in both lists")
    if len(results) == 2:
        both = shared(results[0].digests, results[1].digests)
        results = [_with_code(result, mask, "contents in both") for result, mask in zip(results, both, strict=True)]
    return results


def _with_code(checked: Checked, mask: np.ndarray, code: str) -> Checked:
    return replace(checked, codes=checked.codes | mask.astype(np.int64) * bits({code}))


def _check_split(config: DataConfig, split: str, filelist: Path, world: World, processes: int | None) -> Checked:
    catalog, labels, table = _catalog(config, split, filelist, world)
    chunks = [range(start, min(start + CHUNK, len(catalog))) for start in range(0, len(catalog), CHUNK)]
    mine = chunks[world.rank :: world.size]
    seen, problem = _look(config, catalog, table, mine, world, processes)
    items = [item for chunk in mine for item in chunk]
    if problem is None:
        seen = _settled(config, catalog, items, seen, world)
    gathered = world.gather((_packed(seen), problem))
    problems = [problem for _, problem in gathered if problem]
    if problems:
        raise TfpipeError(problems[0])
    codes, digests = np.zeros(len(catalog), np.int64), np.zeros(len(catalog), f"V{DIGEST_BYTES}")
    reasons: dict[int, str] = {}
    size = 0
    for rank, (packed, _) in enumerate(gathered):
        where = [item for chunk in chunks[rank :: world.size] for item in chunk]
        codes[where], digests[where] = packed.codes, packed.digests
        reasons |= {where[place]: reason for place, reason in packed.reasons.items()}
        size += packed.bytes
    checked = Checked(split, filelist, catalog, size, _reads_xmls(config, split), {}, codes, digests, reasons)
    if world.rank > 0:
        return checked
    return _as_a_list(checked, labels, table)


def _as_a_list(checked: Checked, labels: Labels, table: BoxTable | None) -> Checked:
    """Adds the oddities that concern labels or several images at a time."""
    catalog, reasons = checked.catalog, dict(checked.reasons)
    unknown = np.zeros(len(catalog), bool)
    unknown[labels.unknown] = True
    for item in labels.unknown.tolist():
        reasons[item] = "; ".join(filter(None, (reasons.get(item), labels.spelt(item))))
    again, first = first_places(catalog.paths)
    reasons |= {item: f"as on line {first[item] + 1}" for item in first if item not in reasons}
    same = twice(checked.digests, again)
    bare = ~catalog.annotated if checked.reads_xmls and table is None else np.zeros(len(catalog), bool)
    checked = replace(checked, reasons=reasons)
    for code, mask in {"unknown label": unknown, "listed twice": again, "same contents": same, "no xml": bare}.items():
        checked = _with_code(checked, mask, code)
    if not catalog.by_object or labels.unknown.size:
        counts = np.bincount(catalog.labels[catalog.labels >= 0], minlength=len(catalog.classes))
        checked = replace(checked, classes=dict(zip(catalog.classes, counts.tolist(), strict=True)))
    return checked


def _catalog(config: DataConfig, split: str, filelist: Path, world: World) -> tuple[Catalog, Labels, BoxTable | None]:
    """Builds the catalog like catalog.load_catalog, but without an index, and even if labels are unknown classes."""
    paths = read_filelist(filelist)
    if paths.remote:
        raise ConfigError(f"{filelist} holds URLs, and check reads files: copy them first, with `tfpipe stage`")
    classes = classes_of(config, split, paths)
    labels = find_labels(paths, classes, config, config.label_file_for(split))
    none = np.zeros(len(paths), bool)
    catalog = Catalog(split, open_source(config), paths, [""] * len(paths.folders), none, labels.numbers, classes)
    source = config.box_file_for(split)
    if not _reads_xmls(config, split):
        return catalog, labels, None
    if source is not None:
        return catalog, labels, world.from_rank0(lambda: read_box_table(source, paths, labels.numbers, classes))
    layout = find_layout(config.layout, paths)
    annotated = world.from_rank0(lambda: existing(paths, layout, show=world.rank == 0))
    return replace(catalog, annotation_folders=annotation_folders(paths, layout), annotated=annotated), labels, None


def _reads_xmls(config: DataConfig, split: str) -> bool:
    return config.annotations != "none" and config.crop_for(split) in ("boxes", "random_resized")


def _look(
    config: DataConfig,
    catalog: Catalog,
    table: BoxTable | None,
    chunks: list[range],
    world: World,
    processes: int | None,
) -> tuple[list[Seen], str | None]:
    """Reads the images of `chunks`; returns an error instead of raising it, since the other ranks wait for this one."""
    work = partial(
        look,
        classes={name: number for number, name in enumerate(catalog.classes)},
        channels=config.num_channels,
        limits=Limits(config.max_pixels, config.max_scans),
    )
    tasks = (images_of(catalog, table, chunk) for chunk in chunks)
    processes = min(processes or world.threads or len(os.sched_getaffinity(0)), max(1, len(chunks)))
    label = f"checking {catalog.split} data ({CHUNK} images each)"
    try:
        chunks_seen = progress(
            parallel(work, tasks, processes, look.__module__), len(chunks), label, "chunk", world.rank == 0
        )
        return [seen for chunk in chunks_seen for seen in chunk], None
    except BrokenProcessPool:
        return [], f"a process of rank {world.rank} was killed; if memory was short, use fewer: --processes"


def _settled(config: DataConfig, catalog: Catalog, items: list[int], seen: list[Seen], world: World) -> list[Seen]:
    """Adds TensorFlow's verdict on the doubtful images."""
    doubts = {
        place: Doubt(catalog.paths[item], entry.damage)
        for place, (item, entry) in enumerate(zip(items, seen, strict=True))
        if entry.damage
    }
    if doubts:
        verdicts = recheck_with_tensorflow(list(doubts.values()), config.num_channels, show=world.rank == 0)
        for place, (code, reason) in zip(doubts, verdicts, strict=True):
            entry = seen[place]
            reasons = "; ".join(filter(None, (entry.reason, reason)))
            # For an unusable image other oddities do not matter.
            others = {other for other in entry.codes if code not in STOPS or other in STOPS}
            seen[place] = entry._replace(codes=others | ({code} - {""}), reason=reasons)
    return seen


class _Packed(NamedTuple):
    """A rank's results, compact enough to be sent."""

    codes: np.ndarray
    digests: np.ndarray
    reasons: dict[int, str]
    bytes: int


def _packed(seen: list[Seen]) -> _Packed:
    return _Packed(
        np.array([bits(entry.codes) for entry in seen], np.int64),
        np.frombuffer(b"".join(entry.digest for entry in seen), f"V{DIGEST_BYTES}"),
        {place: entry.reason for place, entry in enumerate(seen) if entry.reason},
        sum(entry.size for entry in seen),
    )
