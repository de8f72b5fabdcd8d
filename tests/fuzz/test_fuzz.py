"""Some of what `python -m tests.fuzz` does at length."""

from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.jpegs import compare_folder, fuzz_jpegs
from tests.fuzz.pictures import DECODERS, fuzz_pictures
from tests.fuzz.sanitized import STORED, fuzz_stored
from tests.fuzz.stored import fuzz_catalogs, fuzz_packs, fuzz_states, fuzz_tables
from tests.fuzz.xmls import fuzz_xmls
from tests.support.core import reference
from tests.support.examples import examples
from tests.support.images import encoded, picture, sampled


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


def test_the_jpegs_of_a_folder_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that differs by a level would be named."""
    (tmp_path / "deep").mkdir()
    for number in range(3):
        (tmp_path / "deep" / f"{number}.JPEG").write_bytes(encoded(picture(50, 70, number)))
    (tmp_path / "other.jpg").write_bytes(sampled((50, 70), 0x41, 0x11, 0x11))
    outcomes = compare_folder(tmp_path, 100)
    assert outcomes["refused"] == 1 and sum(outcomes.values()) == 4

    def off_by_one(jpeg: bytes) -> np.ndarray:
        pixels = reference(jpeg).astype(int)
        pixels[20, 30, 1] += 1
        return pixels

    monkeypatch.setattr("tests.fuzz.jpegs.reference", off_by_one)
    with pytest.raises(AssertionError, match=r"0.JPEG differs"):
        compare_folder(tmp_path, 100)


def test_damaged_packs_are_refused_and_forged_ones_read_nothing_beyond_their_shards() -> None:
    count = examples(400)
    outcomes = fuzz_packs(count, seed=1)
    assert sum(outcomes.values()) == count and not outcomes["damage table: others"]
    assert min(outcomes[f"{change}: an error"] for change in ("damage table", "forge manifest", "forge places")) > 0
    assert outcomes["forge manifest: the same"] > 0


def test_damaged_catalogs_are_made_again() -> None:
    count = examples(120)
    outcomes = fuzz_catalogs(count, seed=1) + fuzz_tables(count, seed=1)
    assert outcomes.total() == 2 * count and outcomes["made again"] > 0.5 * count
    assert outcomes["damaged: the same"] + sum(outcomes[name] for name in outcomes if "forged" in name) == count


def test_forged_states_of_a_loader_are_refused_or_mean_what_they_say() -> None:
    count = examples(5_000)
    outcomes = fuzz_states(count, seed=1)
    assert outcomes.total() == count and min(outcomes.values()) > 0.1 * count


@pytest.mark.full("builds the libraries again; make test has the same kinds without sanitizers, a few of each")
def test_stored_data_pass_under_sanitizers() -> None:
    assert fuzz_stored(0, seed=1) == STORED
