"""What is in a list more than once, or in two lists."""

import numpy as np

from tfpipe.data.filelist import FileList


def first_places(paths: FileList) -> tuple[np.ndarray, dict[int, int]]:
    """bool [n]: which paths were in the list before; and the first place of each of those."""
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
    """bool [n]: which paths are in the other list too."""
    known = set(others)
    return np.fromiter((path in known for path in paths), bool, len(paths))


def twice(digests: np.ndarray, again: np.ndarray) -> np.ndarray:
    """bool [n]: which contents another path before has.

    Args:
        digests: void [n]; zeros for what has no contents.
        again: bool [n]: the paths that were in the list before, which do not count.
    """
    places = np.flatnonzero(~again & _known(digests))
    _, first = np.unique(digests[places], return_index=True)
    same = np.zeros(len(digests), bool)
    same[np.delete(places, first)] = True
    return same


def shared(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool [n], bool [m]: which contents are in both lists."""
    return np.isin(one, other) & _known(one), np.isin(other, one) & _known(other)


def _known(digests: np.ndarray) -> np.ndarray:
    return digests != np.zeros(1, digests.dtype)
