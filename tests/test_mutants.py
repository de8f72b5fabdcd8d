"""The faults of tests/mutants.py still fit the source that they change."""

from tests.mutants import MUTANTS, ROOT


def test_each_fault_changes_one_place():
    places = {(fault.file, fault.old): (ROOT / "tfpipe" / fault.file).read_text().count(fault.old) for fault in MUTANTS}
    assert set(places.values()) == {1}, [place for place, count in places.items() if count != 1]
