"""The ledger of what training does not use."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tfpipe.util.ledger import Ledger

ENTRIES = st.lists(st.tuples(st.sampled_from(["links", ".txt", "XMLs of no image"]), st.text(max_size=3)))


@given(ENTRIES, ENTRIES)
def test_each_entry_counts_and_the_first_of_a_reason_is_its_example(before: list, after: list) -> None:
    ledger, other = Ledger(), Ledger()
    for reason, example in before:
        ledger.add(reason, example)
    for reason, example in after:
        other.add(reason, example)
    ledger.update(other)
    entries = before + after
    for reason, (count, example) in ledger.counts.items():
        examples = [name for kind, name in entries if kind == reason]
        assert (count, example) == (len(examples), examples[0])
    assert sum(count for count, _ in ledger.counts.values()) == len(entries)
    assert bool(ledger) == bool(entries)
    assert Ledger(json.loads(json.dumps(ledger.counts))).counts == ledger.counts


def test_the_most_frequent_reason_comes_first() -> None:
    ledger = Ledger()
    ledger.add_all(".txt", ["a.txt"])
    ledger.add_all("links", ["b", "c"])
    assert ledger.texts == ["links (2, e.g. b)", ".txt (1, e.g. a.txt)"]
