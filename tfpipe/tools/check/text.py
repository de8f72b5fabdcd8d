"""What `tfpipe check` says: on a screen, and as JSON."""

import os
import textwrap
from collections.abc import Sequence
from typing import Any

from tfpipe.tools.check import EXAMPLES, Checked, Oddity
from tfpipe.tools.check.kinds import KINDS, Harm

WIDTH = 120
HEADINGS: dict[Harm, str] = {
    "stops": "stops training",
    "wrong": "wrong, though training goes on",
    "handled": "odd, and handled as it should be",
}
INDENT = 27


def render(checked: Sequence[Checked]) -> str:
    """A screenful: each kind of oddity with its count, what training does about it, and some examples."""
    return "\n".join(line for each in checked for line in _lines(each))


def conclusion(checked: Sequence[Checked]) -> str | None:
    """What is to be put right; None if nothing is."""
    said = []
    for each in checked:
        for harm, what in (("stops", "would stop training"), ("wrong", "are wrong")):
            images = int(each.having([code for code, kind in KINDS.items() if kind.harm == harm]).sum())
            if images:
                said.append(f"{images} of {len(each.catalog)} images of the {each.split} list {what}")
    return "; ".join(said) or None


def as_json(checked: Sequence[Checked]) -> dict[str, Any]:
    """Everything, with names that say what they are."""
    return {
        "clean": conclusion(checked) is None,
        "lists": [
            {
                "split": each.split,
                "filelist": str(each.filelist),
                "images": len(each.catalog),
                "annotated": int(each.catalog.annotated.sum()),
                "reads_xmls": each.reads_xmls,
                "bytes": each.bytes,
                "images_of_class": each.classes,
                "oddities": [_oddity(oddity) for oddity in each.oddities],
            }
            for each in checked
        ],
    }


def _oddity(oddity: Oddity) -> dict[str, Any]:
    kind = KINDS[oddity.code]
    examples = [example._asdict() for example in oddity.examples]
    return {"code": oddity.code, "harm": kind.harm, "count": oddity.count, "said": kind.said, "examples": examples}


def _lines(checked: Checked) -> list[str]:
    catalog = checked.catalog
    annotated = f", {int(catalog.annotated.sum()):,} with an XML" if checked.reads_xmls else ", XMLs not read"
    lines = [f"{checked.split}: {len(catalog):,} images of {checked.filelist}{annotated}, {checked.bytes / 1e9:.3g} GB"]
    lines += _classes(checked.classes)
    found = checked.oddities
    for harm, heading in HEADINGS.items():
        of_this = [oddity for oddity in found if KINDS[oddity.code].harm == harm]
        if of_this:
            lines.append(f"  {heading}:")
        for oddity in of_this:
            lines += _described(oddity, in_full=harm != "handled")
    return lines if found else [*lines, "  nothing odd"]


def _described(oddity: Oddity, in_full: bool) -> list[str]:
    said = textwrap.wrap(KINDS[oddity.code].said, WIDTH - INDENT)
    head = f"{oddity.count:>9,} {oddity.code:<16} {said[0]}"
    blank = " " * INDENT
    rest = [blank + line for line in said[1:]]
    more = ["..."] if oddity.count > EXAMPLES else []
    if in_full:
        examples = [": ".join(filter(None, example)) for example in oddity.examples]
        return [head, *rest, *(blank + line for line in [*examples, *more])]
    names = ", ".join([os.path.basename(example.path) for example in oddity.examples] + more)
    return [head, *rest, *textwrap.wrap(names, WIDTH, initial_indent=blank, subsequent_indent=blank)]


def _classes(counts: dict[str, int]) -> list[str]:
    """How the images are spread over the classes."""
    if not counts:
        return []
    some = {name: count for name, count in counts.items() if count}
    lines = [f"  {len(counts):,} classes"]
    if some:
        least, most = min(some, key=some.__getitem__), max(some, key=some.__getitem__)
        lines[0] += f": from {some[least]:,} images ({least}) to {some[most]:,} ({most})"
    without = [name for name in counts if name not in some]
    if without:
        names = ", ".join(without[:EXAMPLES] + ["..."] * (len(without) > EXAMPLES))
        lines.append(f"  {len(without):,} of them without an image: {names}")
    return lines
