"""Finds duplicates of paths and contents, within a list and between two lists."""

import numpy as np

from tfpipe.data.catalog.paths import FileList


def first_places(paths: FileList) -> tuple[np.ndarray, dict[int, int]]:
    """Returns bool [n], the paths that repeat an earlier one, and the first index of each of these paths."""
    places: dict[str, int] = {}
    first = {}
    for item, path in enumerate(paths):
        before = places.setdefault(path, item)
        if before != item:
            first[item] = before
    again = np.zeros(len(paths), bool)
    again[list(first)] = True
    return again, first


def in_other(paths: FileList, others: FileList) -> np.ndarray:
    """Returns bool [n]: the paths that are also in the other list."""
    known = set(others)
    return np.fromiter((path in known for path in paths), bool, len(paths))


def twice(digests: np.ndarray, again: np.ndarray) -> np.ndarray:
    """Returns bool [n]: the images whose contents an earlier path has too.

    `digests` (void [n]) are zeros for files without contents; paths that repeat an earlier one (`again`, bool [n]) do
    not count.
    """
    places = np.flatnonzero(~again & _known(digests))
    _, first = np.unique(digests[places], return_index=True)
    same = np.zeros(len(digests), bool)
    same[np.delete(places, first)] = True
    return same


def shared(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns bool [n] and bool [m]: the images whose contents are in both lists."""
    return np.isin(one, other) & _known(one), np.isin(other, one) & _known(other)


def _known(digests: np.ndarray) -> np.ndarray:
    return digests != np.zeros(1, digests.dtype)
