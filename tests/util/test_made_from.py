"""Records of what a file was made from: any change of that is noticed and named, and nothing else is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.util.files import NO_STAMP, Stamp
from tfpipe.util.made_from import MadeFrom, stamp_files

FILES = [("a", Stamp(1, 10)), ("b", Stamp(2, "etag"))]
HERE = MadeFrom(1, FILES, {"data.seed": 3, "data.classes": ["x"]})


@pytest.mark.parametrize(
    ("then", "change"),
    [
        (HERE, None),
        (HERE._replace(settings={"data.classes": ("x",), "data.seed": 3}), None),
        (HERE._replace(version=2), "another version of tfpipe made it"),
        (HERE._replace(settings={**HERE.settings, "data.seed": 4}), "data.seed: 4 then, 3 now"),
        (HERE._replace(settings={**HERE.settings, "old": 1}), "old: 1 then, null now"),
        (HERE._replace(files=FILES[:1]), "b is new"),
        (HERE._replace(files=[*FILES, ("c", NO_STAMP)]), "c is gone"),
        (HERE._replace(files=[("a", Stamp(5, 10)), FILES[1]]), "a had 5 bytes then, has 1 now"),
        (HERE._replace(files=[("a", Stamp(1, 9)), FILES[1]]), "a has changed since, by its time of change or version"),
        (HERE._replace(files=[("a", Stamp(1, 9))]), "b is new, and 1 more changes"),
        (HERE._replace(files=FILES[::-1]), "its files have another order"),
    ],
)
def test_a_change_is_named(then: MadeFrom, change: str | None) -> None:
    assert HERE.change(then.text()) == HERE.change(then.text().encode()) == change
    assert (then.digest() == HERE.digest()) == (change is None)


@given(st.binary() | st.just(b"[1, [], {}]") | st.just(b"[1, [[1]], {}]") | st.just(b"[[], 7]"))
def test_what_cannot_be_read_has_changed(stored: bytes) -> None:
    assert HERE.change(stored) and HERE.change(None)


def test_files_are_stamped_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert stamp_files([path, None, tmp_path / "b"]) == [
        (str(path), Stamp(3, path.stat().st_mtime_ns)),
        (str(tmp_path / "b"), NO_STAMP),
    ]
