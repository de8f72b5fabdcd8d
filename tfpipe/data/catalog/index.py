"""The annotation index: one Parquet file with the content of all XMLs and image headers of a filelist.

`tfpipe index` writes it (prepare/index.py), training reads it instead of the XMLs, and pandas or duckdb can query it.
There is one row per image, in the list's order, with the columns SCHEMA; docs/formats.md describes them. `boxes` are as
training uses them (cleaning.targets). STAMPS are null if there is no such file, and for URLs; copies by `tfpipe stage`
lack these columns.

The file's schema carries a fingerprint of everything that its content depends on, except the XMLs and images
themselves: `tfpipe index --verify` compares those with STAMPS.
"""

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfpipe.config import DataConfig, Layout
from tfpipe.data.annotations.cleaning import BY_OBJECT, LEFT_OUT, Boxes
from tfpipe.data.catalog.filelist import index_path
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Index
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import sha256

logger = logging.getLogger(__name__)

FORMAT = 2
MAKE = "tfpipe index -c CONFIG --split"
FINGERPRINT = b"tfpipe.fingerprint"
# Images are uneven if one in 200 has 16 times the pixels of the mean: decoding it takes half as long as all others of
# its call.
UNEVEN_SHARE, HUGE, SAMPLED = 0.005, 16, 100_000
STAMPS = ("bytes", "changed", "xml_bytes", "xml_changed")
SIDES = ("width", "height")
SCHEMA = pa.schema(
    {
        "path": pa.string(),
        "label": pa.int32(),
        "width": pa.int32(),
        "height": pa.int32(),
        "components": pa.int8(),
        "format": pa.string(),
        "annotated": pa.bool_(),
        "boxes": pa.list_(pa.list_(pa.float32(), 4)),
        "box_labels": pa.list_(pa.int32()),
        "odd": pa.list_(pa.string()),
        **{name: pa.int64() for name in STAMPS},
    }
)
ODD = {
    "not jpeg": "the file is a PNG or of another format, whatever its name; read as what it is",
    "gray": "levels of gray; repeated three times where colours are wanted",
    "cmyk": "four components, CMYK or YCCK; converted to RGB",
    "no object": "the annotation holds no object; as without one",
    "no size": "the annotation does not state the image's size; its own counts",
    "size differs": "the annotation states another size than the image has; the boxes are relative to the stated one",
    "box swapped": "a box has its minimum above its maximum; swapped back",
    "box out of range": "a box reaches out of the image; clamped",
    "box empty": "a box without an area within the image; left out",
    "box twice": "a box that its image has already, of the same class; used again",
    "class unknown": "an object's name is no class; left out where objects have the labels",
    "class differs": "an object is of another class than its image; left out",
}


def index_fingerprint(
    paths: FileList, classes: tuple[str, ...], labels: np.ndarray, source: Layout | Path, turn: bool = False
) -> str:
    """Returns the sha256, in hex, of everything that an index depends on except the XMLs and images.

    `labels` (int32 [len(paths)]) are class numbers, BY_OBJECT if labels are per object; `source` is the layout of the
    XML folders, or the path of the box file, which counts by its content; `turn` says whether EXIF turns the images.
    Raises ConfigError if the box file cannot be read.
    """
    try:
        boxes = list(source.model_dump().values()) if isinstance(source, Layout) else [sha256(source)]
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    settings = json.dumps([FORMAT, paths.digest, classes, *boxes, *(["turned"] if turn else [])])
    return hashlib.sha256(settings.encode() + b"\n" + labels.astype("<i4").tobytes()).hexdigest()


def load_index(path: Path, expected: str) -> Index | None:
    """Reads the index at `path`, in some 0.3 s for a million images; returns None if its fingerprint is not `expected`.

    Raises OSError, and pyarrow.ArrowInvalid if the file is damaged or no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        if (file.schema_arrow.metadata or {}).get(FINGERPRINT) != expected.encode():
            return None
        table = file.read(["label", "annotated", "boxes", "box_labels", "odd", *SIDES])
        left_out = _left_out(table, file)
    return index_of(table)._replace(uneven=is_uneven(*(table[name].to_numpy() for name in SIDES)), left_out=left_out)


def _left_out(table: pa.Table, file: pq.ParquetFile) -> dict[str, tuple[int, str]]:
    """Returns the number of images with objects that training leaves out, and the first one's path, by the reason."""
    lists, left_out = table["odd"].combine_chunks(), dict[str, tuple[int, str]]()
    codes, ends = lists.flatten(), lists.offsets.to_numpy()
    ends = ends[1:] - ends[0]
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(codes).to_pylist()}
    by_object = len(table) > 0 and table["label"][0].as_py() == BY_OBJECT
    for code, reason in LEFT_OUT.items():
        # An object of an unknown class is its image's if images have the labels.
        if code in counts and (by_object or code != "class unknown"):
            row = int(np.searchsorted(ends, pc.index(codes, code).as_py(), "right"))
            left_out[f"images with {reason}"] = counts[code], file.read(["path"])["path"][row].as_py()
    return left_out


def index_of(table: pa.Table) -> Index:
    """Converts a table with SCHEMA's columns "annotated", "boxes" and "box_labels" to arrays."""
    lists, labels = table["boxes"].combine_chunks(), table["box_labels"].combine_chunks()
    counts = np.diff(lists.offsets.to_numpy())
    images = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    edges = lists.flatten().flatten().to_numpy().reshape(-1, 4)
    return Index(table["annotated"].to_numpy(), Boxes(images, edges, labels.flatten().to_numpy()))


def is_uneven(widths: np.ndarray, heights: np.ndarray) -> bool:
    """Returns whether a few of the images, by their int32 [n] widths and heights, are huge next to the others.

    Their decode then holds up the calls after it (profiles/huge.py). Looks at SAMPLED images, evenly spaced.
    """
    some = slice(None, None, max(1, len(widths) // SAMPLED))
    pixels = widths[some].astype(np.float64) * heights[some]
    return bool(len(pixels)) and bool(np.quantile(pixels, 1 - UNEVEN_SHARE) >= HUGE * pixels.mean())


def box_columns(boxes: Boxes, count: int) -> dict[str, pa.Array]:
    """Converts boxes to the columns "boxes" and "box_labels" of a table with a row for each of `count` images."""
    edges = pa.FixedSizeListArray.from_arrays(boxes.boxes.astype(np.float32).ravel(), 4)
    labels = pa.array(boxes.labels, pa.int32())
    return {"boxes": lists_of(boxes.images, edges, count), "box_labels": lists_of(boxes.images, labels, count)}


def lists_of(rows: np.ndarray, values: pa.Array, count: int) -> pa.ListArray:
    """Groups `values` into `count` lists; `rows`, ascending, holds the number of each value's list."""
    return pa.ListArray.from_arrays(np.searchsorted(rows, np.arange(count + 1)).astype(np.int32), values)


def copy_index(source: Path, target: Path, paths: FileList, key: str) -> None:
    """Copies an index for a copy of its images: replaces the paths and the fingerprint, and writes it atomically.

    STAMPS are left out: the copied files have other times. The fingerprint of `source` must match its list; `paths`,
    those of the copied images, are in the same order; `key` is the fingerprint of the new index.
    """
    table = pq.read_table(source)
    table = table.select([name for name in table.column_names if name not in STAMPS])
    column = table.schema.get_field_index("path")
    moved = table.set_column(column, SCHEMA.field("path"), pa.array(paths, pa.string()))
    with atomic_write(target) as partial:
        pq.write_table(moved.replace_schema_metadata({FINGERPRINT: key}), partial, compression="zstd")


def find_index(config: DataConfig, split: str, expected: str) -> Index | None:
    """Returns the index of a split if there is one with the fingerprint `expected`; warns of a stale one.

    Raises ConfigError if there is no usable index, but `data.annotations` is "index" or the boxes come from a box file.
    """
    path = index_path(config, config.filelist_for(split))
    needed = config.annotations == "index" or config.box_file_for(split) is not None
    try:
        index = load_index(path, expected)
        problem = f"the index {path} is of another filelist, other classes, labels, layout, box file or data.exif"
    except FileNotFoundError:
        index, problem = None, None
    except (OSError, pa.ArrowInvalid) as error:
        index, problem = None, f"cannot read the index {path}: {error}"
    if index is not None:
        logger.info("boxes are those of the index %s", path)
    elif needed:
        raise ConfigError(f"{problem or f'there is no index {path}'}; make it with: {MAKE} {split}")
    elif problem:
        logger.warning("%s; the XMLs are read instead; renew it with: %s %s", problem, MAKE, split)
    return index
