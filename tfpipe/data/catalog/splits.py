"""Finds the split of files and folders by the words in their names: one rule for all kinds of sources.

train and training are training data; val, valid and validation, else test and testing, are test data. A name's words
are its letters between other characters, and between small and capital ones, in any case: imagenet-train-000000.tar,
instances_val2017.json, TestData.csv.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tfpipe.errors import ConfigError

# Splits of test data, the preferred one first.
TESTS = ("val", "test")
LETTERS = re.compile(r"[A-Za-z]+")
CAMEL_CASE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
WORD = re.compile(r"(?:(train)(?:ing)?|(val)(?:id(?:ation)?)?|(test)(?:ing)?)(?:sets?|data|split)?")
# Names of examples in a message.
EXAMPLES = 3


def splits_in(name: str) -> set[str]:
    """Returns the splits that words of a name say: some of "train", "val" and "test"."""
    words = {word.lower() for pattern in (LETTERS, CAMEL_CASE) for word in pattern.findall(name)}
    return {next(filter(None, found.groups())) for word in words if (found := WORD.fullmatch(word))}


def whole_split(name: str) -> str | None:
    """Returns the split of a name that says nothing else: Training, val2017, test_set."""
    found = WORD.fullmatch("".join(LETTERS.findall(name)).lower())
    return next(filter(None, found.groups())) if found else None


class BySplit(NamedTuple):
    """Names, sorted, by what their words say of a split."""

    train: list[str]
    val: list[str]
    test: list[str]
    unsaid: list[str]  # no split
    both: list[str]  # several splits

    @classmethod
    def of(cls, names: Iterable[str]) -> "BySplit":
        """Sorts names by their split."""
        result = cls([], [], [], [], [])
        for name in sorted(names):
            said = splits_in(name)
            result[cls._fields.index(next(iter(said))) if len(said) == 1 else 4 if said else 3].append(name)
        return result

    def training(self, apart: bool) -> list[str]:
        """Returns the names of training data, without those of test data; `apart` if test data is elsewhere."""
        self._check(apart)
        named = self.train or self.unsaid
        return named if named or not apart else self.both or [*self.val, *self.test]

    def testing(self, apart: bool) -> list[str]:
        """Returns the names of test data; `apart` if they are of a place that holds nothing else."""
        self._check(apart)
        named = self.val or self.test
        return named if named or not apart else self.unsaid or self.both or self.train

    def unused(self) -> list[str]:
        """Returns the names that are of neither split, though they lie beside those that are."""
        return [*(self.test if self.val else []), *(self.unsaid if self.train else [])]

    def _check(self, apart: bool) -> None:
        if self.both and not apart:
            raise ConfigError(
                f"data.source.path: {listing(self.both)} may be training data or test data, by name: put each into a "
                "folder of its own, and name these in data.source.path and data.source.test_path"
            )


def listing(names: Sequence[str]) -> str:
    """Returns the first names and the number of the others, for a message."""
    more = f" and {len(names) - EXAMPLES} more" if len(names) > EXAMPLES else ""
    return f"{', '.join(names[:EXAMPLES])}{more}"
