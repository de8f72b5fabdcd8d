"""The tests that only `make test-full` runs: tests/full.txt."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parents[1] / "full.txt"


class Table(NamedTuple):
    """Reasons by the id of a test, and by patterns of ids."""

    exact: dict[str, str]
    patterns: dict["re.Pattern[str]", str]

    def reason_of(self, node_id: str) -> str | None:
        """Returns the reason why only the full run holds a test; None if `make test` runs it."""
        if node_id in self.exact:
            return self.exact[node_id]
        return next((reason for pattern, reason in self.patterns.items() if pattern.fullmatch(node_id)), None)

    def unmatched(self, node_ids: list[str]) -> list[str]:
        """Returns the rows that no test of these matches."""
        missing = [pattern.pattern for pattern in self.patterns if not any(map(pattern.fullmatch, node_ids))]
        return [*(self.exact.keys() - set(node_ids)), *missing]


def parse(text: str) -> Table:
    """Reads a table whose paragraphs begin with their reason, in lines that begin with `#`."""
    table = Table({}, {})
    for paragraph in text.split("\n\n")[1:]:
        lines = paragraph.splitlines()
        reason = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
        for line in lines:
            if "*" in line and not line.startswith("#"):
                table.patterns[re.compile("tests/" + re.escape(line).replace(r"\*", ".*"))] = reason
            elif line and not line.startswith("#"):
                table.exact[f"tests/{line}"] = reason
    return table


@cache
def table() -> Table:
    return parse(TABLE.read_text())
