"""Errors: the exit codes that docs/ and the job scripts name, and the words in which all messages count things."""

import ast
import re
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import ROOT
from tfpipe.errors import ConfigError, Stopped, TfpipeError, counted

TREES = {path: ast.parse(path.read_text()) for path in (ROOT / "tfpipe").rglob("*.py")}
PLURALS = {"class": "classes", "box": "boxes", "batch": "batches", "entry": "entries"}
# A decimal fraction is in the plural, "1.0 CPUs".
DECIMAL = re.compile(r"\.[1-9]")
# Before the number of a whole, "1 of 1 images", and the name of a constant, whose value is known where it is written.
WHOLE, CONSTANT = re.compile(r"^ of (its |the next )?$|none of (its )?$|^ $"), re.compile(r"[A-Z_]+$")
# Messages whose numbers are above 1: more shards than files that a process may open.
ABOVE_ONE = {"tfpipe/util/open_files.py"}


def test_exit_codes_are_those_that_are_documented() -> None:
    assert (TfpipeError.exit_code, ConfigError.exit_code, Stopped.exit_code) == (1, 2, 75)
    assert "((code == 75))" in (ROOT / "jobs/common.sh").read_text()


@given(st.integers(0, 10**12), st.sampled_from(["image", "whole file", "GPU", "epoch", "array", *PLURALS]))
def test_what_is_counted_is_in_the_plural_unless_it_is_one(number: int, noun: str) -> None:
    digits, _, counted_noun = counted(number, noun).partition(" ")
    assert int(digits.replace(",", "")) == number
    assert counted_noun == (noun if number == 1 else PLURALS.get(noun, f"{noun}s"))


def _uncounted(tree: ast.Module, plurals: str) -> Iterator[ast.AST]:
    """Yields the texts with a number right before one of these nouns in the plural."""
    noun = rf" ({plurals})(?![\w/])"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(rf"(?<! of )(%[\d.,]*[df]|{{[^{{}}]*}}){noun}", node.value):
                yield node
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for before, value, after in zip([None, *parts], parts, parts[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and re.match(noun, str(getattr(after, "value", ""))):
                spec = ast.unparse(value.format_spec) if value.format_spec else ""
                exempt = DECIMAL.search(spec) or CONSTANT.match(ast.unparse(value.value))
                if not exempt and not WHOLE.search(str(getattr(before, "value", ""))):
                    yield node


def test_messages_count_by_one_function() -> None:
    """A noun that is counted somewhere is counted so everywhere."""
    calls = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    nouns = [call.args[1] for call in calls if ast.unparse(call.func) == "counted"]
    plurals = "|".join({counted(2, noun.value).removeprefix("2 ") for noun in nouns if isinstance(noun, ast.Constant)})
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in TREES.items()
        for node in _uncounted(tree, plurals)
    }
    assert sorted(text for text in found if text.partition(":")[0] not in ABOVE_ONE) == []
    assert len(found) == len(ABOVE_ONE)
