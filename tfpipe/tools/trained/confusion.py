"""The confusion of classes: crops by their class and the predicted one, as a table."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfpipe.distributed import World
from tfpipe.util.console import line

# Up to this many classes, the table has all of them; above, the worst.
NAMED = 40


class ClassScores(NamedTuple):
    """A class in the test data."""

    name: str
    crops: int  # crops of the class
    predicted: int  # crops that are predicted as the class
    recall: float | None  # share of its crops that are predicted as it; None without a crop
    precision: float | None  # share of the crops predicted as it that are of it; None without one
    mistaken_for: str | None  # the class that its crops are most often mistaken for; None if none is
    mistaken: int  # crops that are


class Confusion:
    """The number of crops of each pair of a class and a predicted class; pairs without a crop take no memory."""

    def __init__(self, classes: int) -> None:
        """Takes the number of the model's outputs."""
        self.classes = classes
        self._pairs, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._unsorted: list[np.ndarray] = []

    def add(self, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Counts the crops of a batch: their classes and the predicted ones, int [batch]."""
        self._unsorted.append(labels.astype(np.int64) * self.classes + predicted)

    def over(self, world: World) -> "Confusion":
        """Returns the sum over all ranks; every rank must call."""
        pairs, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *self._unsorted]), return_counts=True)
        gathered = world.gather((pairs, counts))
        total = Confusion(self.classes)
        total._pairs, owner = np.unique(np.concatenate([part for part, _ in gathered]), return_inverse=True)
        total._counts = np.zeros(len(total._pairs), np.int64)
        np.add.at(total._counts, owner.ravel(), np.concatenate([part for _, part in gathered]))
        return total

    def pairs(self) -> np.ndarray:
        """Returns the pairs that have crops: class, predicted class and number of crops, int64 [n, 3]."""
        return np.stack([*np.divmod(self._pairs, self.classes), self._counts], axis=1)

    def by_class(self, names: Sequence[str]) -> list[ClassScores]:
        """Returns the scores of every class; `names` by number, and a number itself beyond them."""
        truth, predicted, counts = self.pairs().T
        crops, taken, hits = (np.zeros(self.classes, np.int64) for _ in range(3))
        np.add.at(crops, truth, counts)
        np.add.at(taken, predicted, counts)
        same = truth == predicted
        hits[truth[same]] = counts[same]
        worst: dict[int, tuple[int, int]] = {}
        for number, other, count in self.pairs()[~same].tolist():
            if count > worst.get(number, (0, 0))[0]:
                worst[number] = (count, other)
        return [
            ClassScores(
                class_name(names, number),
                crops[number].item(),
                taken[number].item(),
                hits[number].item() / crops[number].item() if crops[number] else None,
                hits[number].item() / taken[number].item() if taken[number] else None,
                class_name(names, worst[number][1]) if number in worst else None,
                worst.get(number, (0, 0))[0],
            )
            for number in range(self.classes)
        ]


def class_name(names: Sequence[str], number: int) -> str:
    """Returns the name of an output, or its number if no class has it."""
    return names[number] if number < len(names) else str(number)


def class_table(scores: Sequence[ClassScores]) -> list[str]:
    """Returns the lines of the table of classes: all, or those with the lowest recall if they are many."""
    there = [each for each in scores if each.crops]
    shown = sorted(there, key=lambda each: each.recall or 0.0) if len(there) > NAMED else there
    widths = (28, 8, 8, 10)
    lines = [line(widths, "class", "crops", "recall", "precision", "   most often mistaken for")]
    for each in shown[:NAMED]:
        mistake = f"   {each.mistaken_for} ({each.mistaken})" if each.mistaken_for else ""
        precision = "-" if each.precision is None else f"{each.precision:.3f}"
        lines.append(line(widths, _short(each.name), each.crops, f"{each.recall:.3f}", precision, mistake))
    if len(there) > NAMED:
        lines.append(f"the {NAMED} of {len(there)} classes with the lowest recall; --json OUT writes all")
    return lines


def as_json(confusion: Confusion, scores: Sequence[ClassScores]) -> dict[str, Any]:
    """Returns the scores of all classes, and the pairs of classes that have crops: [class, predicted, crops]."""
    return {"classes": [each._asdict() for each in scores], "confusion": confusion.pairs().tolist()}


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:25]}…"
