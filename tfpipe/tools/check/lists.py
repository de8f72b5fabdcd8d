"""Finds duplicates of paths and contents, within a split and between two splits."""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from tfpipe.data.catalog.paths import FileList

# Name of an image that has none of its own: its number in a table or a shard.
NUMBERED = re.compile(r":\d+$")


def identities(names: FileList, digests: np.ndarray) -> Iterator[str]:
    """Yields a text for each image of a table or of shards, equal for equal ones: those of one name and content.

    A name alone is not enough, since shards may each begin with 0.jpg; an image without a name of its own has its
    content. An image without content (`digests`, void [n], is zeros) equals no other.
    """
    for item, (name, digest, known) in enumerate(zip(names, digests, _known(digests), strict=True)):
        if known:
            yield f"{'' if NUMBERED.search(name) else name}\n{digest.tobytes().hex()}"
        else:
            yield f"{item}"


def first_places(paths: Iterable[str]) -> tuple[np.ndarray, dict[int, int]]:
    """Returns bool [n], the paths that repeat an earlier one, and the first index of each of these paths."""
    places: dict[str, int] = {}
    first = {}
    for item, path in enumerate(paths):
        before = places.setdefault(path, item)
        if before != item:
            first[item] = before
    again = np.zeros(len(places) + len(first), bool)
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
