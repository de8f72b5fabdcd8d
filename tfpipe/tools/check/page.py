"""The page of check."""

from collections.abc import Sequence

from tfpipe.tools.check.result import HEADINGS, KINDS, Checked, Harm, conclusion, render
from tfpipe.tools.page.figures import COLOURS, GRAY, RED, Figure, Line, Value, bar_figure, line_figure
from tfpipe.tools.page.page import Finding, Given, Page, TableSection

HARMS: dict[Harm, str] = {"stops": RED, "wrong": COLOURS[1], "handled": GRAY}
# Classes that are drawn each by itself; of more, the curve of their sizes.
CLASSES = 40


def page(checked: Sequence[Checked], given: Given) -> Page:
    """Returns the page of a check: what would stop training, images by oddity and by class, its text."""
    facts = {
        f"{result.split} images": f"{len(result.catalog):,}, {result.bytes / 1e6:,.1f} MB, of {result.place}"
        for result in checked
    }
    return given.page(conclusion(checked) or "nothing would stop training, and nothing is wrong")._replace(
        findings=[finding for result in checked for finding in _findings(result)],
        facts=facts,
        figures=[figure for result in checked for figure in _figures(result)],
        tables=[_table(result) for result in checked],
        printed=render(checked),
    )


def _findings(checked: Checked) -> list[Finding]:
    """Returns a finding for each kind of oddity that has to be mended, with its first image."""
    return [
        Finding(
            f"{checked.split}: {oddity.code}",
            f"{oddity.count:,} of {len(checked.catalog):,} images, e.g. {oddity.examples[0]['path']}",
            f"oddities-{checked.split}",
        )
        for oddity in checked.oddities
        if KINDS[oddity.code].harm != "handled"
    ]


def _figures(checked: Checked) -> list[Figure]:
    found, split = [], checked.split
    oddities = [Value(each.code, each.count, None, HARMS[KINDS[each.code].harm]) for each in checked.oddities]
    if oddities:
        text = f"Images of each kind of oddity in the {split} data. An image may have several."
        drawn = {value.colour for value in oddities}
        legend = {HEADINGS[harm]: colour for harm, colour in HARMS.items() if colour in drawn}
        found.append(bar_figure(f"codes-{split}", f"Oddities, {split}", oddities, "images", text, legend))
    sizes = sorted(checked.classes.items(), key=lambda pair: -pair[1])
    if 0 < len(sizes) <= CLASSES:
        text = f"Images of each class in the {split} data, the largest class first."
        bars = [Value(name, count) for name, count in sizes]
        found.append(bar_figure(f"classes-{split}", f"Classes, {split}", bars, "images", text, {}))
    elif sizes:
        curve = Line("classes", [*range(1, len(sizes) + 1)], [count for _, count in sizes])
        title = f"Sizes of the {len(sizes):,} classes, {split}"
        found.append(line_figure(f"classes-{split}", title, [curve], "class, the largest first", "images"))
    return found


def _table(checked: Checked) -> TableSection:
    rows = [
        (
            oddity.code,
            oddity.count,
            HEADINGS[KINDS[oddity.code].harm],
            KINDS[oddity.code].meaning,
            ": ".join(filter(None, oddity.examples[0].values())),
        )
        for oddity in checked.oddities
    ]
    heading = ("oddity", "images", "training", "meaning", "first image")
    text = "" if rows else "Nothing is odd."
    return TableSection(f"oddities-{checked.split}", f"Oddities of the {checked.split} data", text, heading, rows)
