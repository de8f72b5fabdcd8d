"""The kinds of oddity, and the result of checking a split: its text, its JSON, and a list of what can be trained on."""

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tfpipe.data.catalog.filelist import read_lines, write_filelist
from tfpipe.data.catalog.index import ODD
from tfpipe.data.catalog.labels import near_names
from tfpipe.data.catalog.types import Catalog
from tfpipe.errors import ConfigError, counted

Harm = Literal["stops", "wrong", "handled"]
HUGE_PIXELS = 50e6
# Images named for each kind of oddity.
EXAMPLES = 5
WIDTH = 120
HEADINGS: dict[Harm, str] = {
    "stops": "stops training",
    "wrong": "wrong, though training continues",
    "handled": "odd, and handled as it should be",
}


class Kind(NamedTuple):
    """One kind of oddity."""

    harm: Harm
    """"stops": training ends there, or does not begin. "wrong": it trains on wrong data. "handled": it does the
    right thing."""
    meaning: str  # description of the oddity and of training's reaction


KINDS = {
    "missing": Kind("stops", "there is no such file; training stops there and names it"),
    "unreadable": Kind("stops", "the file cannot be read; training stops there and names it"),
    "empty": Kind("stops", "a file of 0 bytes; training stops there and names it"),
    "no image": Kind("stops", "not an image, whatever its name; training stops there and names it"),
    "truncated": Kind("stops", "a JPEG that ends too early; training stops there and names it"),
    "undecodable": Kind("stops", "an image that cannot be decoded; training stops there and names it"),
    "bad xml": Kind("stops", "an XML that cannot be read, is malformed, or lacks a number; training stops there"),
    "size turned": Kind("stops", "the size stated is of the image as EXIF turns it, or not; data.exif has the other"),
    "bad mask": Kind("stops", "a mask that is missing, damaged, or does not fit its image; training stops there"),
    "unknown label": Kind("stops", "a label that is no class; training does not begin"),
    "damaged": Kind("wrong", "a damaged JPEG that can be decoded; trained on, with what may be garbled in it"),
    "listed twice": Kind("wrong", "an image that is in the data several times; trained on as often in each epoch"),
    "in both lists": Kind("wrong", "a path in both the training and the test data; the test uses training images"),
    "contents in both": Kind(
        "wrong", "the same bytes in the training and in the test data; the test uses training images"
    ),
    "same contents": Kind("handled", "the same bytes as another image of the split; trained on as any other"),
    "no xml": Kind("handled", "no XML; the whole image is the crop, or, if objects have the labels, there is none"),
    "file name": Kind("handled", 'the XML\'s <filename> is another, or "%s"; its own path counts, not that'),
    "orientation": Kind("handled", "EXIF says how to turn it; data.exif says whether training does"),
    "huge": Kind("handled", f"more than {HUGE_PIXELS / 1e6:.0f} million pixels; slow, and takes memory"),
    **{code: Kind("handled", meaning) for code, meaning in ODD.items()},
}
CODES = tuple(KINDS)
# Handled, and yet a reason for `check --strict` to fail: labels or places that may be meant otherwise.
STRICT = ("class unknown", "class differs", "size differs")
STOPS = tuple(code for code in CODES if KINDS[code].harm == "stops")


def bits(codes: set[str]) -> int:
    """Encodes a set of codes as an integer; bit i stands for CODES[i]."""
    return sum(1 << CODES.index(code) for code in codes)


@dataclass(frozen=True)
class Oddity:
    """One kind of oddity in a list."""

    code: str  # key of KINDS
    count: int
    examples: list[dict[str, str]]
    """The first images of this kind, in the list's order: "path", and "reason" if it says more than the kind, or ""."""


@dataclass(frozen=True)
class CheckResult:
    """The result of checking a split."""

    place: str  # the filelist, or the source of the data
    is_list: bool  # True if `place` is a filelist
    by_path: bool  # True if the images' names are paths or URLs, which tell images apart
    catalog: Catalog
    bytes: int  # total size of the image files
    reads_xmls: bool  # True if training with this config uses boxes
    classes: dict[str, int]  # images per class; empty if labels come from objects
    codes: np.ndarray  # int64 [n]: each image's codes, as a bit set of `bits`
    digests: np.ndarray  # void [n]: digests of the contents; zeros if there are none
    reasons: dict[int, str]  # details of an image's fault, by index, if they say more than the code

    @property
    def oddities(self) -> list[Oddity]:
        """The kinds of oddity found, in the order of KINDS."""
        result = []
        for number, code in enumerate(CODES):
            items = np.flatnonzero(self.codes >> number & 1)
            if items.size:
                paths, first = self.catalog.paths, items[:EXAMPLES].tolist()
                examples = [{"path": paths[item], "reason": self.reasons.get(item, "")} for item in first]
                result.append(Oddity(code, int(items.size), examples))
        return result

    def having(self, codes: Sequence[str]) -> np.ndarray:
        """Returns bool [n]: the images that have one of these codes."""
        return self.codes & bits(set(codes)) != 0


def render(checked: Sequence[CheckResult]) -> str:
    """Returns a text with each kind of oddity, its count, training's reaction, and some examples."""
    return "\n".join(line for result in checked for line in _lines(result))


def conclusion(checked: Sequence[CheckResult]) -> str | None:
    """Returns the problems to fix; None if there are none."""
    problems = []
    for result in checked:
        for harm, effect in (("stops", "would stop training"), ("wrong", "are wrong")):
            catalog, noun = result.catalog, "list" if result.is_list else "data"
            images = int(result.having([code for code, kind in KINDS.items() if kind.harm == harm]).sum())
            if images:
                problems.append(f"{images} of {len(catalog)} images of the {catalog.split} {noun} {effect}")
    return "; ".join(problems) or None


def strictly(checked: Sequence[CheckResult]) -> str | None:
    """Returns what is left out of the data, or could be meant otherwise than it is used; None if nothing is."""
    problems = []
    for result in checked:
        of_split = f"of the {result.catalog.split} data"
        left_out = sum(count for count, _ in result.catalog.ledger.counts.values())
        if left_out:
            problems.append(f"{counted(left_out, 'entry')} {of_split} not used")
        for code in STRICT:
            images = int(result.having([code]).sum())
            if images:
                problems.append(f'{counted(images, "image")} {of_split} odd, "{code}"')
    # Both splits have one class table.
    for one, other in near_names(checked[0].catalog.classes):
        problems.append(f"the classes {one!a} and {other!a} differ only by blanks, case or a byte order mark")
    return "; ".join(problems) or None


def as_json(checked: Sequence[CheckResult]) -> dict[str, Any]:
    """Returns all results as nested dicts with descriptive keys."""
    return {
        "clean": conclusion(checked) is None,
        "lists": [
            {
                "split": result.catalog.split,
                "filelist": result.place,
                "images": len(result.catalog),
                "annotated": int(result.catalog.annotated.sum()),
                "reads_xmls": result.reads_xmls,
                "bytes": result.bytes,
                "images_of_class": result.classes,
                "not_used": result.catalog.ledger.texts,
                "oddities": [
                    {**vars(oddity), "harm": KINDS[oddity.code].harm, "said": KINDS[oddity.code].meaning}
                    for oddity in result.oddities
                ],
            }
            for result in checked
        ],
    }


def _lines(checked: CheckResult) -> list[str]:
    catalog = checked.catalog
    annotated = f", {int(catalog.annotated.sum()):,} with {'an XML' if checked.reads_xmls else 'boxes'}"
    if checked.is_list and not checked.reads_xmls:
        annotated = ", XMLs not read"
    lines = [
        f"{catalog.split}: {counted(len(catalog), 'image')} of {checked.place}{annotated}, {checked.bytes / 1e9:.3g} GB"
    ]
    lines += _classes(checked.classes)
    lines += [f"  not used: {text}" for text in catalog.ledger.texts]
    oddities = checked.oddities
    for harm, heading in HEADINGS.items():
        of_this = [oddity for oddity in oddities if KINDS[oddity.code].harm == harm]
        if of_this:
            lines.append(f"  {heading}:")
        for oddity in of_this:
            lines += _describe(oddity, in_full=harm != "handled")
    return lines if oddities or catalog.ledger else [*lines, "  nothing odd"]


def _describe(oddity: Oddity, in_full: bool) -> list[str]:
    head = f"{oddity.count:>9,} {oddity.code:<16} "
    blank = " " * len(head)
    text = textwrap.wrap(KINDS[oddity.code].meaning, WIDTH, initial_indent=head, subsequent_indent=blank)
    ellipsis = ["..."] if oddity.count > EXAMPLES else []
    if in_full:
        examples = [": ".join(filter(None, example.values())) for example in oddity.examples]
        return [*text, *(blank + line for line in [*examples, *ellipsis])]
    names = ", ".join([os.path.basename(example["path"]) for example in oddity.examples] + ellipsis)
    return [*text, *textwrap.wrap(names, WIDTH, initial_indent=blank, subsequent_indent=blank)]


def _classes(counts: dict[str, int]) -> list[str]:
    """Returns lines on the distribution of images over the classes."""
    if not counts:
        return []
    used = {name: count for name, count in counts.items() if count}
    lines = [f"  {counted(len(counts), 'class')}"]
    if used:
        least, most = min(used, key=used.__getitem__), max(used, key=used.__getitem__)
        few, many = counted(used[least], "image"), f"{used[most]:,}"
        lines[0] += f": {few} each" if used[least] == used[most] else f": from {few} ({least}) to {many} ({most})"
    without = [name for name in counts if name not in used]
    if without:
        names = ", ".join(without[:EXAMPLES] + ["..."] * (len(without) > EXAMPLES))
        lines.append(f"  {len(without):,} of them without an image: {names}")
    return lines


def write_clean_list(checked: CheckResult, out: Path) -> int:
    """Writes the usable lines of a list in its order; returns the number of lines left out.

    Elsewhere than in the list's folder they become absolute. Raises ConfigError if none is left, or none can be
    written.
    """
    filelist, paths = Path(checked.place), checked.catalog.paths
    if filelist.is_file() and out.parent.absolute() == filelist.parent.absolute():
        lines = [line for chunk in read_lines(filelist) for line in chunk]
    else:
        lines = [path if paths.remote else os.path.normpath(path) for path in paths]
    dropped = checked.having([*STOPS, "listed twice"])
    if dropped.all():
        raise ConfigError(f"no line of {checked.place} is left, so {out} is not written")
    write_filelist(out, (line for line, drop in zip(lines, dropped.tolist(), strict=True) if not drop))
    return int(dropped.sum())
