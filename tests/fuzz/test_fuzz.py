"""Some of what `python -m tests.fuzz` does at length."""

from tests.fuzz.jpegs import fuzz_generated, fuzz_jpegs
from tests.fuzz.pictures import DECODERS, fuzz_pictures
from tests.fuzz.xmls import fuzz_xmls
from tests.support.examples import examples


def test_of_changed_xmls_none_is_read_as_something_else() -> None:
    count = examples(2_000)
    outcomes = fuzz_xmls(count, seed=1)
    assert outcomes["both read"] + outcomes["both refuse"] == count
    assert min(outcomes["both read"], outcomes["both refuse"]) > 0.15 * count and outcomes["boxes"] > 0.5 * count


def test_a_changed_file_gives_a_picture_or_an_error() -> None:
    count = examples(500)
    outcomes = fuzz_pictures(count, seed=1)
    for decoder in DECODERS:
        read, refused = outcomes[f"{decoder}: a picture"], outcomes[f"{decoder}: an error"]
        assert read + refused == count and read > 0.1 * count and refused > 0.1 * count


def test_a_changed_jpeg_gives_libjpeg_turbos_picture_or_a_refusal() -> None:
    count = examples(5_000)
    outcomes = fuzz_jpegs(count, seed=1)
    assert sum(outcomes.values()) == count
    assert min(outcomes["a picture"], outcomes["damaged"], outcomes["refused"]) > 0.05 * count


def test_generated_jpegs_are_decoded_to_the_bit() -> None:
    count = examples(500)
    assert sum(fuzz_generated(count, seed=1).values()) == count
