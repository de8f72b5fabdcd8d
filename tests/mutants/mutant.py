"""The form of a fault."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A fault: in a file of tfpipe/, one text in place of another."""

    file: str
    old: str
    new: str
    tests: str = ""
    """Tests that should find it, below tests/, to save time; by default those nearest by imports."""
    equivalent: str = ""
    """The reason why no test can find it."""
