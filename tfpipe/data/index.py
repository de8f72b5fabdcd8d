"""The annotation index: all that the XMLs of a list say, and the images' headers, in one Parquet file.

`tfpipe index` writes it (index_build.py), training reads it instead of the XMLs, pandas or duckdb query it. One row an
image, in the list's order:

    path        string   of the image, absolute
    label       int32    number of its class; -1 where its objects have the labels
    width       int32    of the image itself, in pixels, whatever the XML states
    height      int32
    components  int8     1 gray, 3 colour, 4 CMYK
    format      string   "JPEG", "PNG" ..., whatever the file is named
    annotated   bool     whether there is an XML, or a row in the box file (data.train_box_file)
    boxes       list of float32 [4]: ymin, xmin, ymax, xmax in [0, 1], just as training uses them (crops.find_targets)
    box_labels  list of int32, the boxes' classes
    odd         list of strings: what is odd about the image, keys of ODD

The file's schema has a fingerprint of what its content depends on but the XMLs and images themselves: after changing
those, run `tfpipe index` again.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig, Layout
from tfpipe.data.catalog import Boxes, index_path
from tfpipe.data.filelist import FileList
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

FORMAT = 1
MAKE = "tfpipe index -c CONFIG --split"
FINGERPRINT = b"tfpipe.fingerprint"
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
    }
)
ODD = {
    "not jpeg": "the file is a PNG, GIF or BMP, whatever its name",
    "gray": "one component",
    "cmyk": "four components",
    "no object": "the XML holds no object",
    "no size": "the XML does not state the image's size, so the image's own counts",
    "size differs": "the XML states another size than the image has; the boxes are relative to the stated one",
    "box swapped": "a box has its minimum above its maximum; swapped back",
    "box out of range": "a box reaches out of the image; clamped",
    "box empty": "a box without an area within the image; left out",
    "class unknown": "an object's name is no class; left out where objects have the labels",
    "class differs": "an object is of another class than its image; left out",
}


class Index(NamedTuple):
    """What training needs of an index."""

    annotated: np.ndarray  # bool [n]: which images have an XML, or a row in the box file
    boxes: Boxes


def fingerprint(paths: FileList, classes: tuple[str, ...], labels: np.ndarray, source: Layout | Path) -> str:
    """sha256, in hex, of what an index depends on. Whether images or objects have labels is in `labels`.

    Args:
        paths: the images.
        classes: names.
        labels: int32 [len(paths)].
        source: where the XMLs are, or the table that has the boxes, whose content counts.

    Raises:
        ConfigError: the table cannot be read.
    """
    boxes = [source.images, source.annotations] if isinstance(source, Layout) else [_sha256(source)]
    about = json.dumps([FORMAT, paths.digest, classes, *boxes])
    return hashlib.sha256(about.encode() + b"\n" + labels.astype("<i4").tobytes()).hexdigest()


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def load_index(path: Path, expected: str) -> Index | None:
    """The index at `path`; None where it is not of the fingerprint `expected`. Some 0.3 s for a million images.

    Raises:
        OSError: it cannot be read.
        pyarrow.ArrowInvalid: it is damaged, or no Parquet file.
    """
    with pq.ParquetFile(path) as file:
        if (file.schema_arrow.metadata or {}).get(FINGERPRINT) != expected.encode():
            return None
        return index_of(file.read(["annotated", "boxes", "box_labels"]))


def index_of(table: pa.Table) -> Index:
    """What training needs, of columns as SCHEMA has them."""
    boxes, labels = table["boxes"].combine_chunks(), table["box_labels"].combine_chunks()
    counts = np.diff(boxes.offsets.to_numpy())
    images = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    edges = boxes.flatten().flatten().to_numpy().reshape(-1, 4)
    return Index(table["annotated"].to_numpy(), Boxes(images, edges, labels.flatten().to_numpy()))


def find_index(config: DataConfig, filelist: Path, expected: str) -> Index | None:
    """The index of `filelist`, if there is one and it is of the fingerprint `expected`. A stale one is never used.

    Raises:
        ConfigError: there is none that can be used, but `data.annotations` is "index", or the boxes are in a table.
    """
    path = index_path(config, filelist)
    split = "train" if filelist == config.train_filelist else "test"
    needed = config.annotations == "index" or config.box_file_for(split) is not None
    try:
        found = load_index(path, expected)
        problem = f"the index {path} is of another filelist, other classes, labels, layout or box file"
    except FileNotFoundError:
        found, problem = None, None
    except (OSError, pa.ArrowInvalid) as error:
        found, problem = None, f"cannot read the index {path}: {error}"
    if found is not None:
        logger.info("boxes are those of the index %s", path)
    elif needed:
        raise ConfigError(f"{problem or f'there is no index {path}'}; make it with: {MAKE} {split}")
    elif problem:
        logger.warning("%s; the XMLs are read instead; renew it with: %s %s", problem, MAKE, split)
    return found
