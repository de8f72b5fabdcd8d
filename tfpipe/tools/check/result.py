"""The result of checking a split: which images are odd, how, and the details."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfpipe.data.catalog.types import Catalog
from tfpipe.tools.check.kinds import CODES, bits

# Images named for each kind of oddity.
EXAMPLES = 5


class Example(NamedTuple):
    """One odd image."""

    path: str
    reason: str  # details of its fault, if they say more than the kind; else ""


@dataclass(frozen=True)
class Oddity:
    """One kind of oddity in a list."""

    code: str  # key of kinds.KINDS
    count: int
    examples: list[Example]  # the first images of this kind, in the list's order


@dataclass(frozen=True)
class Checked:
    """The result of checking a split."""

    split: str
    place: str  # the filelist, or the source of the data
    listed: bool  # True if `place` is a filelist
    catalog: Catalog
    bytes: int  # total size of the image files
    reads_xmls: bool  # True if training with this config uses boxes
    classes: dict[str, int]  # images per class; empty if labels come from objects
    codes: np.ndarray  # int64 [n]: each image's codes, as a bit set of kinds.bits
    digests: np.ndarray  # void [n]: digests of the contents; zeros if there are none
    reasons: dict[int, str]  # details of an image's fault, by index, if they say more than the code

    @property
    def oddities(self) -> list[Oddity]:
        """The kinds of oddity found, in the order of KINDS."""
        result = []
        for number, code in enumerate(CODES):
            items = np.flatnonzero(self.codes >> number & 1)
            if items.size:
                examples = [
                    Example(self.catalog.paths[item], self.reasons.get(item, "")) for item in items[:EXAMPLES].tolist()
                ]
                result.append(Oddity(code, int(items.size), examples))
        return result

    def having(self, codes: Sequence[str]) -> np.ndarray:
        """Returns bool [n]: the images that have one of these codes."""
        return self.codes & bits(set(codes)) != 0
