"""The outcome of each command on each source: the table of docs/sources.md, which a test goes through."""

from typing import NamedTuple

from tests.support.tool_cases import TOOLS

SOURCES = {
    "filelist": "a filelist",
    "list folder": "class folders as `train_filelist`",
    "yolo": "YOLO's folders",
    "folders": "class folders",
    "csv": "a table, CSV",
    "parquet": "a table, Parquet with the images' bytes",
    "coco": "COCO's JSON",
    "archive": "an archive (a deflated zip)",
    "tar": "tar shards",
    "tfrecord": "TFRecords",
    "original": "packed images",
    "coefficients": "packed coefficients",
    "crops": "packed crops",
    "raw": "packed pixels",
    "own": "a source of your own",
}
LISTS, TABLES, PACKED = ("filelist", "list folder", "yolo"), ("csv", "parquet", "coco"), ("original", "coefficients")
STORED = ("crops", "raw")
OTHERS = tuple(source for source in SOURCES if source not in LISTS)
UNLISTED = (*TABLES, "archive", "tar", "tfrecord", "own")


class Refused(NamedTuple):
    tools: tuple[str, ...]  # keys of TOOLS
    sources: tuple[str, ...]  # keys of SOURCES
    says: str  # part of the message


REFUSED = (
    Refused(("check",), ("crops",), "holds crops, and check reads whole images"),
    Refused(("check",), ("raw",), "holds pixels, and check reads whole images"),
    Refused(("check --fix-list",), OTHERS, "--fix-list writes a filelist, and data.source has none"),
    Refused(("index",), ("list folder",), "is a folder of images in no known layout"),
    Refused(("index",), ("folders",), "class folders have no boxes: they need no index"),
    Refused(("index",), TABLES, "data.source names a table, which has the boxes"),
    Refused(("index",), ("archive", "tar", "tfrecord", "own"), "data.source knows its own boxes"),
    Refused(("index",), (*PACKED, *STORED), "data.source names packed data, which holds its boxes"),
    Refused(("index --entry-points",), ("coefficients",), "holds coefficients, which need no entry points"),
    Refused(("index --entry-points",), ("crops",), "holds crops, which are decoded whole"),
    Refused(("index --entry-points",), ("raw",), "holds pixels, which are not decoded"),
    Refused(("bench --stages", "view --boxes"), STORED, "data.source holds crops instead of images"),
    Refused(("pack",), (*PACKED, *STORED), "data.source names packed data; tfpipe pack packs files"),
    Refused(("stage",), ("folders",), "tfpipe stage copies the files of filelists"),
    Refused(("stage",), UNLISTED, "tfpipe stage copies the files of filelists, or packed data"),
    Refused(("filelist",), ("filelist", "yolo", *UNLISTED, *PACKED, *STORED), "nor does it hold class folders"),
)  # fmt: skip


def refusal(tool: str, source: str) -> Refused | None:
    """Returns why a source cannot serve a command; None if it can."""
    found = [row for row in REFUSED if tool in row.tools and source in row.sources]
    assert len(found) <= 1, f"{tool} of {source} has two rows"
    return found[0] if found else None


def markdown() -> str:
    """Returns the table as it stands in docs/sources.md, with the messages below it."""
    marks = {row: str(number) for number, row in enumerate(REFUSED, start=1)}
    lines = [f"| Source | {' | '.join(f'`{tool}`' for tool in TOOLS)} |", f"|---|{'---|' * len(TOOLS)}"]
    for source, name in SOURCES.items():
        cells = [marks[row] if (row := refusal(tool, source)) else "✓" for tool in TOOLS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{row.says}`" for number, row in enumerate(REFUSED, start=1))]) + "\n"
