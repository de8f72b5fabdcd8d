"""The outcome of each fault of the data in each source: the table of docs/sources.md, which a test goes through."""

from typing import Literal, NamedTuple

SOURCES = {
    "filelist": "a filelist",
    "folders": "class folders",
    "csv": "a table, CSV",
    "parquet": "a table, Parquet with the images' bytes",
    "coco": "COCO's JSON",
    "tar": "tar shards",
    "tfrecord": "TFRecords",
    "packed": "packed images",
    "url": "a filelist of URLs",
}
KINDS = {"filelist": "files", "url": "files", "csv": "table", "parquet": "table", "tar": "webdataset"}
"""Kind of each source, a key of registry.KINDS, if it has another name."""
FAULTS = {
    "cut": "the file is cut off",
    "changed": "a file changes between two starts and keeps its size",
    "repeated": "an image comes twice",
    "odd name": "a name with spaces, quotes, commas, `#`, `%` and letters beyond ASCII",
    "line end": "a name with a line end",
    "no label": "an empty label",
    "unknown class": "test data of a class that training data lacks",
    "no size": "boxes in pixels of an image whose size is not stated",
    "split names": "training and test data told apart by names alone",
    "setting": "another setting than that of what is stored",
}
FILES = ("filelist", "folders", "csv", "coco", "url")
TABLES, SHARDS = ("csv", "parquet", "coco"), ("tar", "tfrecord")
SPLIT_WORDS = "by the words train and val, valid, validation or test in their names"
NO_LINE = "a list has one path a line; `tfpipe filelist` refuses such a name"
Outcome = Literal["trained", "refused", "found", "verified", "none"]
OUTCOMES = {
    "trained": "trained right",
    "refused": "refused",
    "found": "found by `tfpipe check`",
    "verified": "found by `tfpipe pack --verify`",
    "none": "cannot be",
}


class Row(NamedTuple):
    fault: str  # a key of FAULTS
    sources: tuple[str, ...]
    outcome: Outcome
    says: str
    """Part of the message, FILE for the file and IMAGE for the image at fault, ... for anything in between; of "found"
    the kind of oddity; of "trained" and "none" the reason."""


ROWS = (
    Row("cut", FILES, "found", "truncated"),
    Row("cut", ("parquet",), "refused", "cannot read FILE"),
    Row("cut", ("tar",), "refused", "FILE: ...copy it again"),
    Row("cut", ("tfrecord",), "refused", "FILE: record ...or ends at byte ...within it"),
    Row("cut", ("packed",), "refused", "FILE has ... bytes, its manifest says ..."),
    Row("changed", ("filelist", "folders", "url"), "trained", "each image is read when it is used"),
    Row("changed", ("csv", "coco"), "trained", "the table is read at each start"),
    Row("changed", ("parquet", "tar", "tfrecord"), "trained", "what is stored knows the file's time of change"),
    Row("changed", ("packed",), "verified", "FILE is not what was packed: its sha256 differs"),
    Row("repeated", ("filelist", "url", *TABLES, *SHARDS, "packed"), "found", "listed twice"),
    Row("repeated", ("folders",), "none", "a folder has a name once; copies under other names are `same contents`"),
    Row("odd name", tuple(SOURCES), "trained", "in a URL the name is percent-encoded"),
    Row("line end", ("folders", *TABLES, *SHARDS), "refused", "IMAGE"),
    Row("line end", ("filelist", "url"), "none", NO_LINE),
    Row("line end", ("packed",), "none", "every source that is packed refuses it"),
    Row("no label", (*TABLES, *SHARDS), "refused", "IMAGE"),
    Row("no label", ("filelist", "folders", "url"), "none", "the label is the folder's name"),
    Row("no label", ("packed",), "none", "every source that is packed refuses it"),
    Row("unknown class", ("filelist", "folders", *TABLES, *SHARDS, "url"), "refused", "emu"),
    Row("unknown class", ("packed",), "none", "`tfpipe pack` refuses it"),
    Row("no size", ("filelist", *TABLES, *SHARDS, "url"), "trained", "the image itself has its size"),
    Row("no size", ("folders",), "none", "class folders have no boxes"),
    Row("no size", ("packed",), "none", "its boxes are relative to the size"),
    Row("split names", ("folders", "csv", "parquet", "tar"), "trained", SPLIT_WORDS),
    Row("split names", ("filelist", "coco", "url"), "none", "the config names both files"),
    Row("split names", ("tfrecord", "packed"), "none", "the names are fixed: train-* and validation-*"),
    Row("setting", ("csv", "coco", "folders", "url"), "trained", "nothing is stored"),
    Row("setting", ("parquet", "tar"), "trained", "what is stored knows the columns that it was made with"),
    Row("setting", ("tfrecord",), "trained", "what is stored does not depend on settings"),
    Row("setting", ("filelist",), "trained", "an index of other classes is not used"),
    Row("setting", ("packed",), "refused", "data.label_source"),
)  # fmt: skip


def cells() -> list[tuple[Row, str]]:
    return [(row, source) for row in ROWS for source in row.sources]


def markdown() -> str:
    """Returns the table as it stands in docs/sources.md: the largest group of a fault's sources comes last."""
    lines = ["| Data | Source | What happens | Message or reason |", "|---|---|---|---|"]
    for fault, name in FAULTS.items():
        rows = sorted((row for row in ROWS if row.fault == fault), key=lambda row: len(row.sources))
        names = ["; ".join(SOURCES[source] for source in row.sources) for row in rows[:-1]]
        for row, sources in zip(rows, [*names, "the others" if names else "all"], strict=True):
            says = f"`{row.says}`" if row.outcome in ("refused", "found", "verified") else row.says
            lines.append(f"| {name if row is rows[0] else ''} | {sources} | {OUTCOMES[row.outcome]} | {says} |")
    return "\n".join(lines) + "\n"
