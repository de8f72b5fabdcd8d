"""Formats the result of `tfpipe check` as text and as JSON."""

import os
import textwrap
from collections.abc import Sequence
from typing import Any

from tfpipe.tools.check.kinds import KINDS, Harm
from tfpipe.tools.check.result import EXAMPLES, Checked, Oddity

WIDTH = 120
HEADINGS: dict[Harm, str] = {
    "stops": "stops training",
    "wrong": "wrong, though training goes on",
    "handled": "odd, and handled as it should be",
}
INDENT = 27


def render(checked: Sequence[Checked]) -> str:
    """Returns a text with each kind of oddity, its count, training's reaction, and some examples."""
    return "\n".join(line for result in checked for line in _lines(result))


def conclusion(checked: Sequence[Checked]) -> str | None:
    """Returns the problems to fix; None if there are none."""
    problems = []
    for result in checked:
        for harm, effect in (("stops", "would stop training"), ("wrong", "are wrong")):
            noun = "list" if result.listed else "data"
            images = int(result.having([code for code, kind in KINDS.items() if kind.harm == harm]).sum())
            if images:
                problems.append(f"{images} of {len(result.catalog)} images of the {result.split} {noun} {effect}")
    return "; ".join(problems) or None


def as_json(checked: Sequence[Checked]) -> dict[str, Any]:
    """Returns all results as nested dicts with descriptive keys."""
    return {
        "clean": conclusion(checked) is None,
        "lists": [
            {
                "split": result.split,
                "filelist": result.place,
                "images": len(result.catalog),
                "annotated": int(result.catalog.annotated.sum()),
                "reads_xmls": result.reads_xmls,
                "bytes": result.bytes,
                "images_of_class": result.classes,
                "not_used": list(result.catalog.source.left_out),
                "oddities": [_oddity(oddity) for oddity in result.oddities],
            }
            for result in checked
        ],
    }


def _oddity(oddity: Oddity) -> dict[str, Any]:
    kind = KINDS[oddity.code]
    examples = [example._asdict() for example in oddity.examples]
    return {"code": oddity.code, "harm": kind.harm, "count": oddity.count, "said": kind.meaning, "examples": examples}


def _lines(checked: Checked) -> list[str]:
    catalog = checked.catalog
    annotated = f", {int(catalog.annotated.sum()):,} with {'an XML' if checked.reads_xmls else 'boxes'}"
    if checked.listed and not checked.reads_xmls:
        annotated = ", XMLs not read"
    lines = [f"{checked.split}: {len(catalog):,} images of {checked.place}{annotated}, {checked.bytes / 1e9:.3g} GB"]
    lines += _classes(checked.classes)
    lines += [f"  not used: {text}" for text in catalog.source.left_out]
    oddities = checked.oddities
    for harm, heading in HEADINGS.items():
        of_this = [oddity for oddity in oddities if KINDS[oddity.code].harm == harm]
        if of_this:
            lines.append(f"  {heading}:")
        for oddity in of_this:
            lines += _described(oddity, in_full=harm != "handled")
    return lines if oddities or catalog.source.left_out else [*lines, "  nothing odd"]


def _described(oddity: Oddity, in_full: bool) -> list[str]:
    text = textwrap.wrap(KINDS[oddity.code].meaning, WIDTH - INDENT)
    head = f"{oddity.count:>9,} {oddity.code:<16} {text[0]}"
    blank = " " * INDENT
    rest = [blank + line for line in text[1:]]
    ellipsis = ["..."] if oddity.count > EXAMPLES else []
    if in_full:
        examples = [": ".join(filter(None, example)) for example in oddity.examples]
        return [head, *rest, *(blank + line for line in [*examples, *ellipsis])]
    names = ", ".join([os.path.basename(example.path) for example in oddity.examples] + ellipsis)
    return [head, *rest, *textwrap.wrap(names, WIDTH, initial_indent=blank, subsequent_indent=blank)]


def _classes(counts: dict[str, int]) -> list[str]:
    """Returns lines on the distribution of images over the classes."""
    if not counts:
        return []
    used = {name: count for name, count in counts.items() if count}
    lines = [f"  {len(counts):,} classes"]
    if used:
        least, most = min(used, key=used.__getitem__), max(used, key=used.__getitem__)
        lines[0] += f": from {used[least]:,} images ({least}) to {used[most]:,} ({most})"
    without = [name for name in counts if name not in used]
    if without:
        names = ", ".join(without[:EXAMPLES] + ["..."] * (len(without) > EXAMPLES))
        lines.append(f"  {len(without):,} of them without an image: {names}")
    return lines
