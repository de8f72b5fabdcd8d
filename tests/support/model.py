"""What the ranks of a Loader hand out, as lists of positions: the model that a state machine compares Loaders with."""

from collections.abc import Callable
from dataclasses import dataclass, field

Crop = tuple[int, int]


@dataclass
class Rank:
    """A rank since it last went elsewhere: its positions, each with its first unused crop, and what it has done."""

    plan: list[Crop]
    sizes: Callable[[int], int]
    """Step -> crops of its batch."""
    crops_at: Callable[[int], int]
    """Position -> its crops."""
    step: int = 0
    given: int = 0
    """Batches handed out."""
    counted: int | None = None
    """Batches committed; None before a commit."""
    first: int = 0
    """Batches before which a first commit cannot go."""

    def __post_init__(self) -> None:
        self.crops = [(at, crop) for at, first in self.plan for crop in range(first, self.crops_at(at))]

    @property
    def used(self) -> int:
        return self.given if self.counted is None else self.counted

    def end(self, batches: int) -> int:
        """The number of crops in the first batches."""
        return min(len(self.crops), sum(self.sizes(self.step + number) for number in range(batches)))

    def batch(self) -> list[Crop]:
        """The next batch; empty after the last one of a pass."""
        return self.crops[self.end(self.given) : self.end(self.given + 1)]

    def counts(self) -> list[Crop]:
        """The crops that the state counts."""
        return self.crops[: self.end(self.used)]

    @property
    def is_over(self) -> bool:
        return self.end(self.used) == len(self.crops)

    def rest(self) -> list[Crop]:
        """The positions that are left after what the state counts: of the last one, the crops after its last."""
        if not (counts := self.counts()):
            return self.plan
        position, crop = counts[-1]
        return [(position, crop + 1), *(place for place in self.plan if place[0] > position)]

    def passed(self, all_of_pass: bool) -> list[int]:
        """The positions before the last crop that the state counts, or all."""
        last = self.counts()[-1][0] if self.counts() else -1
        return [position for position, _ in self.plan if all_of_pass or position < last]


@dataclass
class Model:
    """All ranks, and the crops that were counted before they began."""

    ranks: list[Rank]
    before: list[Crop] = field(default_factory=list)

    def counts(self) -> list[Crop]:
        return [*self.before, *(crop for rank in self.ranks for crop in rank.counts())]

    def dealt(self, size: int) -> list[list[Crop]]:
        """What is left, for `size` ranks in turn; the same number of ranks keep theirs."""
        rests = [rank.rest() for rank in self.ranks]
        if size == len(rests):
            return rests
        together = sorted(place for rest in rests for place in rest)
        return [together[rank::size] for rank in range(size)]
