"""The table of TensorFlow's versions is of those that are tried, and each was as it should be."""

from tests.versions.__main__ import BEGIN, END, NIGHTLY, PAGE, ROWS
from tests.versions.digests import FORMATS, SETTINGS, SOURCES
from tfpipe.requirements import OLDEST

CONFIGS = len(SOURCES) + len(SETTINGS) + len(FORMATS) + 1


def test_the_page_has_a_row_for_each_version_that_is_tried() -> None:
    text = PAGE.read_text()
    rows = [line.split(" | ") for line in text.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]]
    tried = [row.tensorflow for row in ROWS if row.tensorflow != NIGHTLY]
    assert [row[0].removeprefix("| ") for row in rows if "dev" not in row[0]] == tried
    assert {row[4] for row in rows} == {f"{CONFIGS} of {CONFIGS}"} and f"in {CONFIGS} configs" in text
    assert tuple(map(int, tried[0].split(".")[:2])) == OLDEST
