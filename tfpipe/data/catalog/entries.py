"""Entry points of JPEGs, stored for all images of a split: the decoder in C starts at those next to a crop.

`tfpipe index --entry-points` makes them (prepare/entries.py), in a table next to the data (table.py). An image's entry
points hold a hash of the file's length, its first and its last bytes (native/codec/entries.c): a file that has changed
is decoded from its start.
"""

import logging
from pathlib import Path

from tfpipe.config import DataConfig
from tfpipe.data.catalog.filelist import paths_of
from tfpipe.data.catalog.table import StoredTable, catalog_folders, find_table
from tfpipe.data.catalog.types import Catalog

logger = logging.getLogger(__name__)

KIND = "entries"
COMMAND = "index --entry-points"
MAKE = "tfpipe index -c CONFIG --entry-points --split"


def find_entries(config: DataConfig, catalog: Catalog, *, show: bool) -> StoredTable | None:
    """Maps the entry points of a split's images; None if there are none.

    `text` (uint8 [m]) has each image's bytes, and one more that ends them; `starts` (int64 [n + 1]) the first byte of
    each, and the last one's end. `show`: logs where they are, or that those that are there are of other images.
    """
    if (folder := entries_folder(config, catalog.split)) is None:
        return None
    name = entries_name(catalog)
    table = find_table([folder], name)
    if table is not None and _is_of(table, catalog):
        if show:
            logger.info("%s: decodes next to crops, by the entry points in %s", catalog.split, folder / name)
        return table
    if show and (others := sorted(folder.glob(f"{KIND}-*"))):
        about = others[0], MAKE, catalog.split
        logger.warning("%s are of another list of images, or damaged; renew them with: %s %s", *about)
    return None


def entries_folder(config: DataConfig, split: str) -> Path | None:
    """Returns the folder in which a split's entry points are stored; None if `data.index` would have to name it, or
    the images are of no list.

    It is next to the data, or in `data.index`, as other tables are. All ranks of all hosts read it, so it is never in
    the folder for temporary files.
    """
    source = config.source
    if source is None:
        filelist = config.train_filelist if split == "train" else config.test_filelist
        return None if filelist is None else catalog_folders(config, paths_of(filelist))[0]
    data = source.path if split == "train" or source.test_path is None else source.test_path
    if config.index is None and not isinstance(data, Path):
        return None
    # A kind of the user's own may have no path.
    path = data if isinstance(data, Path) else Path(f"/{data or source.kind}")
    return catalog_folders(config, [path if path.is_file() else path / split])[0]


def entries_name(catalog: Catalog) -> str:
    """Returns the name of the table of a catalog's images."""
    return f"{KIND}-{catalog.paths.digest[:16]}"


def _is_of(table: StoredTable, catalog: Catalog) -> bool:
    starts = table.columns.get("starts")
    return starts is not None and "text" in table.columns and starts.shape == (len(catalog) + 1,)
