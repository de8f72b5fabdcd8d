"""Accounts for what data holds: what is not used is counted, with the reason; what is stated twice is refused."""

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tfpipe.errors import counted

logger = logging.getLogger(__name__)
T = TypeVar("T")
Counts = Mapping[str, tuple[int, str]]
# Reasons that a message lists; values that it lists, and their characters.
MOST_LINES, MOST_VALUES, MOST_CHARACTERS = 6, 3, 40


def only(values: Iterable[T], name: str, remedy: str = "state one") -> T | None:
    """Returns the value that all `values` are; None if there is none.

    Raises ValueError, which says `name` and lists them, if they differ: which one counts cannot be told.
    """
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1:
        shown = ", ".join(str(value)[:MOST_CHARACTERS] for value in distinct[:MOST_VALUES])
        raise ValueError(f"it has {len(distinct)} values of {name}, {shown}: {remedy}")
    return distinct[0] if distinct else None


class Ledger:
    """Counts what is left out of the data, by reason, with the first example of each reason."""

    def __init__(self, counts: Counts | None = None) -> None:
        """Starts with the counts of another ledger, also as JSON has them: {reason: (count, example)}."""
        self.counts = {reason: (count, example) for reason, (count, example) in (counts or {}).items()}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Counts `count` more that are left out for a reason, a noun in the plural: "XMLs of no image"."""
        before, first = self.counts.get(reason, (0, example))
        self.counts[reason] = before + count, first

    def add_all(self, reason: str, examples: Iterable[object]) -> None:
        """Counts each of the examples."""
        for example in examples:
            self.add(reason, str(example))

    def update(self, other: "Ledger") -> None:
        """Adds what another one has counted."""
        for reason, (count, example) in other.counts.items():
            self.add(reason, example, count)

    def warn(self, place: str) -> None:
        """Logs a warning with what is left out at a place, e.g. "the train data in a.tar", if anything is."""
        if self:
            logger.warning("%s: left out are%s", place, self.lines())

    def lines(self) -> str:
        """Returns the texts of the most frequent reasons, each on a line of its own, for a message."""
        texts = self.texts
        if (more := len(texts) - MOST_LINES) > 0:
            texts[MOST_LINES:] = [f"and {counted(more, 'other reason')}: tfpipe check lists them"]
        return "".join(f"\n  {text}" for text in texts)

    @property
    def texts(self) -> list[str]:
        """The count and the example of each reason, the most frequent first."""
        reasons = sorted(self.counts.items(), key=lambda item: (-item[1][0], item[0]))
        return [f"{reason} ({count:,}, e.g. {example})" for reason, (count, example) in reasons]
