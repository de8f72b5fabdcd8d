"""Lists folders of an object store, at any depth: a folder and its parts of 1,000 names are a request each."""

from collections.abc import Iterable

from tfpipe.data.catalog.class_folders import why_left_out
from tfpipe.data.catalog.splits import splits_in
from tfpipe.data.sources.remote.fetcher import FetchError
from tfpipe.data.sources.remote.url_path import SEE_TO, UrlPath
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger
from tfpipe.util.progress import progress

# Folders that are listed by one call.
LISTED_TOGETHER = 256


def class_folders_at(root: UrlPath) -> list[str]:
    """Returns the paths, below `root`, of the folders that are classes or hold none; few requests.

    Looks only into folders that are named after a split, and into those that are alone. Raises ConfigError.
    """
    classes: list[str] = []
    folders = [""]
    while folders:
        deeper: list[str] = []
        listings = _list_folders([root / folder if folder else root for folder in folders])
        for folder, entries in zip(folders, listings, strict=True):
            names = [name for name, is_folder in entries if is_folder and not why_left_out(name, is_folder=True)]
            paths = {name: f"{folder}/{name}" if folder else name for name in names}
            splits = names if len(names) == 1 else [name for name in names if splits_in(name)]
            deeper += [paths[name] for name in splits]
            classes += paths.values()
        folders = deeper
    return sorted(classes)


def images_at(root: UrlPath, but: Iterable[str], ledger: Ledger, *, show: bool) -> list[str]:
    """Returns the URLs of all images in `root` and its folders, sorted, as class_folders.images_below does.

    Counts in `ledger` what is no image, but for the folders `but`. Raises ConfigError if a folder cannot be listed.
    """
    images: list[str] = []
    others, folders = set(but), [root]
    while folders:
        chunks = [folders[start : start + LISTED_TOGETHER] for start in range(0, len(folders), LISTED_TOGETHER)]
        parts = progress(map(_list_folders, chunks), len(chunks), f"listing {root}", f"{LISTED_TOGETHER} folders", show)
        listings = [entries for part in parts for entries in part]
        new: list[UrlPath] = []
        for folder, entries in zip(folders, listings, strict=True):
            for name, is_folder in entries:
                if reason := why_left_out(name, is_folder=is_folder):
                    ledger.add(reason, f"{folder}/{name}")
                elif is_folder:
                    new.append(folder / name)
                else:
                    images.append(f"{folder}/{name}")
        folders = [folder for folder in new if str(folder) not in others]
    return sorted(images)


def _list_folders(folders: list[UrlPath]) -> list[list[tuple[str, bool]]]:
    """Returns the names in each folder, and whether each is a folder."""
    try:
        return folders[0].fetcher().listings(list(map(str, folders)))
    except FetchError as error:
        raise ConfigError(f"data.source: cannot list folders: {error}; {SEE_TO}") from error
