"""Checks whether training can use the images of a split: reads each once, decodes it completely, and parses its XML.

`check` divides the images among ranks and processes (reading.py), whichever source they come from. TensorFlow decides
about images that the libraries doubt (doubts.py). lists.py compares images and splits with each other, and kinds.py
defines the kinds of oddity.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from tfpipe.data.catalog.load import classes_of, reads_boxes
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.damage import Limits
from tfpipe.data.sources.files import Files
from tfpipe.data.sources.listed import Listed
from tfpipe.data.sources.registry import open_source
from tfpipe.data.sources.source import Source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.index import images_of
from tfpipe.tools.check.doubts import Doubt, recheck_with_tensorflow
from tfpipe.tools.check.kinds import STOPS, bits
from tfpipe.tools.check.lists import first_places, identities, in_other, shared, twice
from tfpipe.tools.check.reading import DIGEST_BYTES, Batch, Outcome, Seen, attempt, look
from tfpipe.tools.check.result import Checked
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress

# Images per task of a process, and per task whose images this process reads itself, and hands over.
CHUNK = 200
HANDED_OVER = 32


class Subject(NamedTuple):
    """A split to check."""

    place: str  # the filelist, or the source of the data
    catalog: Catalog
    reads_xmls: bool  # True if training with this config uses boxes of XMLs or a table
    labels: Labels | None = None  # of a filelist; those of other sources are all known
    table: BoxTable | None = None  # boxes of a filelist that take the XMLs' place


def check(config: DataConfig, splits: Sequence[str], world: World, processes: int | None = None) -> list[Checked]:
    """Checks the images of these splits; only rank 0's result is complete.

    Files that training with `config` does not read are not checked; with both splits, their contents are compared too.
    `processes` are those of this rank; None for one per CPU that it may use.

    Raises:
        ConfigError: the data is missing, or it, the classes or a label file cannot be used.
        TfpipeError: a process was killed.
    """
    config = config.model_copy(update={"unit": "image", "scope": "global"})
    source = open_source(config)
    source.check_use("check")
    if source.listed:
        for split in splits:
            _single_list(config, split)
    results = [_check_split(config, _subject(source, config, split, world), world, processes) for split in splits]
    others = [_other_paths(source, config, result, results, world) for result in results]
    if world.rank > 0:
        return results
    for number, other in enumerate(others):
        if other is not None:
            overlap = in_other(results[number].catalog.paths, other)
            results[number] = _with_code(results[number], overlap, "in both lists")
    if len(results) == 2:
        both = shared(results[0].digests, results[1].digests)
        results = [_with_code(result, mask, "contents in both") for result, mask in zip(results, both, strict=True)]
    return results


def _single_list(config: DataConfig, split: str) -> Path:
    filelist = {"train": config.train_filelist, "test": config.test_filelist}[split]
    if not isinstance(filelist, Path):
        why = "is not set" if filelist is None else "is several; check them one at a time, with --set"
        raise ConfigError(f"no {split} list to check: data.{split}_filelist {why}")
    return filelist


def _other_paths(
    source: Source, config: DataConfig, checked: Checked, results: list[Checked], world: World
) -> FileList | None:
    """Returns the paths of the split that is not `checked`; None if there is none, or the names tell no image apart."""
    if not isinstance(checked.catalog.source, Listed):
        return None
    other = "test" if checked.split == "train" else "train"
    known = next((result.catalog.paths for result in results if result.split == other), None)
    if known is not None or (other == "test" and not source.has_test()):
        return known
    if not source.listed:
        return source.catalog(other, world).paths
    filelist = config.train_filelist if other == "train" else config.test_filelist
    return read_filelist(filelist) if isinstance(filelist, Path) and world.rank == 0 else None


def _with_code(checked: Checked, mask: np.ndarray, code: str) -> Checked:
    return replace(checked, codes=checked.codes | mask.astype(np.int64) * bits({code}))


def _check_split(config: DataConfig, subject: Subject, world: World, processes: int | None) -> Checked:
    catalog = subject.catalog
    size = CHUNK if _reads_paths(catalog) else HANDED_OVER
    chunks = [range(start, min(start + size, len(catalog))) for start in range(0, len(catalog), size)]
    mine = world.mine(chunks)
    items = [item for chunk in mine for item in chunk]

    def examine() -> _Packed:
        return _packed(_settled(config, catalog, items, _look(config, subject, mine, world, processes), world))

    gathered = world.on_all(examine)
    codes, digests = np.zeros(len(catalog), np.int64), np.zeros(len(catalog), f"V{DIGEST_BYTES}")
    reasons: dict[int, str] = {}
    size = 0
    for rank, packed in enumerate(gathered):
        where = [item for chunk in chunks[rank :: len(gathered)] for item in chunk]
        codes[where], digests[where] = packed.codes, packed.digests
        reasons |= {where[place]: reason for place, reason in packed.reasons.items()}
        size += packed.bytes
    listed = subject.labels is not None
    about = catalog.split, subject.place, listed, catalog, size, subject.reads_xmls
    checked = Checked(*about, {}, codes, digests, reasons)
    return checked if world.rank > 0 else _together(checked, subject)


def _together(checked: Checked, subject: Subject) -> Checked:
    """Adds the oddities that concern labels or several images at a time."""
    catalog, reasons, labels = checked.catalog, dict(checked.reasons), subject.labels
    unknown = np.zeros(len(catalog), bool)
    if labels is not None:
        unknown[labels.unknown] = True
        for item in labels.unknown.tolist():
            reasons[item] = "; ".join(filter(None, (reasons.get(item), labels.spelt(item))))
    by_path = isinstance(catalog.source, Listed)
    again, first = first_places(catalog.paths if by_path else identities(catalog.paths, checked.digests))
    where = "as on line {}" if checked.listed else "as image {}"
    reasons |= {item: where.format(first[item] + 1) for item in first if item not in reasons}
    same = twice(checked.digests, again)
    bare = np.zeros(len(catalog), bool)
    if checked.reads_xmls and subject.table is None:
        # Of an image behind HTTP it is known only now whether it has one.
        catalog = replace(catalog, annotated=catalog.annotated & ~checked.having(["no xml"]))
        bare = ~catalog.annotated
    checked = replace(checked, catalog=catalog, reasons=reasons)
    for code, mask in {"unknown label": unknown, "listed twice": again, "same contents": same, "no xml": bare}.items():
        checked = _with_code(checked, mask, code)
    if not catalog.by_object or unknown.any():
        counts = np.bincount(catalog.labels[catalog.labels >= 0], minlength=len(catalog.classes))
        checked = replace(checked, classes=dict(zip(catalog.classes, counts.tolist(), strict=True)))
    return checked


def _subject(source: Source, config: DataConfig, split: str, world: World) -> Subject:
    if source.listed:
        return _listed(source, config, split, world)
    catalog = source.catalog(split, world)
    if catalog.source.stores != "images":
        raise ConfigError(
            f"{source.place} holds {catalog.source.stores}, and check reads whole images: check the images before they "
            f"are packed; of what is packed, tfpipe pack --verify {source.place} compares the checksums"
        )
    return Subject(source.place, catalog, reads_xmls=False)


def _listed(source: Source, config: DataConfig, split: str, world: World) -> Subject:
    """Builds the catalog like catalog.load_listed, but without an index, and even if labels are unknown classes."""
    filelist = _single_list(config, split)
    paths = read_filelist(filelist)
    classes = classes_of(config, split, paths)
    labels = find_labels(paths, classes, config, config.label_file_for(split))
    none = np.zeros(len(paths), bool)
    catalog = Catalog(split, source.of(paths), paths, [""] * len(paths.folders), none, labels.numbers, classes)
    box_file = config.box_file_for(split)
    if not reads_boxes(config, split, paths):
        return Subject(str(filelist), catalog, False, labels)
    if box_file is not None:
        table = world.from_rank0(lambda: read_box_table(box_file, paths, labels.numbers, classes))
        return Subject(str(filelist), catalog, True, labels, table)
    layout = find_layout(config.layout, paths)
    annotated = world.from_rank0(lambda: existing(paths, layout, world.rank == 0, catalog.source.list_folders))
    catalog = replace(catalog, annotation_folders=annotation_folders(paths, layout), annotated=annotated)
    return Subject(str(filelist), catalog, True, labels)


def _reads_paths(catalog: Catalog) -> bool:
    """Returns whether the images are files, which other processes can read; only this one has the source."""
    return type(catalog.source).image is Files.image


def _batches(subject: Subject, chunks: list[range]) -> Iterator[Batch]:
    catalog = subject.catalog
    if not subject.reads_xmls:
        catalog = replace(catalog, annotated=np.zeros(len(catalog), bool))
    if _reads_paths(catalog):
        yield from (Batch(images_of(catalog, subject.table, chunk)) for chunk in chunks)
        return
    with ThreadPoolExecutor(HANDED_OVER) as pool:
        for chunk in chunks:
            images = images_of(catalog, subject.table, chunk)
            contents = pool.map(partial(_read_image, catalog), chunk)
            texts = pool.map(partial(_read_xml, catalog), images.annotations)
            yield Batch(images, list(contents), list(texts))


def _read_image(catalog: Catalog, item: int) -> Outcome:
    return attempt(partial(catalog.source.image, catalog), item)


def _read_xml(catalog: Catalog, path: str) -> Outcome | None:
    return attempt(lambda path: catalog.source.contents([path])[0], path) if path else None


def _look(config: DataConfig, subject: Subject, chunks: list[range], world: World, processes: int | None) -> list[Seen]:
    """Reads the images of `chunks`."""
    catalog = subject.catalog
    work = partial(
        look,
        classes={name: number for number, name in enumerate(catalog.classes)},
        channels=config.num_channels,
        limits=Limits(config.max_pixels, config.max_scans),
    )
    processes = min(processes or world.threads or len(os.sched_getaffinity(0)), max(1, len(chunks)))
    label = f"checking {catalog.split} data ({max(map(len, chunks), default=0)} images each)"
    try:
        chunks_seen = progress(
            parallel(work, _batches(subject, chunks), processes, look.__module__),
            len(chunks),
            label,
            "chunk",
            world.rank == 0,
        )
        return [seen for chunk in chunks_seen for seen in chunk]
    except BrokenProcessPool as error:
        raise TfpipeError("a process was killed; if memory was short, use fewer: --processes") from error


def _settled(config: DataConfig, catalog: Catalog, items: list[int], seen: list[Seen], world: World) -> list[Seen]:
    """Adds TensorFlow's verdict on the doubtful images."""
    doubts = {
        place: Doubt(partial(_read_image, catalog, item), entry.damage)
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
