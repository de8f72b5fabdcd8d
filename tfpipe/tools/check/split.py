"""Checks whether training can use the images of a split: reads each once, decodes it completely, and parses its XML.

`check` divides the images among ranks and processes (reading.py), whichever source they come from. TensorFlow decides
about images that the libraries doubt. Images and splits are compared with each other by paths and by contents, and
result.py defines the kinds of oddity.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.config.targets import UNCLASSED
from tfpipe.data.annotations.masks import read_mask
from tfpipe.data.catalog.box_tables import BoxTable, read_box_table
from tfpipe.data.catalog.filelist import load_list, read_filelist
from tfpipe.data.catalog.labels import Labels, find_labels
from tfpipe.data.catalog.layout import annotation_folders, existing, find_layout, mask_paths
from tfpipe.data.catalog.load import classes_of, reads_boxes
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.catalogs import images_catalog
from tfpipe.data.sources.files import Files, FileSplit, kind_of, storage_of
from tfpipe.data.sources.registry import open_source
from tfpipe.data.sources.remote.source import UrlSplit
from tfpipe.data.sources.source import BaseSource
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.prepare.index import images_of
from tfpipe.tools.check.reading import DIGEST_BYTES, Chunk, Doubt, Findings, Outcome, attempt, look, try_in_tensorflow
from tfpipe.tools.check.result import STOPS, CheckResult, bits
from tfpipe.util.pools import parallel
from tfpipe.util.progress import progress
from tfpipe.util.resources import usable_cpus

# Images per task of a process, and per task whose images this process reads itself, and hands over.
IMAGES_PER_TASK = 200
HANDED_OVER = 32
# Name of an image that has none of its own: its number in a table or a shard.
NUMBERED = re.compile(r":\d+$")


class CheckTarget(NamedTuple):
    """A split to check."""

    place: str  # the filelist, or the source of the data
    split: Split
    reads_xmls: bool  # True if training with this config uses boxes of XMLs or a table
    labels: Labels | None = None  # of a filelist; those of other sources are all known
    table: BoxTable | None = None  # boxes of a filelist that take the XMLs' place


def check(config: DataConfig, splits: Sequence[str], world: World, processes: int | None = None) -> list[CheckResult]:
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
    if isinstance(source, Files):
        for split in splits:
            filelist = config.train_filelist if split == "train" else config.test_filelist
            if not isinstance(filelist, Path):
                why = "is not set" if filelist is None else "is several; check them one at a time, with --set"
                raise ConfigError(f"no {split} list to check: data.{split}_filelist {why}")
    results = [_check_split(_target_of(source, split, world), processes) for split in splits]
    other_paths = [_other_paths(source, result, results, world) for result in results]
    if world.rank > 0:
        return results
    for number, other in enumerate(other_paths):
        if other is not None:
            paths, others = results[number].catalog.paths, set(other)
            overlap = np.fromiter((path in others for path in paths), bool, len(paths))
            results[number] = _with_code(results[number], overlap, "in both lists")
    if len(results) == 2:
        first, second = (result.digests for result in results)
        both = np.isin(first, second) & _known_digests(first), np.isin(second, first) & _known_digests(second)
        results = [_with_code(result, mask, "contents in both") for result, mask in zip(results, both, strict=True)]
    return results


def _other_paths(source: BaseSource, checked: CheckResult, results: list[CheckResult], world: World) -> FileList | None:
    """Returns the paths of the split that is not `checked`; None if there is none, or the names tell no image apart."""
    if not checked.by_path:
        return None
    config = source.config
    other = "test" if checked.catalog.split == "train" else "train"
    paths = next((result.catalog.paths for result in results if result.catalog.split == other), None)
    if paths is not None or (other == "test" and not source.has_test()):
        return paths
    if not isinstance(source, Files):
        return source.open(other, world).catalog.paths
    filelist = config.train_filelist if other == "train" else config.test_filelist
    return read_filelist(filelist) if isinstance(filelist, Path) and world.rank == 0 else None


def _with_code(checked: CheckResult, mask: np.ndarray, code: str) -> CheckResult:
    return replace(checked, codes=checked.codes | mask.astype(np.int64) * bits({code}))


def _check_split(subject: CheckTarget, processes: int | None) -> CheckResult:
    split, catalog, world = subject.split, subject.split.catalog, subject.split.world
    size = IMAGES_PER_TASK if isinstance(split, FileSplit) else HANDED_OVER
    chunks = [range(start, min(start + size, len(catalog))) for start in range(0, len(catalog), size)]

    def examine(chunks: Sequence[range]) -> list[_ChunkResult]:
        items = [item for chunk in chunks for item in chunk]
        seen = iter(_check_masks(split, items, _recheck(split, items, _look(subject, chunks, processes))))
        return [_pack(list(islice(seen, len(chunk)))) for chunk in chunks]

    codes, digests = np.zeros(len(catalog), np.int64), np.zeros(len(catalog), f"V{DIGEST_BYTES}")
    reasons: dict[int, str] = {}
    size = 0
    for chunk, packed in zip(chunks, world.share(chunks, examine), strict=True):
        where = slice(chunk.start, chunk.stop)
        codes[where], digests[where] = packed.codes, packed.digests
        reasons |= {chunk[place]: reason for place, reason in packed.reasons.items()}
        size += packed.bytes
    by_path = isinstance(split, FileSplit | UrlSplit)
    facts = subject.place, subject.labels is not None, by_path, catalog, size, subject.reads_xmls
    checked = CheckResult(*facts, {}, codes, digests, reasons)
    return checked if world.rank > 0 else _merge_ranks(checked, subject)


def _merge_ranks(checked: CheckResult, subject: CheckTarget) -> CheckResult:
    """Adds the oddities that concern labels or several images at a time."""
    catalog, reasons, labels = checked.catalog, dict(checked.reasons), subject.labels
    unknown = np.zeros(len(catalog), bool)
    if labels is not None:
        unknown[labels.unknown] = True
        for item in labels.unknown.tolist():
            reasons[item] = "; ".join(filter(None, (reasons.get(item), labels.spelt(item))))
    again, first = first_places(catalog.paths if checked.by_path else identities(catalog.paths, checked.digests))
    where = "as on line {}" if checked.is_list else "as image {}"
    reasons |= {item: where.format(first[item] + 1) for item in first if item not in reasons}
    same = twice(checked.digests, again)
    bare = np.zeros(len(catalog), bool)
    if checked.reads_xmls and subject.table is None:
        # Only now is it known which images behind HTTP have an XML.
        catalog = replace(catalog, annotated=catalog.annotated & ~checked.having(["no xml"]))
        bare = ~catalog.annotated
    checked = replace(checked, catalog=catalog, reasons=reasons)
    for code, mask in {"unknown label": unknown, "listed twice": again, "same contents": same, "no xml": bare}.items():
        checked = _with_code(checked, mask, code)
    if subject.split.config.targets.kind not in UNCLASSED and (not catalog.by_object or unknown.any()):
        counts = np.bincount(catalog.labels[catalog.labels >= 0], minlength=len(catalog.classes))
        checked = replace(checked, classes=dict(zip(catalog.classes, counts.tolist(), strict=True)))
    return checked


def _target_of(source: BaseSource, name: str, world: World) -> CheckTarget:
    if isinstance(source, Files):
        return _list_target(source.config, name, world)
    split = source.open(name, world)
    if split.stores != "images":
        raise ConfigError(
            f"{source.display_name} holds {split.stores}, and check reads whole images: check the images before they "
            f"are packed; of what is packed, tfpipe pack --verify {source.display_name} compares the checksums"
        )
    return CheckTarget(source.display_name, split, reads_xmls=False)


def _list_target(config: DataConfig, split: str, world: World) -> CheckTarget:
    """Builds the catalog like catalog.load_listed, but without an index, and even if labels are unknown classes."""
    entries = load_list(config, split, world)
    paths, classes = entries.paths, classes_of(config, split, entries, world)
    labels = find_labels(paths, classes, config, config.label_file_for(split), entries.folder_classes)
    catalog = replace(images_catalog(split, paths, labels.numbers, classes), ledger=entries.ledger)
    reads, box_file, table = reads_boxes(config, split, paths), config.box_file_for(split), None
    if reads and box_file is not None:
        table = world.from_rank0(
            lambda: read_box_table(box_file, paths, labels.numbers, config.targets.of_objects(classes))
        )
    elif reads:
        layout = find_layout(config.layout, paths)
        storage = storage_of(config, paths)
        annotated = world.from_rank0(lambda: existing(paths, layout, storage, show=world.rank == 0))
        folders = annotation_folders(paths, layout)
        catalog = replace(catalog, annotation_folders=folders, annotated=annotated, annotation_format=layout.format)
    if config.targets.kind == "mask":
        catalog = replace(catalog, masks=mask_paths(paths, config.targets.masks))
    return CheckTarget(str(config.filelist_for(split)), kind_of(paths)(config, catalog, world), reads, labels, table)


def _chunks(subject: CheckTarget, chunks: Sequence[range]) -> Iterator[Chunk]:
    split, catalog = subject.split, subject.split.catalog
    if not subject.reads_xmls:
        split = replace(split, catalog=replace(catalog, annotated=np.zeros(len(catalog), bool)))
    with ThreadPoolExecutor(HANDED_OVER) as pool:
        for chunk in chunks:
            images, contents, texts = images_of(split, subject.table, chunk), None, None
            if not isinstance(split, FileSplit):
                # Other processes can read files; only this one has another kind's access.
                contents = list(pool.map(partial(attempt, split.image), chunk))
                texts = list(pool.map(partial(_read_xml, split), images.annotations))
            stated = None if catalog.stated is None else catalog.stated[chunk.start : chunk.stop]
            yield Chunk(images, contents, texts, stated)


def _read_xml(split: Split, path: str) -> Outcome | None:
    storage = split.storage
    return attempt(lambda path: storage.contents([path])[0], path) if path and storage is not None else None


def _look(subject: CheckTarget, chunks: Sequence[range], processes: int | None) -> list[Findings]:
    config, catalog, world = subject.split.config, subject.split.catalog, subject.split.world
    classes = {name: number for number, name in enumerate(subject.split.object_classes)}
    work = partial(look, classes=classes, most_pixels=config.max_pixels)
    processes = min(processes or world.threads or usable_cpus(), max(1, len(chunks)))
    label = f"checking {catalog.split} data ({counted(max(map(len, chunks), default=0), 'image')} each)"
    try:
        seen = parallel(work, _chunks(subject, chunks), processes, look.__module__)
        return list(chain.from_iterable(progress(seen, len(chunks), label, "chunk", world.rank == 0)))
    except BrokenProcessPool as error:
        raise TfpipeError("a process was killed; if memory was short, use fewer: --processes") from error


def _recheck(split: Split, items: list[int], seen: list[Findings]) -> list[Findings]:
    """Adds TensorFlow's verdict on the doubtful images."""
    doubts = {
        number: Doubt(partial(attempt, split.image, item), entry.damage)
        for number, (item, entry) in enumerate(zip(items, seen, strict=True))
        if entry.damage
    }
    if doubts:
        verdicts = try_in_tensorflow(list(doubts.values()), split.config, show=split.world.rank == 0)
        for number, (code, reason) in zip(doubts, verdicts, strict=True):
            entry = seen[number]
            reasons = "; ".join(filter(None, (entry.reason, reason)))
            # For an unusable image other oddities do not matter.
            others = {other for other in entry.codes if code not in STOPS or other in STOPS}
            seen[number] = entry._replace(codes=others | ({code} - {""}), reason=reasons)
    return seen


def _check_masks(split: Split, items: list[int], seen: list[Findings]) -> list[Findings]:
    """Adds what is wrong with the masks of images that can be used; without masks, returns `seen`."""
    if split.config.targets.kind in UNCLASSED:
        # Their objects need no class.
        seen = [entry._replace(codes=entry.codes - {"class unknown"}) for entry in seen]
    if split.catalog.masks is None:
        return seen
    sound = [number for number, entry in enumerate(seen) if entry.codes.isdisjoint(STOPS)]
    with ThreadPoolExecutor(HANDED_OVER) as pool:
        problems = pool.map(partial(_mask_problem, split), (items[number] for number in sound))
        for number, problem in zip(sound, problems, strict=True):
            if problem:
                reason = "; ".join(filter(None, (seen[number].reason, problem)))
                seen[number] = seen[number]._replace(codes=seen[number].codes | {"bad mask"}, reason=reason)
    return seen


def _mask_problem(split: Split, item: int) -> str:
    """Returns why the mask of an image that can be used cannot, with its path; "" if it can."""
    path = split.catalog.annotation(item)
    try:
        header = header_of(split.image(item), split.name(item))
        read_mask(split.mask(item), header.turned(split.config.turn)[:2])
    except (OSError, ValueError, TfpipeError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    return ""


class _ChunkResult(NamedTuple):
    """The results of a chunk, compact enough to be sent."""

    codes: np.ndarray
    digests: np.ndarray
    reasons: dict[int, str]
    bytes: int


def _pack(seen: list[Findings]) -> _ChunkResult:
    return _ChunkResult(
        np.array([bits(entry.codes) for entry in seen], np.int64),
        np.frombuffer(b"".join(entry.digest for entry in seen), f"V{DIGEST_BYTES}"),
        {number: entry.reason for number, entry in enumerate(seen) if entry.reason},
        sum(entry.size for entry in seen),
    )


def identities(names: FileList, digests: np.ndarray) -> Iterator[str]:
    """Yields a text for each image of a table or of shards, equal for equal ones: those of one name and content.

    A name alone is not enough, since shards may each begin with 0.jpg; an image without a name of its own has its
    content. An image without content (`digests`, void [n], is zeros) equals no other.
    """
    for item, (name, digest, has_digest) in enumerate(zip(names, digests, _known_digests(digests), strict=True)):
        if has_digest:
            yield f"{'' if NUMBERED.search(name) else name}\n{digest.tobytes().hex()}"
        else:
            yield f"{item}"


def first_places(paths: Iterable[str]) -> tuple[np.ndarray, dict[int, int]]:
    """Returns bool [n], the paths that repeat an earlier one, and the first index of each of these paths."""
    places: dict[str, int] = {}
    first = {}
    for item, path in enumerate(paths):
        if (before := places.setdefault(path, item)) != item:
            first[item] = before
    again = np.zeros(len(places) + len(first), bool)
    again[list(first)] = True
    return again, first


def twice(digests: np.ndarray, again: np.ndarray) -> np.ndarray:
    """Returns bool [n]: the images whose contents an earlier path has too.

    `digests` (void [n]) are zeros for files without contents; paths that repeat an earlier one (`again`, bool [n]) do
    not count.
    """
    places = np.flatnonzero(~again & _known_digests(digests))
    _, first = np.unique(digests[places], return_index=True)
    same = np.zeros(len(digests), bool)
    same[np.delete(places, first)] = True
    return same


def _known_digests(digests: np.ndarray) -> np.ndarray:
    return digests != np.zeros(1, digests.dtype)
