"""Some of what `python -m tests.fuzz` does at length."""

from tests.fuzz.pictures import fuzz_pictures
from tests.fuzz.xmls import fuzz_xmls


def test_of_changed_xmls_none_is_read_as_something_else() -> None:
    outcomes = fuzz_xmls(2_000, seed=1)
    assert outcomes["both read"] + outcomes["both refuse"] + outcomes["lxml alone reads"] == 2_000
    assert outcomes["both read"] > 300 and outcomes["both refuse"] > 300 and outcomes["boxes"] > 1_000
    assert outcomes["lxml alone reads"] <= 20


def test_a_changed_file_gives_a_picture_or_an_error() -> None:
    outcomes = fuzz_pictures(300, seed=1)
    for decoder in ("native", "graph"):
        read, refused = outcomes[f"{decoder}: a picture"], outcomes[f"{decoder}: an error"]
        assert read + refused == 300 and read > 30 and refused > 30
